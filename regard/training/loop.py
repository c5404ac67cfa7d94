"""The loop: fetch, losses, backward, clip, step, log, validate, checkpoint.

`Loop.run` and `Loop.update` are the whole of it. It knows a task by its losses, and nothing about
models or text. `training_state` starts it, and restores it to exactly where it stopped.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.checkpoints.filling import load_weights
from regard.decoding import cuda_graphs
from regard.errors import CheckpointError, ConfigError, RegardError
from regard.metrics.score import NamedScore
from regard.ops import WeightCopies, weight_copies
from regard.training.activation_checkpointing import activation_checkpointing, blocks_of
from regard.training.averaging import average
from regard.training.callbacks import Callback, Update
from regard.training.checkpointing import Checkpointer, RunFolder
from regard.training.compiling import CompiledBlock, compiled_blocks, compiling
from regard.training.counters_and_rng import Counters, isolated_rng
from regard.training.interrupt import Interrupted, Interruption, Stopped
from regard.training.optimizers import clip, gradient_norm, optimizer, trained
from regard.training.options import TrainingOptions
from regard.training.precision import casting
from regard.training.progress import Progress
from regard.training.report import TrainingReport
from regard.training.result import Result
from regard.training.schedules import ScheduleStep, schedule
from regard.training.stop_conditions import epochs_done, fraction, reason_to_end
from regard.training.task import Task

Test = Callable[[], Sequence[NamedScore]]


def no_test() -> Sequence[NamedScore]:
    """The scores where there are no test data."""
    return ()


class NonFiniteError(RegardError):
    """A loss or a gradient became infinite or not a number; the update was not applied."""


class Loop:
    """One training. All that changes while it runs is here, and all of it is in a checkpoint.

    `training_state.start_run` or `training_state.restore` comes before `run`.
    """

    precision: str
    report: TrainingReport
    checkpointer: Checkpointer

    def __init__(
        self,
        task: Task,
        options: TrainingOptions,
        folder: RunFolder,
        identity: dict[str, Any],
        publish: Callable[[Any, Path], None],
        progress: Progress,
        interruption: Interruption,
        callback: Callback,
    ):
        if options.threads:
            torch.set_num_threads(options.threads)
        self.task, self.options, self.folder, self.identity = task, options, folder, identity
        self.publish, self.progress, self.interruption = publish, progress, interruption
        self.callback = callback
        self.model: nn.Module = task.model
        self.parameters = list(trained(self.model).values())
        self.optimizer = optimizer(self.model, options.optimizer)
        self.device = self.parameters[0].device
        self.weight_copies = WeightCopies()  # of the weights, for products in bfloat16
        self.checkpointed, self.compiled = self.blocks()
        self.schedule = schedule(options.schedule)
        self.batches = task.train_batches()
        self.counters, self.items = Counters(), task.items
        self.scores: dict[str, float] = {}
        self.carry: Any = None
        self.learning_rate = self.norm = 0.0

    def blocks(self) -> tuple[list[nn.Module], list[CompiledBlock]]:
        """Those with activation checkpointing, and those that are compiled."""
        again = self.options.activation_checkpointing
        if self.options.compile:
            return [], compiled_blocks(self.model, self.device, checkpointing=again)
        return blocks_of(self.model) if again else [], []

    def run(self, test: Test = no_test) -> Result:
        """Update after update until a limit is reached; then score the test data.

        Raises:
            Interrupted: after a signal, when the training is saved.
            NonFiniteError: a loss or a gradient became infinite or NaN.
        """
        self.model.train()
        try:
            while True:
                if self.validation_is_due():
                    self.validate()
                if reason := reason_to_end(self.options, self.counters, self.epochs):
                    return self.finish(reason, test)
                self.checkpointer.save_if_due()
                if self.interruption.code:
                    raise Stopped
                self.update()
        except Stopped:
            raise self.saved_and_stopped() from None
        finally:
            self.report.metrics_log.close()

    def update(self) -> None:
        """One step of the optimizer, over `accumulate` batches that weigh like one large one."""
        began = time.perf_counter()
        batches = self.fetch()
        totals: Counter[str] = Counter()
        for batch in batches:
            totals.update(self.task.counts(batch))
        divisors = self.divisors(totals, len(batches))
        with weight_copies(self.weight_copies):
            losses = [self.backward(batch, divisors) for batch in batches]
            self.check_finite(losses, gradient_norm(self.optimizer))
            clip(self.optimizer, self.norm, self.options.optimizer.clip)
            self.advance(totals)
            self.optimizer.step()
        self.optimizer.zero_grad()
        self.report.add(losses, totals, batches)
        at = self.counters
        at.seconds += time.perf_counter() - began
        if at.update % self.options.log_every == 0:
            self.report.log(self.epochs, self.learning_rate, self.norm)
        self.report.show_if_due(self.epochs, self.fraction, self.learning_rate)
        self.callback.on_update(Update(at.update, self.epochs, self.learning_rate, self.norm))

    def fetch(self) -> list[Any]:
        """The batches of one update; the last update of an epoch may have fewer."""
        at = self.counters
        fetched: list[Any] = []
        while len(fetched) < self.options.accumulate:
            epoch = self.batches.epoch
            fetched.append(next(self.batches))
            at.epoch_batches = at.epoch_batches + 1 if self.batches.epoch == epoch else 1
            if at.epoch_batches >= self.batches.batches_per_epoch:
                break
        return fetched

    def divisors(self, totals: Mapping[str, int], batches: int) -> dict[str, float]:
        """What the losses of an update are divided by: their items, or the usual number of them.

        Where all sequences of a batch have one length, batches differ in their number of tokens:
        divided by its own number, a token of a short sentence would weigh several times as much as
        one of a long sentence.
        """
        usual = self.task.usual
        return {
            name: usual[name] * batches if name in usual else max(1, total)
            for name, total in totals.items()
        }

    def backward(self, batch: Any, divisors: Mapping[str, float]) -> dict[str, Tensor]:
        """Add this batch's part of the gradient of the sum over losses of (sum / divisor)."""
        casts = casting(self.precision, self.device)
        with casts, compiling(self.compiled), activation_checkpointing(self.checkpointed):
            losses, self.carry = self.task.losses(batch, self.carry)
        sums = {name: value for name, (value, _) in losses.items()}
        objective = sum(value / divisors[name] for name, value in sums.items())
        objective.backward()  # type: ignore[union-attr]
        return {name: value.detach() for name, value in sums.items()}

    def check_finite(self, losses: list[dict[str, Tensor]], norm: Tensor) -> None:
        """Read the gradient's norm and the losses together: the one wait for the device."""
        everything = norm + sum(value for one in losses for value in one.values())
        self.norm, total = torch.stack([norm.to(everything), everything]).tolist()
        if math.isfinite(total):
            return
        what, index = f"the norm of the gradient is {self.norm}", len(losses) - 1
        for i, one in reversed(list(enumerate(losses))):
            for name, value in one.items():
                if not value.isfinite():
                    what, index = f"the loss `{name}` is {float(value)}", i
        batch = self.counters.epoch_batches - len(losses) + index + 1
        good = self.folder.saved()[-1]  # the first is written before any update
        raise NonFiniteError(
            f"update {self.counters.update + 1}: {what} at batch {batch} of epoch "
            f"{self.batches.epoch + 1}. The update was not applied; the last good checkpoint is "
            f"{good}. A lower `learning_rate`, a lower `clip`, a longer `warmup` or float32 "
            "precision may help."
        )

    def advance(self, totals: Mapping[str, int]) -> None:
        """Count this update, and set the learning rate that belongs to it."""
        at = self.counters
        at.update += 1
        at.tokens += next(iter(totals.values()), 0)
        total = at.update / self.fraction if self.fraction else math.inf
        step = ScheduleStep(at.update, self.batches.epoch, total)
        self.learning_rate = self.options.optimizer.learning_rate * self.schedule(step)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate

    @property
    def epochs(self) -> float:
        return epochs_done(self.counters, self.batches)

    @property
    def fraction(self) -> float:
        return fraction(self.options, self.counters, self.epochs)

    # ---- validation and the end ------------------------------------------------------------------

    def validation_is_due(self) -> bool:
        """After every so many updates or epochs, and at the end; once for an update."""
        at, every = self.counters, self.options.validation.every
        if at.update == at.validated:
            return False
        by_count = at.update % every == 0 if every else int(self.epochs) > at.validated_epochs
        return by_count or bool(reason_to_end(self.options, at, self.epochs))

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """A block that scores. The random generators stay as they are; a signal interrupts it."""
        self.model.eval()
        try:
            with isolated_rng(), torch.no_grad(), self.interruption.leaving_at_once():
                yield
        finally:
            cuda_graphs.forget(self.model)
            self.model.train()

    def measure(self) -> dict[str, float]:
        """The task's scores on the validation data."""
        with self.measuring():
            return self.task.validate()

    def test(self, test: Test) -> tuple[dict[str, float], dict[str, str]]:
        """The scores of the test data and their signatures; after an error, with a warning, none.

        The weights are published by then: an error in the test data must not make the run one that
        can never be finished.
        """
        try:
            with self.measuring():
                found = test()
        except RegardError as error:
            self.progress.warn(f"the test data were not scored: {error}")
            return {}, {}
        scores = {score.name: score.value for score in found}
        if scores:
            self.report.tested(scores)
        return scores, {score.name: score.signature for score in found}

    def validate(self) -> None:
        """Measure; where the score is the best so far, keep and publish these weights."""
        at = self.counters
        before = at.best, at.best_update, at.best_checkpoint
        self.scores = self.measure()
        self.report.validated(self.scores, {"epoch": self.epochs, self.items: at.tokens})
        at.validated, at.validated_epochs = at.update, int(self.epochs)
        if not self.scores:
            return
        score = self.goal_of(self.scores)
        if not _better(score, at.best, self.task.goal[1]):
            at.stale += 1
            return
        at.stale, at.best, at.best_update = 0, score, at.update
        at.best_checkpoint = self.folder.new_path(at.update).name
        if self.checkpointer.try_to_save():
            self.publish_early()
        else:  # weights that are not on the disk cannot be the best ones
            at.best, at.best_update, at.best_checkpoint = before

    def publish_early(self) -> None:
        """Write the best weights so far into model/, to be tried while the training goes on."""
        try:
            self.publish(self.model, self.folder.model)
        except (OSError, CheckpointError) as error:
            self.progress.warn(f"{error} The training goes on.")

    def goal_of(self, scores: Mapping[str, float]) -> float:
        name = self.task.goal[0]
        if name not in scores:
            raise ConfigError(
                f"the goal must be one of the validation's scores ({', '.join(scores)}), "
                f"but is {name!r}"
            )
        return scores[name]

    def finish(self, reason: str, test: Test) -> Result:
        """Publish the best or the averaged weights, which are in the model afterwards; test them.

        Where the process ends before result.json is written, a resumed run does all of this again.
        """
        at = self.counters
        self.checkpointer.save_unless_saved()
        self.checkpointer.prune()  # a process that was killed may have saved and not pruned
        if self.report.meters.sums:
            self.report.log(self.epochs, self.learning_rate, self.norm)
        weights = self.take_published()
        if averaged := self.checkpointer.to_average():
            self.scores = self.measure()
            names = [path.name for path in averaged]
            self.report.validated(self.scores, {"average": names})
        self.publish(self.model, self.folder.model)
        self.progress.say(f"finished after {reason}: {weights} are in {self.folder.model}")
        tested, signatures = self.test(test)
        self.model.eval()
        end = at.update, at.tokens, at.seconds, at.best, at.best_update
        return Result(reason, weights, *end, _finite(self.scores), _finite(tested), signatures)

    def take_published(self) -> str:
        """Fill the model with what is published: the mean of the last checkpoints, or the best.

        Without validation the last weights are the best.
        """
        at, last = self.counters, f"the weights of update {self.counters.update}"
        if checkpoints := self.checkpointer.to_average():
            load_weights(self.model, average(checkpoints))
            return f"the mean weights of {', '.join(path.name for path in checkpoints)}"
        if not at.best_checkpoint or at.best_update == at.update:
            return last
        try:
            best = average([self.folder.checkpoints / at.best_checkpoint])
        except CheckpointError as error:
            self.progress.warn(f"{error} The weights of the last update are published instead.")
            return last
        load_weights(self.model, best)
        return f"the weights of update {at.best_update}"

    def saved_and_stopped(self) -> Interrupted:
        """After a signal: save what is not saved yet, and say how to go on."""
        self.checkpointer.save_unless_saved()
        return Interrupted(
            f"stopped at update {self.counters.update:,}, which is saved. "
            f"Go on with: regard resume {self.folder.path}",
            self.interruption.code,
        )


def _finite(scores: Mapping[str, float]) -> dict[str, float | None]:
    """The scores, with None for those that are infinite or NaN."""
    return {name: score if math.isfinite(score) else None for name, score in scores.items()}


def _better(score: float, best: float | None, direction: str) -> bool:
    if not math.isfinite(score):
        return False
    return best is None or (score > best if direction == "max" else score < best)
