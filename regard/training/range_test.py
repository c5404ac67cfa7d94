"""The learning-rate range test (Smith 2017, section 3.3): the loss while the rate grows.

The rate grows exponentially from step to step (Smith: linearly; exponentially as in fastai),
with the optimizer, clipping, accumulation and dropout of the training. All constants are fastai's.

https://arxiv.org/abs/1506.01186
https://docs.fast.ai/callback.schedule.html
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence

import torch

from regard.training.compiling import resolve
from regard.training.options import TrainingOptions
from regard.training.steps import NonFiniteError, Steps
from regard.training.task import Trainable

START, END, STEPS = 1e-7, 10.0, 100  # the first and the last rate
SMOOTHING = 0.98  # the decay of the moving average
DIVERGENCE = 4.0  # the test ends at so many times the lowest smoothed loss
SKIPPED_START, SKIPPED_END = STEPS // 10, 5  # these first and last steps are not considered
MIN_FALL = 1e-3  # relative: if the loss falls less, nothing is suggested


class GrowingRate(Steps):
    """Steps whose rate grows exponentially."""

    def scheduled_rate(self) -> float:
        """START (END / START)^((u - 1) / (STEPS - 1)) for step u, from 1."""
        return START * (END / START) ** ((self.counters.step - 1) / (STEPS - 1))


def range_test(
    task: Trainable, options: TrainingOptions, seed: int
) -> Iterator[tuple[float, float]]:
    """Train `task.module` while the rate grows, until the smoothed loss diverges.

    Yields the rate and the loss of each step: the sum of the losses, each averaged over its items.
    The learning rate, the schedule and the limits of `options` have no effect.
    """
    torch.manual_seed(seed)
    steps = GrowingRate(task, options)
    steps.precision = resolve(options.precision, steps.model)
    steps.model.train()
    losses: list[float] = []
    while len(losses) < STEPS:
        try:
            applied = steps.apply_step()
        except NonFiniteError:
            return
        sums: Counter[str] = Counter()
        for of_batch in applied.losses:
            sums.update({name: float(value) for name, value in of_batch.items()})
        losses.append(sum(value / max(1, applied.totals[name]) for name, value in sums.items()))
        yield steps.learning_rate, losses[-1]
        means = smoothed(losses)
        if means[-1] > DIVERGENCE * min(means):
            return


def smoothed(losses: Sequence[float]) -> list[float]:
    """The bias-corrected moving average: m_u / (1 - b^u), m_u = b m_(u-1) + (1 - b) loss_u."""
    mean, corrected = 0.0, []
    for step, loss in enumerate(losses, 1):
        mean = SMOOTHING * mean + (1 - SMOOTHING) * loss
        corrected.append(mean / (1 - SMOOTHING**step))
    return corrected


def suggested_rate(rates: Sequence[float], losses: Sequence[float]) -> float | None:
    """The lower one of two rates: where the smoothed loss falls fastest over the logarithm of the
    rate, and a tenth of the rate where it is lowest. None where the loss never falls.
    """
    considered = slice(SKIPPED_START, -SKIPPED_END)
    means, rates = smoothed(losses)[considered], rates[considered]
    if len(means) < 2 or min(means) >= (1 - MIN_FALL) * means[0]:
        return None
    slopes = [
        (means[i + 1] - means[i]) / math.log(rates[i + 1] / rates[i]) for i in range(len(means) - 1)
    ]
    return min(rates[means.index(min(means))] / 10, rates[slopes.index(min(slopes))])
