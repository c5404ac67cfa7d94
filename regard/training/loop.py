"""The loop: step, log, validate, checkpoint.

`Loop.run` and `Steps.apply_step` are the whole of it. `start_run` starts it, and `restore` puts it
back to exactly where it stopped: a checkpoint holds the weights, the optimizer's state, the carried
state of a recurrent model, all random generators and the sums of losses that are not logged yet;
the position in the data, the counters, the best score and the length of metrics.jsonl.
"""

import math
import platform
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard import __version__
from regard.checkpoints.filling import load_weights
from regard.checkpoints.store import FACTS
from regard.decoding import cuda_graphs
from regard.errors import CheckpointError, RegardError
from regard.metrics.score import NamedScore
from regard.schema import read_json
from regard.training import checkpointing
from regard.training.callbacks import Callback, Progress, Result, Step, Trainable
from regard.training.compiling import casting, resolve
from regard.training.distributed import Processes
from regard.training.interrupt import Interrupted, Interruption, Paused, Stopped
from regard.training.metrics_log import MetricsLog, Report
from regard.training.optimizers import ScheduleStep, named_state, restore_state, schedule
from regard.training.options import TrainingOptions, description, known
from regard.training.steps import NonFiniteError, Steps

Publish = Callable[[Any, Path], None]
Test = Callable[[], Sequence[NamedScore]]
# Millions of words read after which BabyLM asks for the model.
MILESTONES = [count * power for power in (1, 10, 100) for count in range(1, 10)] + [1000]
HINT = "A lower `learning_rate` or `max_grad_norm`, a longer `warmup` or float32 may help."


def no_test() -> Sequence[NamedScore]:
    """The scores where there are no test data."""
    return ()


