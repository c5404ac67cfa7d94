"""What the processes of `test_distributed.py` do: `torchrun ... ranks_program.py main FOLDER`."""

from __future__ import annotations

import copy
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))

from toy import Toy, averaged, options

import regard
from regard.data.batches import PairBatch, Sequences, StreamBatch
from regard.errors import RegardError
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.training.callbacks import Callback, Trainable
from regard.training.distributed import FSDPModel, WholeModel, connected, layers_of, processes
from regard.training.interrupt import Interrupted
from regard.training.optimizers import trained
from regard.training.options import OptimizerOptions
from regard.training.run import resume, train

KILLED = 40  # the batch in which a process dies: after 22 steps, of which 20 are saved
STOP = 17  # the step after which runs are stopped by a signal


class Exact(Toy):
    """In float64 and without dropout; a parameter without a dimension is trained, too."""

    def __init__(self):
        super().__init__(dropout=0.0)
        self.module.scale = nn.Parameter(torch.ones(()))
        self.module.double()

    def losses(self, batch, carry):
        logits, cells = self.module(batch.tokens, None if batch.fresh else carry)
        flat = self.module.scale * logits.flatten(0, 1)  # (B, T, V) -> (B T, V)
        loss = nn.functional.cross_entropy(flat, batch.targets.flatten(), reduction="sum")
        return {"loss": (loss, batch.count)}, cells.detach()


class Dying(Exact):
    """The second process kills itself at a batch, and writes when into a file."""

    batches = 0

    def __init__(self, clock: Path):
        super().__init__()
        self.clock = clock

    def losses(self, batch, carry):
        self.batches += 1
        if processes().rank == 1 and self.batches == KILLED:
            self.clock.write_text(str(time.monotonic()))
            os.kill(os.getpid(), signal.SIGKILL)
        return super().losses(batch, carry)


class Stop(Callback):
    """Sends this process a signal, as torchrun does when it is interrupted."""

    def on_step(self, step):
        if step.number == STOP:
            os.kill(os.getpid(), signal.SIGTERM)


def chosen(**changed):
    """Weight decay and clipping that has an effect."""
    return options(
        optimizer=OptimizerOptions("adamw", 0.02, weight_decay=0.1, max_grad_norm=0.3), **changed
    )


def stopped(folder: Path) -> None:
    """Train until a signal comes."""
    try:
        train(Exact(), chosen(), folder, progress=False, callbacks=[Stop()])
    except Interrupted as error:
        assert error.code == 128 + signal.SIGTERM
        return
    raise AssertionError("not stopped")


RECIPE = dict(
    task="classification",
    seed=3,
    data=dict(train="train.tsv", valid="valid.tsv", batch_size=4),
    tokenizer=dict(kind="words"),
    model=dict(
        name="bert", layers=2, d_model=12, heads=3, dropout=0, attention_dropout=0, head_dropout=0
    ),
    training=dict(
        precision="float32",
        max_steps=12,
        logging_steps=1,
        schedule=dict(name="constant"),
        optimizer=dict(name="adam", betas=[0.9, 0.98], eps=1e-09, learning_rate=0.001),
    ),
)


COMPRESSIVE = dict(
    task="language-modeling",
    data=dict(train="train.tsv", valid="valid.tsv", format="text", batch_size=4, sequence_length=8),
    tokenizer=dict(kind="characters"),
    model=dict(
        name="compressive-transformer", layers=2, d_model=12, d_ff=12, heads=3, memory_length=4,
        compressed_length=3, compression_rate=2, dropout=0, attention_dropout=0,
    ),
    training=dict(max_steps=8, logging_steps=1),
)  # fmt: skip


class Tiny(Trainable):
    """A tiny model of the registry, and the loss of a batch of four rows."""

    def __init__(self, registry, kind, case):
        model, self.registry = registry.build(case), registry
        if kind == "encoder":
            model = EncoderWithHeads(model, {"classes": model.new_head("classes", 3)}).eval()
        self.kind, self.module = kind, model

    def batch(self):
        registry = self.registry
        source = registry.source_of(registry.ids(4, 5, seed=2), torch.tensor([5, 1, 3, 4]))
        target = registry.ids(4, 8)
        if self.kind == "encoder":
            return registry.read_by(self.module.encoder, source)
        if self.kind == "translator":
            return PairBatch(source, Sequences.full(target))
        return StreamBatch(target[:, :-1], target[:, 1:], fresh=True)

    def losses(self, batch, carry):
        model = self.module
        if self.kind == "encoder":
            scores = model.scores("classes", batch)
            return {"loss": (scores.float().square().sum(), len(scores))}, None
        if self.kind == "translator":
            read, targets = Sequences.full(batch.target.ids[:, :-1]), batch.target.ids[:, 1:]
            output = model(batch.source, read)
        else:
            targets, output = batch.targets, model(batch.tokens)
        return {"loss": model.head.loss(output.hidden.flatten(0, 1), targets.flatten())}, None


