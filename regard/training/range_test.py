"""The learning-rate range test (Smith 2017, section 3.3): the loss while the rate grows.

The rate grows exponentially from update to update (Smith: linearly; exponentially as in fastai),
with the optimizer, clipping, accumulation and dropout of the training. The suggestion is the lower
one of two rates, which are rules of fastai:

    steepest        the rate at which the smoothed loss falls fastest over the logarithm of the rate
    minimum / 10    a tenth of the rate with the lowest smoothed loss

https://arxiv.org/abs/1506.01186
https://docs.fast.ai/callback.schedule.html
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from regard.errors import ConfigError
from regard.training.options import TrainingOptions
from regard.training.precision import resolve
from regard.training.progress import Progress, Status
from regard.training.task import Trainable
from regard.training.updates import AppliedUpdate, NonFiniteError, Updates

MIN_UPDATES = 20
SMOOTHING = 0.98  # the decay of the moving average: fastai's
DIVERGENCE = 4.0  # the test ends at so many times the lowest smoothed loss: fastai's
SKIPPED_START = 10  # the first 1/10 of the updates is not considered: fastai's
SKIPPED_END = 5  # nor are the last five updates: fastai's
MIN_FALL = 1e-3  # relative: if the loss falls less, nothing is suggested


@dataclass(frozen=True)
class RangeTest:
    """The rate and the loss of each update; the loss is the mean over the update's items.

    updates: the number of updates that the test was to have.
    diverged: whether the test stopped early because the loss grew or was not finite.
    """

    rates: tuple[float, ...]
    losses: tuple[float, ...]
    updates: int
    diverged: bool

    @property
    def smoothed(self) -> list[float]:
        """The exponential moving average of the losses, corrected for its start."""
        return smoothed(self.losses)

    @property
    def steepest(self) -> float | None:
        """The rate at which the smoothed loss falls fastest; None where it never falls."""
        rates, losses = self._considered()
        derivatives = [
            (after - before) / math.log(rates[i + 1] / rates[i])
            for i, (before, after) in enumerate(zip(losses, losses[1:], strict=False))
        ]
        return rates[derivatives.index(min(derivatives))] if derivatives else None

    @property
    def minimum(self) -> float | None:
        """The rate with the lowest smoothed loss; None where the loss never falls."""
        rates, losses = self._considered()
        return rates[losses.index(min(losses))] if losses else None

    @property
    def suggestion(self) -> float | None:
        """A tenth of `minimum`, or `steepest` if lower; None where the loss never falls."""
        if self.minimum is None or self.steepest is None:
            return None
        return min(self.minimum / 10, self.steepest)

    def _considered(self) -> tuple[Sequence[float], Sequence[float]]:
        """Rates and smoothed losses without the first tenth and the last few updates.

        Both are empty if the loss does not fall.
        """
        start, end = self.updates // SKIPPED_START, max(0, len(self.rates) - SKIPPED_END)
        chosen = slice(start, end)
        rates, losses = self.rates[chosen], self.smoothed[chosen]
        falls = losses and min(losses) < (1 - MIN_FALL) * losses[0]
        return (rates, losses) if falls else ((), ())


def smoothed(losses: Sequence[float]) -> list[float]:
    """The bias-corrected moving average: m_u / (1 - b^u), m_u = b m_(u-1) + (1 - b) loss_u."""
    mean, corrected = 0.0, []
    for update, loss in enumerate(losses, 1):
        mean = SMOOTHING * mean + (1 - SMOOTHING) * loss
        corrected.append(mean / (1 - SMOOTHING**update))
    return corrected


class GrowingRate(Updates):
    """Updates whose rate grows exponentially from `start` to `end`."""

    def __init__(
        self, task: Trainable, options: TrainingOptions, start: float, end: float, updates: int
    ):
        super().__init__(task, options)
        self.start, self.end, self.updates = start, end, updates

    def scheduled_rate(self) -> float:
        """start (end / start)^((u - 1) / (updates - 1)) for update u, from 1."""
        share = (self.counters.update - 1) / (self.updates - 1)
        return self.start * (self.end / self.start) ** share


def check_range(start: float, end: float, updates: int) -> None:
    """Check the options of a range test.

    Raises:
        ConfigError: not 0 < start < end < infinity, or there are too few updates.
    """
    if not 0 < start < end < math.inf:
        raise ConfigError(
            f"`start` and `end` must be positive rates, `start` the lower one, but are {start:g} "
            f"and {end:g}."
        )
    if updates < MIN_UPDATES:
        raise ConfigError(
            f"`num_steps` must be at least {MIN_UPDATES}, but is {updates}: too few losses "
            "give no curve."
        )


def range_test(
    task: Trainable,
    options: TrainingOptions,
    progress: Progress,
    *,
    seed: int,
    start: float,
    end: float,
    updates: int,
) -> RangeTest:
    """Train `task.module` while the learning rate grows; nothing is written.

    Args:
        options: the options of the training; the learning rate, the schedule and the limits of the
            training have no effect.
        seed: the seed of the random numbers.
        start, end: the learning rates of the first and the last update.
        updates: the number of updates, if the loss does not diverge.

    Raises:
        ConfigError: see `check_range`.
    """
    check_range(start, end, updates)
    torch.manual_seed(seed)
    updating = GrowingRate(task, options, start, end, updates)
    compute = updating.sharded.losses
    updating.precision = resolve(options.precision, compute, updating.model, updating.batches)
    updating.model.train()
    rates: list[float] = []
    losses: list[float] = []
    shown, diverged = time.monotonic(), False
    while not diverged and len(rates) < updates:
        try:
            losses.append(_mean(updating.apply_update()))
        except NonFiniteError:
            diverged = True
            break
        rates.append(updating.learning_rate)
        means = smoothed(losses)
        diverged = means[-1] > DIVERGENCE * min(means)
        if time.monotonic() - shown > progress.every:
            shown = time.monotonic()
            progress.show(_status(updating, means[-1]))
    updating.model.eval()
    return RangeTest(tuple(rates), tuple(losses), updates, diverged)


def _mean(applied: AppliedUpdate) -> float:
    """The sum of the losses, each averaged over its items."""
    sums: dict[str, float] = {}
    for of_batch in applied.losses:
        for name, value in of_batch.items():
            sums[name] = sums.get(name, 0.0) + float(value)
    return sum(value / max(1, applied.totals[name]) for name, value in sums.items())


def _status(updating: GrowingRate, loss: float) -> Status:
    counters = updating.counters
    fraction, seconds = counters.update / updating.updates, counters.seconds
    return Status(
        counters.update,
        updating.epochs,
        fraction,
        counters.tokens / max(1e-9, seconds),
        loss,
        updating.learning_rate,
        left=seconds * (1 - fraction) / fraction,
        items=updating.items,
    )
