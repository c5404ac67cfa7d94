"""The loop: update, log, validate, checkpoint.

`Loop.run` and `Updates.apply_update` are the whole of it. `training_state` starts it, and restores
it to exactly where it stopped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from regard.checkpoints.filling import load_weights
from regard.decoding import cuda_graphs
from regard.errors import CheckpointError, ConfigError, RegardError
from regard.metrics.score import NamedScore
from regard.training.averaging import average
from regard.training.callbacks import Callback, Update
from regard.training.checkpointing import Checkpointer, RunFolder
from regard.training.counters_and_rng import isolated_rng
from regard.training.interrupt import Interrupted, Interruption, Paused, Stopped
from regard.training.options import TrainingOptions
from regard.training.progress import Progress
from regard.training.report import Report
from regard.training.result import Result
from regard.training.schedules import ScheduleStep, schedule
from regard.training.stop_conditions import fraction, reason_to_end
from regard.training.task import Task
from regard.training.updates import NonFiniteError, Updates
from regard.training.weight_average import WeightAverage

Test = Callable[[], Sequence[NamedScore]]


def no_test() -> Sequence[NamedScore]:
    """The scores where there are no test data."""
    return ()


class Loop(Updates):
    """One training. All that changes while it runs is here, and all of it is in a checkpoint.

    `training_state.start_run` or `training_state.restore` comes before `run`.
    """

    report: Report
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
        super().__init__(task, options)
        self.folder, self.identity = folder, identity
        self.publish, self.progress, self.interruption = publish, progress, interruption
        self.callback = callback
        self.schedule = schedule(options.schedule)
        self.scores: dict[str, float] = {}
        self.average = WeightAverage(self.sharded.trained, options.averaging, self.counters)

    def run(self, test: Test = no_test, pause_at: float | None = None) -> Result:
        """Update after update until a limit is reached; then score the test data.

        pause_at: the fraction of the training after which it saves and stops.

        Raises:
            Interrupted: after a signal, when the training is saved.
            Paused: at `pause_at`.
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
                if self.processes.maximum(self.interruption.code):
                    raise Stopped
                if pause_at is not None and self.fraction >= pause_at:
                    raise self.saved_and_paused()
                self.update()
        except Stopped:
            raise self.saved_and_stopped() from None
        finally:
            self.report.close()

    def update(self) -> None:
        """One update, and what is told of it."""
        self.told_of_average(self.average.begin_if_due())
        try:
            applied = self.apply_update()
        except NonFiniteError as error:
            good = self.folder.saved()[-1]  # the first is written before any update
            raise NonFiniteError(
                f"{error}; the last good checkpoint is {good}. A lower `learning_rate`, a lower "
                "`clip`, a longer `warmup` or float32 precision may help."
            ) from None
        self.average.add()
        at = self.counters
        self.report.add(applied.losses, applied.totals, applied.batches)
        if at.update % self.options.log_every == 0:
            self.report.log(self.epochs, self.learning_rate, self.norm)
        self.report.show_if_due(self.epochs, self.fraction, self.learning_rate)
        self.callback.on_update(Update(at.update, self.epochs, self.learning_rate, self.norm))

    def scheduled_rate(self) -> float:
        """The peak rate, times what the schedule says."""
        at = self.counters
        total = at.update / self.fraction if self.fraction else math.inf
        step = ScheduleStep(at.update, self.batches.epoch, total)
        return self.options.optimizer.learning_rate * self.schedule(step)

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
        return self.sharded.with_whole_model(self.measured)

    def measured(self) -> dict[str, float]:
        """The same, in the first process."""
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
        with self.average.applied():
            self.scores = self.measure()
        self.report.validated(self.scores, {"epoch": self.epochs, self.items: at.tokens})
        at.validated, at.validated_epochs = at.update, int(self.epochs)
        if not self.scores:
            return
        score = self.goal_of(self.scores)
        self.told_of_average(self.average.validated(score, self.task.goal[1]))
        if not _better(score, at.best, self.task.goal[1]):
            at.stale += 1
            return
        at.stale, at.best, at.best_update = 0, score, at.update
        at.best_checkpoint = self.processes.from_first(lambda: self.folder.new_path(at.update).name)
        if self.checkpointer.try_to_save():
            with self.average.applied():
                self.sharded.with_whole_model(self.publish_early)
        else:  # weights that are not on the disk cannot be the best ones
            at.best, at.best_update, at.best_checkpoint = before

    def publish_early(self) -> None:
        """Write the best weights so far into model/, to be tried while the training goes on."""
        try:
            self.publish(self.model, self.folder.model)
        except (OSError, CheckpointError) as error:
            self.progress.warn(f"{error} The training goes on.")

    def told_of_average(self, begins: bool) -> None:
        if begins:
            update = self.counters.update
            self.progress.say(f"from update {update:,} on the mean of the weights is validated")

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
        self.checkpointer.save_unless_saved()
        self.checkpointer.prune()  # a process that was killed may have saved and not pruned
        if self.report.meters.sums:
            self.report.log(self.epochs, self.learning_rate, self.norm)
        self.put_last_mean()
        self.sharded.gather_on_first()
        return self.processes.from_first(lambda: self.publish_final(reason, test))

    def publish_final(self, reason: str, test: Test) -> Result:
        """Write model/, and score the test data."""
        at, weights = self.counters, self.take_published()
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

    def put_last_mean(self) -> None:
        """Fill the model with the mean that `average` has, where the last weights are the best."""
        at = self.counters
        if not at.best_checkpoint or at.best_update == at.update:
            self.average.put_into_model()

    def take_published(self) -> str:
        """Fill the model with what is published: the mean of the last checkpoints, or the best.

        Without validation the last weights are the best; `put_last_mean` comes before.
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

    def saved_and_paused(self) -> Paused:
        """Save what is not saved yet, and score the present weights.

        The score is not part of the run: it neither selects weights nor ends the training.
        """
        self.checkpointer.save_unless_saved()
        at, scores = self.counters, self.scores
        if at.validated != at.update:
            with self.average.applied():
                scores = self.measure()
        best = at.best
        if scores and _better(score := self.goal_of(scores), best, self.task.goal[1]):
            best = score
        return Paused(at.update, at.tokens, self.task.goal, best)

    def saved_and_stopped(self) -> Interrupted:
        """After a signal: save what is not saved yet, and say how to go on."""
        self.checkpointer.save_unless_saved()
        return Interrupted(
            f"stopped at update {self.counters.update:,}, which is saved. "
            f"Go on with: regard resume {self.folder.path}",
            self.processes.maximum(self.interruption.code),
        )


def _finite(scores: Mapping[str, float]) -> dict[str, float | None]:
    """The scores, with None for those that are infinite or NaN."""
    return {name: score if math.isfinite(score) else None for name, score in scores.items()}


def _better(score: float, best: float | None, direction: str) -> bool:
    if not math.isfinite(score):
        return False
    return best is None or (score > best if direction == "max" else score < best)