def gradients(sharded) -> dict[str, torch.Tensor]:
    """The loss and the gradients of a batch, by name."""
    loss = sharded.losses(sharded.task.batch(), None)[0]["loss"][0]
    loss.backward()

    def found():
        return [one.grad for one in sharded.trained.values() if one.grad is not None]

    (losses,), norm = sharded.reduced([{"loss": loss.detach()}], found)
    grads = {n: one.grad for n, one in sharded.trained.items() if one.grad is not None}
    return {"loss": losses["loss"].float(), "norm": norm.float(), **grads}


def check_plain(found, expected) -> None:
    """The first process has a model as any other, which can be copied, too."""
    assert [type(one) for one in found.modules()] == [type(one) for one in expected.modules()]
    state = copy.deepcopy(found).state_dict()
    for name, tensor in expected.state_dict().items():
        assert torch.equal(state[name], tensor), name


def models(names: Path) -> None:
    """Compare a model of each kind of layer in layers with the whole one; write which were equal.

    With all 144 tiny models of the registry this takes 22 seconds.
    """
    tests = Path(__file__).parents[1]
    sys.path[:0] = [str(tests / "models"), str(tests)]
    import test_registry as registry

    cases = [
        *(("stream", case) for case in registry.LANGUAGE_MODELS),
        *(("translator", case) for case in registry.TRANSLATORS),
        *(("encoder", case) for case in registry.ENCODERS),
    ]
    equal, seen = [], set()
    for kind, case in cases:
        if case[1]:  # the others differ in numbers alone
            continue
        whole = WholeModel(Tiny(registry, kind, case))
        layers = (kind, *{type(one) for one in layers_of(whole.model)})
        if len(layers) == 1 or layers in seen:
            continue
        seen.add(layers)
        mine = FSDPModel(Tiny(registry, kind, case), processes())
        expected, found = gradients(whole), gradients(mine)
        numbers = {name: expected.pop(name) for name in ("loss", "norm")}
        for name, value in {**numbers, **mine.local_parts(expected)}.items():
            assert torch.allclose(found[name], value, rtol=1e-3, atol=1e-4), (kind, case, name)
        assert found.keys() == {*trained(whole.model), *numbers} & {*expected, *numbers}
        mine.with_whole_model(partial(check_plain, mine.model, whole.model))
        equal.append(f"{kind} {case[0]}")
    if processes().first:
        names.write_text("\n".join(equal))


def dying(folder: Path) -> None:
    """A training of which a process dies."""
    torch.set_num_threads(1)
    with connected():
        train(Dying(folder / "killed at"), chosen(), folder / "killed", progress=False)


def twice(folder: Path) -> None:
    """Two connections one after the other; an error that the program catches ends the first."""
    for number in range(2):
        if os.environ["RANK"] == "1":
            time.sleep(2 * number)  # the other process is ahead
        try:
            with connected("cpu"):
                greatest = processes().maximum(10 * number + processes().rank)
                (folder / f"{number} {processes().rank}").write_text(str(greatest))
                if number == 0:
                    raise RegardError("caught")
        except RegardError:
            continue
    (folder / f"end {os.environ['RANK']}").touch()


def main(folder: Path) -> None:
    """One start of the processes serves several trainings, as starting takes longer than they."""
    torch.set_num_threads(1)
    with connected():
        train(Exact(), chosen(), folder / "several", progress=False)
        train(Exact(), averaged(), folder / "averaged", progress=False)
        stopped(folder / "stopped")
        resume(Exact(), chosen(), folder / "resumed", progress=False)
        models(folder / "models.txt")
        os.chdir(folder)
        run = regard.train("recipe.toml", out="recipe", progress=False)
        assert (run.result.step, processes().size) == (12, 2)
        regard.train("compressive.toml", out="compressive", progress=False)


if __name__ == "__main__":
    programs = [main, dying, twice]
    {program.__name__: program for program in programs}[sys.argv[1]](Path(sys.argv[2]))
