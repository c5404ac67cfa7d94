"""What `regard.training` gives is what it gave before: tests/results/training.json."""

from __future__ import annotations

import json
from contextlib import ExitStack, chdir, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest
import torch
from stored_results import check, each_section, waves

from regard.checkpoints.store import read_folder
from regard.data.batches import IGNORE, Sequences
from regard.data.sampler import EpochSampler
from regard.errors import RegardError
from regard.models import model_class
from regard.state import Cells
from regard.training.callbacks import Callback, Trainable, read_result
from regard.training.checkpointing import RunFolder
from regard.training.distributed import FSDPModel, SeveralProcesses, active
from regard.training.interrupt import Paused
from regard.training.optimizers import ScheduleStep, optimizer, schedule, set_rate
from regard.training.options import OptimizerOptions, ScheduleOptions, TrainingOptions
from regard.training.run import resume, train

KEPT = ("counters", "position", "precision", "scores", "learning_rate", "norm", "counts")
CLOCK = [0.0]  # a second for each batch, and none for anything else


class Words(Trainable):
    """Five batches an epoch of words that a tiny GPT-2 learns, with two losses and a carried state.

    scores: those of the validations one after the other, the last one again and again.
    bad: the batch, from 1, whose first loss is infinite.
    """

    goal = ("loss", "min")

    def __init__(self, scores=(), bad=0, goal=("loss", "min"), layers=1, **attributes):
        self.module = model("gpt2", layers=layers, max_length=8, bos=1, eos=2)
        self.goal, self.scores, self.left, self.seen = goal, list(scores), bad, 0
        for name, value in attributes.items():
            setattr(self, name, value)

    def train_batches(self):
        return EpochSampler(self)

    def epoch(self, number):
        lengths = [(3, 5), (8, 2), (7, 4), (6, 1), (4, 4)]
        rows = [
            [[3 + (n * n + 5 * k + number) % 8 for k in range(n)] for n in of] for of in lengths
        ]
        return [Sequences.of(row, 0) for row in rows]

    def identity(self):
        return {"words": 5}

    def counts(self, batch):
        return {"words": int(batch.lengths.sum()), "rows": len(batch)}

    def losses(self, batch, carry):
        hidden = self.module(batch.ids).hidden
        targets = batch.ids.masked_fill(~batch.keep.to(batch.ids.device), IGNORE)
        words = self.module.head.loss(hidden.flatten(0, 1), targets.flatten(), 0.1)[0]
        mean = hidden.mean(1, keepdim=True)  # (B, T, D) -> (B, 1, D)
        rows = (mean - (0.0 if carry is None else 0.5 * carry.hidden)).square().sum()
        if self.module.training and torch.is_grad_enabled():
            CLOCK[0] += 1
            self.left -= 1
            words = words * (float("inf") if self.left == 0 else 1)
        counts = self.counts(batch)
        losses = {"words": (words, counts["words"]), "rows": (rows, counts["rows"])}
        return losses, Cells(mean.detach(), 2 * mean.detach())

    def validate(self):
        torch.rand(3)
        loss, count = self.losses(self.epoch(9)[0], None)[0]["words"]
        if self.scores:
            score = self.scores[min(self.seen, len(self.scores) - 1)]
            self.seen += 1
            return {} if score is None else {"loss": score, "words": float(loss) / count}
        return {"loss": float(loss) / count}


class Told(Callback):
    """All that a training tells, in order."""

    every = 2.0

    def __init__(self):
        self.told = []

    def __getattribute__(self, name):
        if name in ("on_step", "on_validation", "on_checkpoint", "on_end", "show", "say", "warn"):
            return lambda *args: self.told.append([name, *map(told, args)])
        return super().__getattribute__(name)

    def close(self):
        self.told.append(["close"])


def told(value):
    return value.name if isinstance(value, Path) else value


def model(name, **config):
    kind = model_class(name)
    options = dict(vocab_size=11, d_model=4, heads=2) | config
    made = kind(kind.Config(**options)).double()
    for part in made.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    with torch.no_grad():
        for n, weight in enumerate(made.parameters()):
            weight.copy_(0.2 * waves(*weight.shape, seed=n))
    return made


def digest(tensors):
    """How many tensors there are, and a number in which every element counts."""
    exact = sorted((name, tensor.detach().double()) for name, tensor in tensors.items()
                   if tensor.is_floating_point())  # fmt: skip
    parts = [(tensor * waves(*tensor.shape, seed=n)).sum() for n, (_, tensor) in enumerate(exact)]
    return len(parts), float(sum(parts))


@contextmanager
def in_shards(patch):
    """Inside, a training is that of several processes, of which there is one."""
    distributed = torch.distributed
    patch.setattr("sys.excepthook", print)  # which torch replaces
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    patch.setattr("regard.training.steps.shard", lambda *args: FSDPModel(*args))
    with active(SeveralProcesses()):
        try:
            yield
        finally:
            distributed.destroy_process_group()


def training(task=None, stop=None, again=None, freeze=(), sharded=False, **options):
    """What a training of some steps tells, writes and gives; with `stop`, in two parts."""
    CLOCK[0], seen = 0.0, Told()
    clock = SimpleNamespace(monotonic=lambda: CLOCK[0], perf_counter=lambda: CLOCK[0])
    usual = dict(max_steps=6, logging_steps=2, threads=1) | options
    chosen = TrainingOptions(**usual)
    more = dict(
        progress=seen,
        callbacks=[seen],
        test=lambda: [SimpleNamespace(name="acc", value=0.5, signature="exact")],
    )
    with ExitStack() as stack:
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        stack.enter_context(chdir(stack.enter_context(TemporaryDirectory())))
        if sharded:
            stack.enter_context(in_shards(patch))
        for module in ("checkpointing", "metrics_log", "steps"):
            patch.setattr(f"regard.training.{module}.time", clock)
        task = task or Words()
        for name, weight in task.module.named_parameters():
            weight.requires_grad_(not name.startswith(tuple(freeze)))
        ended = None
        try:
            ended = train(task, chosen, "run", stop_after_fraction=stop, **more)
        except Paused as pause:
            seen.told.append(["paused", str(pause), vars(pause)])
            task = again or Words()
            for name, weight in task.module.named_parameters():
                weight.requires_grad_(not name.startswith(tuple(freeze)))
            ended = resume(task, chosen, "run", **more)
        except RegardError as error:
            seen.told.append([type(error).__name__, str(error)])
        saved = RunFolder(Path("run")).saved()
        files = {path.name: sorted(part.name for part in path.iterdir()) for path in saved}
        tables, facts = read_folder(saved[-1])
        facts = [facts[name] for name in KEPT]
        events = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
        if ended:
            assert read_result(Path("run")) == ended
    tensors = {name: digest(table) for name, table in tables.items()}
    return seen.told, events, files, facts, tensors, digest(dict(task.module.named_parameters()))


def rates(name, steps=8, epochs=3, total=6, **options):
    """The multipliers of a schedule."""
    at = schedule(ScheduleOptions(name, **options))
    return [at(ScheduleStep(n, n // epochs, total)) for n in range(1, steps + 1)]


def groups(module, **options):
    """The groups of an optimizer: sizes of their parameters, and their options."""
    made = optimizer(module, OptimizerOptions(**options))
    set_rate(made, 0.5)
    texts = [{k: v for k, v in group.items() if k != "params"} for group in made.param_groups]
    return type(made).__name__, [
        [[list(p.shape) for p in group["params"]], text]
        for group, text in zip(made.param_groups, texts, strict=True)
    ]


@each_section("training")
def test_statements_give_what_they_gave_before(section):
    check("training", section)
