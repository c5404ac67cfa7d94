"""The learning-rate range test (Smith 2017, section 3.3): the loss while the rate grows.

The rate grows exponentially from update to update (Smith: linearly; exponentially as in fastai),
with the optimizer, clipping, accumulation and dropout of the training. What is suggested follows
two rules of fastai:

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
from regard.training.task import Task
from regard.training.updates import Applied, NonFiniteError, Updates

LEAST_UPDATES = 20
SMOOTHING = 0.98  # of the mean loss: fastai's
DIVERGED = 4.0  # times the lowest smoothed loss so far: fastai's
LEFT_OUT = 10, 5  # a tenth of the updates at the start, and the last five: fastai's
FALL = 1e-3  # of the loss: what falls less says nothing


@dataclass(frozen=True)
class RangeTest:
    """The rate and the loss of each update; the loss is the mean over the update's items.

    updates: how many there would have been.
    diverged: whether the test stopped because the loss grew or was not finite.
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
        rates, losses = self._judged()
        slopes = [
            (after - before) / math.log(rates[i + 1] / rates[i])
            for i, (before, after) in enumerate(zip(losses, losses[1:], strict=False))
        ]
        return rates[slopes.index(min(slopes))] if slopes else None

    @property
    def minimum(self) -> float | None:
        """The rate with the lowest smoothed loss; None where the loss never falls."""
        rates, losses = self._judged()
        return rates[losses.index(min(losses))] if losses else None

    @property
    def suggestion(self) -> float | None:
        """A tenth of `minimum`, or `steepest` if lower; None where the loss never falls."""
        if self.minimum is None or self.steepest is None:
            return None
        return min(self.minimum / 10, self.steepest)

    def _judged(self) -> tuple[Sequence[float], Sequence[float]]:
        """Rates and smoothed losses without the first, which say little, and the last few.

        Empty where the loss does not fall.
        """
        part, last = LEFT_OUT
        chosen = slice(self.updates // part, max(0, len(self.rates) - last))
        rates, losses = self.rates[chosen], self.smoothed[chosen]
        falls = losses and min(losses) < (1 - FALL) * losses[0]
        return (rates, losses) if falls else ((), ())


def smoothed(losses: Sequence[float]) -> list[float]:
    """m_u / (1 - b^u) with m_u = b m_(u-1) + (1 - b) loss_u, for u from 1."""
    mean, found = 0.0, []
    for update, loss in enumerate(losses, 1):
        mean = SMOOTHING * mean + (1 - SMOOTHING) * loss
        found.append(mean / (1 - SMOOTHING**update))
    return found


class GrowingRate(Updates):
    """Updates whose rate grows exponentially from `start` to `end`."""

    def __init__(
        self, task: Task, options: TrainingOptions, start: float, end: float, updates: int
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
        ConfigError: they are no range, or there are too few updates.
    """
    if not 0 < start < end < math.inf:
        raise ConfigError(
            f"`start` and `end` must be positive rates, `start` the lower one, but are {start:g} "
            f"and {end:g}."
        )
    if updates < LEAST_UPDATES:
        raise ConfigError(
            f"`test_updates` must be at least {LEAST_UPDATES}, but is {updates}: fewer losses say "
            "nothing."
        )


def range_test(
    task: Task,
    options: TrainingOptions,
    progress: Progress,
    *,
    seed: int,
    start: float,
    end: float,
    updates: int,
) -> RangeTest:
    """Train `task.model` while the learning rate grows; nothing is written.

    Args:
        options: of the training; its learning rate, schedule and end have no effect.
        start, end: the rates of the first and the last update.

    Raises:
        ConfigError: see `check_range`.
    """
    check_range(start, end, updates)
    torch.manual_seed(seed)
    made = GrowingRate(task, options, start, end, updates)
    made.precision = resolve(options.precision, task, made.batches, made.device)
    made.model.train()
    rates: list[float] = []
    losses: list[float] = []
    shown, diverged = time.monotonic(), False
    while not diverged and len(rates) < updates:
        try:
            losses.append(_mean(made.apply_update()))
        except NonFiniteError:
            diverged = True
            break
        rates.append(made.learning_rate)
        means = smoothed(losses)
        diverged = means[-1] > DIVERGED * min(means)
        if time.monotonic() - shown > progress.every:
            shown = time.monotonic()
            progress.show(_status(made, means[-1]))
    made.model.eval()
    return RangeTest(tuple(rates), tuple(losses), updates, diverged)


def _mean(applied: Applied) -> float:
    """The sum over losses of the mean of each over its items."""
    sums: dict[str, float] = {}
    for one in applied.losses:
        for name, value in one.items():
            sums[name] = sums.get(name, 0.0) + float(value)
    return sum(value / max(1, applied.totals[name]) for name, value in sums.items())


def _status(made: GrowingRate, loss: float) -> Status:
    at = made.counters
    done = at.update / made.updates
    rate, left = at.tokens / max(1e-9, at.seconds), at.seconds * (1 - done) / done
    so_far = (at.update, made.epochs, done, rate, loss, made.learning_rate, left)
    return Status(*so_far, items=made.items)