class Loop(Steps):
    """One training. All that changes while it runs is here, and all of it is in a checkpoint.

    `start_run` or `restore` comes before `run`.
    """

    report: Report
    checkpointer: checkpointing.Checkpointer

    def __init__(
        self,
        task: Trainable,
        options: TrainingOptions,
        folder: checkpointing.RunFolder,
        identity: dict[str, Any],
        publish: Publish,
        progress: Progress,
        interruption: Interruption,
        callbacks: Sequence[Callback],
    ):
        super().__init__(task, options)
        self.folder, self.identity = folder, identity
        self.publish, self.progress, self.interruption = publish, progress, interruption
        self.callbacks = callbacks
        self.schedule = schedule(options.schedule)
        self.scores: dict[str, float] = {}
        self.average = checkpointing.WeightAverage(
            self.sharded.trained, options.averaging, self.counters
        )

    def run(self, test: Test = no_test, stop_after_fraction: float | None = None) -> Result:
        """Step after step until a limit is reached; then score the test data.

        stop_after_fraction: the fraction of the training after which it saves and stops.

        Raises:
            Interrupted: after a signal, when the training is saved.
            Paused: at `stop_after_fraction`.
            NonFiniteError: a loss or a gradient became infinite or NaN.
        """
        self.model.train()
        try:
            while True:
                if self.validation_is_due():
                    self.validate()
                if reason := self.reason_to_end():
                    return self.finish(reason, test)
                self.checkpointer.save_if_due()
                if self.processes.maximum(self.interruption.code):
                    raise Stopped
                if stop_after_fraction is not None and self.fraction >= stop_after_fraction:
                    raise self.saved_and_paused()
                self.step()
        except Stopped:
            raise self.saved_and_stopped() from None
        finally:
            self.report.close()

    def step(self) -> None:
        """One step, and what is logged and shown of it."""
        self.report_average(self.average.begin_if_due())
        epochs, words = self.epochs, self.options.checkpoints.words_per_epoch
        try:
            applied = self.apply_step()
        except NonFiniteError as error:
            newest = self.folder.saved()[-1]  # the first is written before any step
            raise NonFiniteError(f"{error}; the last checkpoint is {newest}. {HINT}") from None
        self.average.add()
        step = self.counters.step
        self.report.add(applied.losses, applied.totals)
        if step % self.options.logging_steps == 0:
            self.report.log(self.epochs, self.learning_rate, self.norm)
        self.report.show_if_due(self.epochs, self.fraction, self.learning_rate)
        for callback in self.callbacks:
            callback.on_step(Step(step, self.epochs, self.learning_rate, self.norm))
        for millions in MILESTONES:
            if epochs * words < millions * 1e6 <= self.epochs * words:
                self.publish_early(self.folder.path / f"by_words/chck_{millions}M/model")

    def scheduled_rate(self) -> float:
        """The peak rate times the multiplier of the schedule."""
        step = self.counters.step
        total = step / self.fraction if self.fraction else math.inf
        at = ScheduleStep(step, self.batches.epoch, total)
        return known(self.options.optimizer.learning_rate) * self.schedule(at)

    @property
    def fraction(self) -> float:
        """How much of the training is done, from 0 to 1."""
        return min(1.0, max(count / limit for _, count, limit in self.limits() if limit))

    def limits(self) -> tuple[tuple[str, float, int | None], ...]:
        """What may end the training: its unit, how many there are, and how many end it."""
        options, counters = self.options, self.counters
        return (
            ("steps", counters.step, options.max_steps),
            ("epochs", self.epochs, options.epochs),
            ("tokens", counters.tokens, options.tokens),
        )

    def reason_to_end(self) -> str:
        """Which limit is reached, in words; empty while none is."""
        for unit, count, limit in self.limits():
            if limit is not None and count >= limit:
                return f"{limit:,} {unit if limit != 1 else unit.removesuffix('s')}"
        stale = self.counters.stale
        if 0 < self.options.validation.patience <= stale:
            return f"no better score in {stale} validation{'s' * (stale != 1)}"
        return ""

    # ---- validation and the end ------------------------------------------------------------------

    def validation_is_due(self) -> bool:
        """After so many steps, each epoch or each part, and at the end; once for a step."""
        counters = self.counters
        if counters.step == counters.validated:
            return False
        return self.validated_parts() > counters.validated_epochs or bool(self.reason_to_end())

    def validated_parts(self) -> int:
        """How many epochs, parts of the training, or times so many steps are complete."""
        every = self.options.validation.eval_steps
        if every >= 1:
            return int(self.counters.step // every)
        return int(self.fraction / every if every else self.epochs)

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """A block in evaluation mode that changes no random generator; a signal interrupts it."""
        self.model.eval()
        try:
            with isolated_rng(), torch.no_grad(), self.interruption.interruptible():
                yield
        finally:
            cuda_graphs.forget(self.model)
            self.model.train()

    def measure(self) -> dict[str, float]:
        """The task's scores on the validation data."""

        def in_first_process() -> dict[str, float]:
            with self.measuring():
                return self.task.validate()

        return self.sharded.with_whole_model(in_first_process)

    def test(self, test: Test) -> tuple[dict[str, float], dict[str, str]]:
        """The scores of the test data and their signatures; after an error, with a warning, none.

        The weights are published by then: an error in the test data must not make the run one that
        can never be finished.
        """
        try:
            with self.measuring():
                results = test()
        except RegardError as error:
            self.progress.warn(f"the test data were not scored: {error}")
            return {}, {}
        scores = {score.name: score.value for score in results}
        if scores:
            self.report.tested(scores)
        return scores, {score.name: score.signature for score in results}

    def validate(self) -> None:
        """Measure; where no score so far is better, keep and publish these weights.

        Of equal scores the later weights are kept: they have seen more of the data. For
        `patience` an equal score is no improvement.
        """
        now = self.counters
        before = now.best, now.best_step, now.best_checkpoint
        with self.average.applied():
            self.scores = self.measure()
        self.report.validated(self.scores, {"epoch": self.epochs, self.items: now.tokens})
        now.validated, now.validated_epochs = now.step, self.validated_parts()
        if not self.scores:
            return
        score = self.goal_of(self.scores)
        self.report_average(self.average.validated(score, self.task.goal[1]))
        now.stale = 0 if _better(score, now.best, self.task.goal[1]) else now.stale + 1
        if now.stale and score != now.best:
            return
        path = self.processes.from_first(lambda: self.folder.new_path(now.step))
        now.best, now.best_step = score, now.step
        now.best_checkpoint = path.name
        if self.checkpointer.try_to_save():
            self.publish_early(self.folder.model)
        else:  # weights that are not on the disk cannot be the best ones
            now.best, now.best_step, now.best_checkpoint = before

    def publish_early(self, folder: Path) -> None:
        """Write the present weights, or their mean, to be tried while the training goes on."""

        def write() -> None:
            try:
                self.publish(self.model, folder)
            except (OSError, CheckpointError) as error:
                self.progress.warn(f"{error} The training goes on.")

        with self.average.applied():
            self.sharded.with_whole_model(write)

    def report_average(self, has_begun: bool) -> None:
        """Say that the mean of the weights has begun, where it has."""
        if has_begun:
            step = self.counters.step
            self.progress.say(f"from step {step:,} on the mean of the weights is validated")

    def goal_of(self, scores: Mapping[str, float]) -> float:
        """The score that selects the best weights."""
        return scores[self.task.goal[0]]

    def finish(self, reason: str, test: Test) -> Result:
        """Publish the best or the averaged weights, which are in the model afterwards; test them.

        Where the process ends before result.json is written, a resumed run does all of this again.
        """
        self.checkpointer.save_unless_saved()
        self.checkpointer.prune()  # a process that was killed may have saved and not pruned
        if self.report.meters.sums:
            self.report.log(self.epochs, self.learning_rate, self.norm)
        if self.last_is_best:
            self.average.put_into_model()
        self.sharded.gather_on_first()
        return self.processes.from_first(lambda: self.publish_final(reason, test))

    def publish_final(self, reason: str, test: Test) -> Result:
        """Write model/, and score the test data."""
        counters, weights = self.counters, self.load_published()
        if averaged := self.checkpointer.to_average():
            self.scores = self.measure()
            names = [path.name for path in averaged]
            self.report.validated(self.scores, {"average": names})
        self.publish(self.model, self.folder.model)
        self.progress.say(f"finished after {reason}: {weights} are in {self.folder.model}")
        test_scores, signatures = self.test(test)
        self.model.eval()
        return Result(
            reason,
            weights,
            counters.step,
            counters.tokens,
            counters.seconds,
            counters.best,
            counters.best_step,
            finite(self.scores),
            finite(test_scores),
            signatures,
        )

    @property
    def last_is_best(self) -> bool:
        """Whether the last weights are the best; without validation they are."""
        counters = self.counters
        return not counters.best_checkpoint or counters.best_step == counters.step

    def load_published(self) -> str:
        """Fill the model with what is published: the mean of the last checkpoints, or the best.

        Where the last weights are the best, the model has them. `scores` are those of the best
        weights afterwards.

        Returns:
            Which weights they are, in words.
        """
        counters, last = self.counters, f"the weights of step {self.counters.step}"
        if checkpoints := self.checkpointer.to_average():
            load_weights(self.model, checkpointing.average(checkpoints))
            return f"the mean weights of {', '.join(path.name for path in checkpoints)}"
        if self.last_is_best:
            return last
        try:
            path = self.folder.checkpoints / counters.best_checkpoint
            best = checkpointing.average([path])
            scores = read_json(path / FACTS, checkpointing.Facts, finite=False).scores
        except CheckpointError as error:
            self.progress.warn(f"{error} The weights of the last step are published instead.")
            return last
        load_weights(self.model, best)
        self.scores = scores
        return f"the weights of step {counters.best_step}"

    def saved_and_paused(self) -> Paused:
        """Save what is not saved yet, and score the present weights.

        The score is not part of the run: it neither selects weights nor ends the training.
        """
        self.checkpointer.save_unless_saved()
        counters, scores = self.counters, self.scores
        if counters.validated != counters.step:
            with self.average.applied():
                scores = self.measure()
        best = counters.best
        if scores and _better(score := self.goal_of(scores), best, self.task.goal[1]):
            best = score
        return Paused(counters.step, counters.tokens, self.task.goal, best)

    def saved_and_stopped(self) -> Interrupted:
        """After a signal: save what is not saved yet, and say how to go on."""
        self.checkpointer.save_unless_saved()
        return Interrupted(
            f"stopped at step {self.counters.step:,}, which is saved. "
            f"Go on with: regard resume {self.folder.path}",
            self.processes.maximum(self.interruption.code),
        )


def finite(scores: Mapping[str, float]) -> dict[str, float | None]:
    """The scores, with None for those that are infinite or NaN."""
    return {name: score if math.isfinite(score) else None for name, score in scores.items()}


def _better(score: float, best: float | None, direction: str) -> bool:
    """Whether a score is finite and better than the best one; direction: "max" or "min"."""
    if not math.isfinite(score):
        return False
    return best is None or (score > best if direction == "max" else score < best)


# ---- the state of a training, restored exactly


def rng_tensors() -> dict[str, Tensor]:
    """The state of torch's generators, as uint8."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states |= {f"cuda{i}": state for i, state in enumerate(torch.cuda.get_rng_state_all())}
    return states


def rng_facts() -> dict[str, Any]:
    """The state of Python's and numpy's generators, for JSON: tasks may draw from them."""
    kind, keys, *rest = np.random.get_state(legacy=True)
    return {"python": random.getstate(), "numpy": [kind, np.asarray(keys).tolist(), *rest]}


def restore_rng(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Put all generators back; GPUs that were not there when they were stored keep their state."""
    torch.set_rng_state(tensors["cpu"])
    if torch.cuda.is_available():
        for device in range(torch.cuda.device_count()):
            if (name := f"cuda{device}") in tensors:
                torch.cuda.set_rng_state(tensors[name], device)
    version, keys, gauss = facts["python"]
    random.setstate((version, tuple(keys), gauss))
    kind, keys, *rest = facts["numpy"]
    np.random.set_state((kind, np.array(keys, np.uint32), *rest))


@contextmanager
def isolated_rng() -> Iterator[None]:
    """Random numbers that are drawn inside leave the generators as they were."""
    tensors, facts = rng_tensors(), rng_facts()
    try:
        yield
    finally:
        restore_rng(tensors, facts)


def start_run(loop: Loop, seed: int) -> None:
    """Start a training from its first step, with a checkpoint before it."""
    loop.processes.seed(seed)
    resolved = resolve(loop.options.precision, loop.model)
    # The processes may run on different machines: the first one's counts.
    loop.precision = loop.processes.from_first(lambda: resolved)
    loop.progress.say(description(loop.options, loop.precision))
    _open(loop, 0)
    loop.checkpointer.save()


def _open(loop: Loop, length: int) -> None:
    """Open metrics.jsonl, which has so many bytes, and what writes checkpoints."""
    log = None
    if loop.processes.first:
        tensorboard, step = loop.options.tensorboard, loop.counters.step
        log = MetricsLog(loop.folder.path, length, tensorboard=tensorboard, step=step)
    loop.report = Report(log, loop.progress, loop.items, loop.counters, loop.callbacks)
    loop.checkpointer = checkpointing.Checkpointer(
        loop.folder,
        loop.options.checkpoints,
        loop.counters,
        lambda: gather(loop),
        loop.progress.warn,
        loop.callbacks,
        loop.processes,
    )


def gather(loop: Loop) -> tuple[checkpointing.Tables, checkpointing.Facts]:
    """All that `restore` needs: tensors by file and name, and facts for JSON."""
    groups = {
        "optimizer": named_state(loop.optimizer, loop.sharded.trained),
        "carry": loop.carry.tensors() if loop.carry is not None else {},
        "random": rng_tensors(),
        "meters": loop.report.meters.sums,
    }
    memory = {f"{group}/{name}": t for group, ts in groups.items() for name, t in ts.items()}
    facts = checkpointing.Facts(
        identity=loop.identity,
        counters=loop.counters,
        position=loop.batches.position(),
        precision=loop.precision,
        scores=loop.scores,
        learning_rate=loop.learning_rate,
        norm=loop.norm,
        counts=loop.report.meters.counts,
        metrics_bytes=loop.report.length(),
        random=rng_facts(),
        machine=_machine(loop.processes),
    )
    tables = {**_weights(loop), "memory": memory}
    averaged = loop.average.tensors()
    return tables | ({checkpointing.AVERAGED: averaged} if averaged else {}), facts


def _weights(loop: Loop) -> checkpointing.Tables:
    """The state of the model: what is trained, and what is frozen, where something is."""
    state = loop.sharded.local_state()
    parameters = loop.model.named_parameters(remove_duplicate=False)
    names = {name for name, parameter in parameters if not parameter.requires_grad}
    frozen = {name: tensor for name, tensor in state.items() if name in names}
    trained = {name: tensor for name, tensor in state.items() if name not in names}
    return {"weights": trained, checkpointing.FROZEN: frozen} if frozen else {"weights": trained}


def restore(loop: Loop, checkpoint: checkpointing.Checkpoint) -> None:
    """Restore the training that `gather` stored: it continues after the checkpoint's step."""
    facts, memory = checkpoint.facts, _grouped(checkpoint.tensors["memory"])
    loop.sharded.load(checkpoint.weights)
    loop.counters = loop.average.counters = facts.counters
    loop.average.restore(
        loop.sharded.local_parts(checkpoint.tensors.get(checkpointing.AVERAGED, {}))
    )
    state = loop.sharded.local_parts(memory.get("optimizer", {}))
    restore_state(loop.optimizer, loop.sharded.trained, state)
    loop.batches.restore(facts.position)
    loop.precision, loop.scores = facts.precision, facts.scores
    loop.learning_rate, loop.norm = facts.learning_rate, facts.norm
    if "carry" in memory:
        loop.carry = _carry(loop, memory["carry"])
    _open(loop, facts.metrics_bytes)
    sums = memory.get("meters", {})
    loop.report.meters.sums = {name: value.to(loop.device) for name, value in sums.items()}
    loop.report.meters.counts = facts.counts
    loop.checkpointer.resumed(checkpoint.path)
    if "random" in memory:
        restore_rng(memory["random"], facts.random)
    else:  # another number of processes has saved it
        loop.processes.seed(facts.identity["seed"] + loop.counters.step)
    loop.progress.say(f"going on from {checkpoint.path} (step {loop.counters.step:,})")
    before = {"processes": 1, **facts.machine}
    for name, now in _machine(loop.processes).items():
        if before.get(name) != now:
            loop.progress.warn(
                f"{name} was {before.get(name)!r} and is {now!r}: the result will be as good, but "
                "not equal in every bit."
            )


def _carry(loop: Loop, tensors: dict[str, Tensor]) -> Any:
    """The carried state with the saved values; a state of its kind comes from a first batch."""
    position = loop.batches.position()
    with isolated_rng(), torch.no_grad(), casting(loop.precision, loop.device):
        _, carry = loop.sharded.losses(next(loop.batches), None)
    loop.batches.restore(position)
    own_rows: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        rows = loop.processes.rows(tensor.size(0))
        own_rows[name] = tensor[rows.start : rows.stop].to(loop.device)
    return carry.with_tensors(own_rows)


def _grouped(memory: dict[str, Tensor]) -> checkpointing.Tables:
    """The tensors of `memory.safetensors` by group and name, from `group/name` -> tensor."""
    groups: checkpointing.Tables = {}
    for full, tensor in memory.items():
        group, _, name = full.partition("/")
        groups.setdefault(group, {})[name] = tensor
    return groups


def _machine(processes: Processes) -> dict[str, Any]:
    """What the last bit of a result depends on beside the recipe."""
    return {
        "regard": __version__,
        "torch": torch.__version__,
        "processor": platform.machine(),
        "threads": torch.get_num_threads(),
        "processes": processes.size,
    }
