"""The loop: fetch, losses, backward, clip, step, log, validate, checkpoint.

`Loop.run` and `Loop.update` are the whole of it. It knows a task by its losses, and nothing about
models or text. How it goes on exactly where it stopped is in snapshot.py.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from regard.checkpoints.filling import load_weights
from regard.decoding import cuda_graphs
from regard.errors import CheckpointError, ConfigError, RegardError
from regard.ops import WeightCopies, weight_copies
from regard.training.activation_checkpointing import activation_checkpointing, blocks_of
from regard.training.averaging import average
from regard.training.compiling import Compiled, compiled_blocks, compiling
from regard.training.folder import RunFolder, read_checkpoint
from regard.training.interrupt import Interrupted, Interruption, Stopped
from regard.training.limits import epochs_done, fraction, reason_to_end
from regard.training.memory import Counters, isolated_random
from regard.training.optimizers import clip, gradient_norm, optimizer, trained
from regard.training.options import TrainingOptions
from regard.training.precision import casting
from regard.training.progress import Progress
from regard.training.report import Report
from regard.training.saver import Saver
from regard.training.schedules import Moment, schedule

Losses = dict[str, tuple[Tensor, int]]


class Task(Protocol):
    """What the loop needs of a task. `carry` is None or a `State` for the next batch, detached.

    items: what its first loss counts: "tokens", "examples".
    usual: how many items of a loss a batch has on average, where the objective divides by that.
    next_words: a second objective, the prediction of the next token, where the task has it.
    """

    model: Any
    items: str = "tokens"
    usual: Mapping[str, float] = MappingProxyType({})
    next_words: Any = None

    @property
    def goal(self) -> tuple[str, str]:
        """The score that tells which weights are best, and "max" or "min"."""

    def counts(self, batch: Any) -> dict[str, int]:
        """What each loss is divided by, known before anything is computed."""

    def losses(self, batch: Any, carry: Any) -> tuple[Losses, Any]:
        """Each loss as a sum over its items and their count."""

    def train_batches(self) -> Any:
        """The `regard.data.Batches` to learn from."""

    def validate(self) -> dict[str, float]:
        """The scores on held-out data; empty where there is none."""


class NonFiniteError(RegardError):
    """A loss or a gradient became infinite or not a number; the update was not applied."""


class Loop:
    """One training. All that changes while it runs is here, and all of it is in a checkpoint.

    `snapshot.begin` or `snapshot.restore` comes before `run`.
    """

    precision: str
    report: Report
    saver: Saver

    def __init__(
        self,
        task: Task,
        options: TrainingOptions,
        place: RunFolder,
        identity: dict[str, Any],
        publish: Callable[[Any, Path], None],
        progress: Progress,
        interruption: Interruption,
    ):
        if options.threads:
            torch.set_num_threads(options.threads)
        self.task, self.options, self.place, self.identity = task, options, place, identity
        self.publish, self.progress, self.interruption = publish, progress, interruption
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

    def blocks(self) -> tuple[list[nn.Module], list[Compiled]]:
        """Those with activation checkpointing, and those that are compiled."""
        again = self.options.activation_checkpointing
        if self.options.compile:
            return [], compiled_blocks(self.model, self.device, checkpointing=again)
        return blocks_of(self.model) if again else [], []

    def run(self) -> dict[str, Any]:
        """Update after update until a limit is reached; gives what result.json holds.

        A signal saves and raises Interrupted.
        """
        self.model.train()
        try:
            while True:
                if self.validation_is_due():
                    self.validate()
                if reason := reason_to_end(self.options, self.counters, self.epochs):
                    return self.finish(reason)
                self.saver.save_if_due(self.counters.update, self.counters.best_checkpoint)
                if self.interruption.code:
                    raise Stopped
                self.update()
        except Stopped:
            raise self.saved_and_stopped() from None
        finally:
            self.report.record.close()

    def update(self) -> None:
        """One step of the optimizer, over `accumulate` batches weighed as one large batch."""
        began = time.perf_counter()
        batches = self.fetch()
        totals: Counter[str] = Counter()
        for batch in batches:
            totals.update(self.task.counts(batch))
        divisors = self.divisors(totals, len(batches))
        with weight_copies(self.weight_copies):
            losses = [self.backward(batch, divisors) for batch in batches]
            self.refuse_non_finite(losses, gradient_norm(self.optimizer))
            clip(self.optimizer, self.norm, self.options.optimizer.clip)
            self.advance(totals)
            self.optimizer.step()
        self.optimizer.zero_grad()
        self.report.add(losses, totals, batches)
        at = self.counters
        at.seconds += time.perf_counter() - began
        if at.update % self.options.log_every == 0:
            self.report.log(at, self.epochs, self.learning_rate, self.norm)
        self.report.show_if_due(at, self.epochs, self.fraction, self.learning_rate)

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

        Batches of rows of one length have few words or many: divided by their own number, a word
        of a short sentence would weigh several times as much as one of a long sentence.
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

    def refuse_non_finite(self, losses: list[dict[str, Tensor]], norm: Tensor) -> None:
        """The one look at the device in an update: the gradient's norm and the losses together."""
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
        good = self.place.all()[-1]  # there is always one: the first is written before any update
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
        moment = Moment(at.update, self.batches.epoch, total)
        self.learning_rate = self.options.optimizer.learning_rate * self.schedule(moment)
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
        """Every so many updates or epochs, and at the end; once for an update."""
        at, every = self.counters, self.options.validation.every
        if at.update == at.validated:
            return False
        by_count = at.update % every == 0 if every else int(self.epochs) > at.validated_epochs
        return by_count or bool(reason_to_end(self.options, at, self.epochs))

    def measure(self) -> dict[str, float]:
        """The task's scores. Draws no random number of the training's, and may be left at once."""
        self.model.eval()
        try:
            with isolated_random(), torch.no_grad(), self.interruption.leaving_at_once():
                return self.task.validate()
        finally:
            cuda_graphs.forget(self.model)
            self.model.train()

    def validate(self) -> None:
        """Measure; where the score is the best so far, keep and publish these weights."""
        at = self.counters
        before = at.best, at.best_update, at.best_checkpoint
        self.scores = self.measure()
        self.report.validated(at.update, self.scores, {"epoch": self.epochs, self.items: at.tokens})
        at.validated, at.validated_epochs = at.update, int(self.epochs)
        if not self.scores:
            return
        score = self.goal_of(self.scores)
        if not _better(score, at.best, self.task.goal[1]):
            at.stale += 1
            return
        at.stale, at.best, at.best_update = 0, score, at.update
        at.best_checkpoint = self.place.place(at.update).name
        if self.saver.try_to_save(at.update, at.best_checkpoint):
            self.publish_early()
        else:  # weights that are not on the disk cannot be the best that is kept
            at.best, at.best_update, at.best_checkpoint = before

    def publish_early(self) -> None:
        """The best weights so far, for whoever wants to try them while the training goes on."""
        try:
            self.publish(self.model, self.place.model)
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

    def finish(self, reason: str) -> dict[str, Any]:
        """Publish the best or the averaged weights, and leave them in the model, ready to use."""
        at = self.counters
        self.saver.save_unless_saved(at.update, at.best_checkpoint)
        self.saver.prune(at.best_checkpoint)
        if self.report.meters.sums:
            self.report.log(at, self.epochs, self.learning_rate, self.norm)
        averaged = self.saver.to_average()
        weights = self.take_published()
        if averaged:
            self.scores = self.measure()
            names = [path.name for path in averaged]
            self.report.validated(at.update, self.scores, {"average": names})
        self.publish(self.model, self.place.model)
        self.model.eval()
        self.progress.say(f"finished after {reason}: {weights} are in {self.place.model}")
        return {
            "reason": reason,
            "weights": weights,
            **{key: getattr(at, key) for key in ("update", "tokens", "seconds")},
            **{key: getattr(at, key) for key in ("best", "best_update")},
            "scores": self.scores,
        }

    def take_best(self) -> str:
        """Fill the model with the weights that scored best; the last ones without validation."""
        at = self.counters
        if not at.best_checkpoint or at.best_update == at.update:
            return f"the weights of update {at.update}"
        try:
            tensors, _ = read_checkpoint(self.place.checkpoints / at.best_checkpoint)
        except CheckpointError as error:
            self.progress.warn(f"{error} The weights of the last update are published instead.")
            return f"the weights of update {at.update}"
        load_weights(self.model, tensors["weights"])
        return f"the weights of update {at.best_update}"

    def take_published(self) -> str:
        """Fill the model with what is published: the mean of the last checkpoints, or the best."""
        checkpoints = self.saver.to_average()
        if not checkpoints:
            return self.take_best()
        load_weights(self.model, average(checkpoints))
        return f"the mean weights of {', '.join(path.name for path in checkpoints)}"

    def saved_and_stopped(self) -> Interrupted:
        """After a signal: save what is not saved yet, and say how to go on."""
        at = self.counters
        self.saver.save_unless_saved(at.update, at.best_checkpoint)
        return Interrupted(
            f"stopped at update {at.update:,}, which is saved. "
            f"Go on with: regard resume {self.place.path}",
            self.interruption.code,
        )


def _better(score: float, best: float | None, direction: str) -> bool:
    if not math.isfinite(score):
        return False
    return best is None or (score > best if direction == "max" else score < best)
