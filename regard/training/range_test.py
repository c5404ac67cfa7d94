"""The learning-rate range test (Smith 2017, section 3.3): the loss while the rate grows.

The rate grows exponentially from step to step (Smith: linearly; exponentially as in fastai),
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
from regard.training.steps import AppliedStep, NonFiniteError, Steps
from regard.training.task import Trainable

MIN_STEPS = 20
SMOOTHING = 0.98  # the decay of the moving average: fastai's
DIVERGENCE = 4.0  # the test ends at so many times the lowest smoothed loss: fastai's
SKIPPED_START = 10  # the first 1/10 of the steps is not considered: fastai's
SKIPPED_END = 5  # nor are the last five steps: fastai's
MIN_FALL = 1e-3  # relative: if the loss falls less, nothing is suggested


@dataclass(frozen=True)
class RangeTest:
    """The rate and the loss of each step; the loss is the mean over the step's items.

    steps: the number of steps that the test was to have.
    diverged: whether the test stopped early because the loss grew or was not finite.
    """

    rates: tuple[float, ...]
    losses: tuple[float, ...]
    steps: int
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
        """Rates and smoothed losses without the first tenth and the last few steps.

        Both are empty if the loss does not fall.
        """
        start, end = self.steps // SKIPPED_START, max(0, len(self.rates) - SKIPPED_END)
        chosen = slice(start, end)
        rates, losses = self.rates[chosen], self.smoothed[chosen]
        falls = losses and min(losses) < (1 - MIN_FALL) * losses[0]
        return (rates, losses) if falls else ((), ())


def smoothed(losses: Sequence[float]) -> list[float]:
    """The bias-corrected moving average: m_u / (1 - b^u), m_u = b m_(u-1) + (1 - b) loss_u."""
    mean, corrected = 0.0, []
    for step, loss in enumerate(losses, 1):
        mean = SMOOTHING * mean + (1 - SMOOTHING) * loss
        corrected.append(mean / (1 - SMOOTHING**step))
    return corrected


class GrowingRate(Steps):
    """Steps whose rate grows exponentially from `start` to `end`."""

    def __init__(
        self, task: Trainable, options: TrainingOptions, start: float, end: float, steps: int
    ):
        super().__init__(task, options)
        self.start, self.end, self.steps = start, end, steps

    def scheduled_rate(self) -> float:
        """start (end / start)^((u - 1) / (steps - 1)) for step u, from 1."""
        share = (self.counters.step - 1) / (self.steps - 1)
        return self.start * (self.end / self.start) ** share


def check_range(start: float, end: float, steps: int) -> None:
    """Check the options of a range test.

    Raises:
        ConfigError: not 0 < start < end < infinity, or there are too few steps.
    """
    if not 0 < start < end < math.inf:
        raise ConfigError(
            "`start_lr` and `end_lr` must be positive rates, `start_lr` the lower one, but are "
            f"{start:g} and {end:g}."
        )
    if steps < MIN_STEPS:
        raise ConfigError(
            f"`num_steps` must be at least {MIN_STEPS}, but is {steps}: too few losses "
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
    steps: int,
) -> RangeTest:
    """Train `task.module` while the learning rate grows; nothing is written.

    Args:
        options: the options of the training; the learning rate, the schedule and the limits of the
            training have no effect.
        seed: the seed of the random numbers.
        start, end: the learning rates of the first and the last step.
        steps: the number of steps, if the loss does not diverge.

    Raises:
        ConfigError: see `check_range`.
    """
    check_range(start, end, steps)
    torch.manual_seed(seed)
    growing = GrowingRate(task, options, start, end, steps)
    compute = growing.sharded.losses
    growing.precision = resolve(options.precision, compute, growing.model, growing.batches)
    growing.model.train()
    rates: list[float] = []
    losses: list[float] = []
    shown, diverged = time.monotonic(), False
    while not diverged and len(rates) < steps:
        try:
            losses.append(_mean(growing.apply_step()))
        except NonFiniteError:
            diverged = True
            break
        rates.append(growing.learning_rate)
        means = smoothed(losses)
        diverged = means[-1] > DIVERGENCE * min(means)
        if time.monotonic() - shown > progress.every:
            shown = time.monotonic()
            progress.show(_status(growing, means[-1]))
    growing.model.eval()
    return RangeTest(tuple(rates), tuple(losses), steps, diverged)


def _mean(applied: AppliedStep) -> float:
    """The sum of the losses, each averaged over its items."""
    sums: dict[str, float] = {}
    for of_batch in applied.losses:
        for name, value in of_batch.items():
            sums[name] = sums.get(name, 0.0) + float(value)
    return sum(value / max(1, applied.totals[name]) for name, value in sums.items())


def _status(growing: GrowingRate, loss: float) -> Status:
    counters = growing.counters
    fraction, seconds = counters.step / growing.steps, counters.seconds
    return Status(
        counters.step,
        growing.epochs,
        fraction,
        counters.tokens / max(1e-9, seconds),
        loss,
        growing.learning_rate,
        left=seconds * (1 - fraction) / fraction,
        items=growing.items,
    )
