"""How the learning rate changes: pure functions from the step to a multiplier of the peak rate.

Steps count from 1. Decays reach their end one step after the last, so that the last step
still learns.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from regard.errors import ConfigError
from regard.training.options import ScheduleOptions


@dataclass(frozen=True)
class ScheduleStep:
    """What a schedule depends on.

    step: the step to be made, from 1.
    epoch: its epoch, from 0.
    total: the number of all steps: an estimate where the end is given in epochs or tokens,
        infinity as long as none can be made.
    """

    step: int
    epoch: int
    total: float


def warm(step: int, warmup: float) -> float:
    """Linear growth: step / warmup, and 1 afterwards."""
    return min(1.0, step / warmup) if warmup else 1.0


def inverse_square_root(step: int, warmup: float) -> float:
    """1 at the end of the warm-up, then sqrt(warmup / step): equation 3 of Vaswani et al. 2017
    relative to its peak."""
    return min(step / warmup, math.sqrt(warmup / step))


def noam(step: float, d_model: int, warmup: float) -> float:
    """Equation 3 of Vaswani et al. 2017 itself, for a learning rate of 1:

    d_model^-0.5 * min(step^-0.5, step * warmup^-1.5), with a peak of (d_model * warmup)^-0.5.
    """
    return d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)


def linear(step: int, total: float, warmup: float = 0, min_lr_ratio: float = 0.0) -> float:
    """Up to 1 in `warmup` steps, then a straight line down to `min_lr_ratio`."""
    left = _left(step, total, warmup)
    return min(warm(step, warmup), min_lr_ratio + (1 - min_lr_ratio) * left)


def cosine(step: int, total: float, warmup: float = 0, min_lr_ratio: float = 0.0) -> float:
    """Up to 1 in `warmup` steps, then half a cosine wave down to `min_lr_ratio`."""
    wave = 0.5 * (1 - math.cos(math.pi * _left(step, total, warmup)))
    return min(warm(step, warmup), min_lr_ratio + (1 - min_lr_ratio) * wave)


def step_decay(epoch: int, constant_epochs: int, gamma: float) -> float:
    """1 during the first `constant_epochs`, then multiplied by `gamma` at each epoch (Zaremba et
    al. 2014: 4 and 0.5 for the small model of Penn Treebank)."""
    return gamma ** max(0, epoch + 1 - constant_epochs)


def slanted_triangular(
    step: int, total: float, warmup: float = 0.1, div_factor: float = 32.0
) -> float:
    """Up from 1 / div_factor to 1 in the share `warmup` of all steps, then down again (Howard &
    Ruder 2018, equation 3)."""
    if math.isinf(total):
        return 1 / div_factor  # the start
    top = max(1.0, math.floor(total * warmup))
    if step < top:
        share = step / top
    else:
        share = max(0.0, 1 - (step - top) / (top * (1 / warmup - 1)))
    return (1 + share * (div_factor - 1)) / div_factor


def warmup_steps(warmup: float, total: float) -> float:
    """The steps of a warm-up: those given, or the next whole number above a share of `total`."""
    if warmup >= 1 or not warmup:
        return warmup
    if math.isinf(total):
        return total
    return math.ceil(round(total * warmup, 6))  # `total` is a quotient, and seldom exact


def _left(step: int, total: float, warmup: float) -> float:
    """The part of the decay that lies ahead: 1 at the end of the warm-up, 0 after the last."""
    if math.isinf(total):
        return 1.0
    span = max(1.0, total + 1 - warmup)
    return min(1.0, max(0.0, (total + 1 - step) / span))


def schedule(options: ScheduleOptions) -> Callable[[ScheduleStep], float]:
    """The multiplier of the learning rate at a step, by the name in the options."""
    o, share = options, options.warmup_or_default()

    def warmup(at: ScheduleStep) -> float:
        return warmup_steps(share, at.total)

    table: dict[str, Callable[[ScheduleStep], float]] = {
        "constant": lambda at: warm(at.step, warmup(at)),
        "inverse-sqrt": lambda at: inverse_square_root(at.step, warmup(at)),
        "noam": lambda at: noam(at.step, o.d_model, warmup(at)),
        "linear": lambda at: linear(at.step, at.total, warmup(at), o.min_lr_ratio),
        "cosine": lambda at: cosine(at.step, at.total, warmup(at), o.min_lr_ratio),
        "step": lambda at: (
            warm(at.step, warmup(at)) * step_decay(at.epoch, o.constant_epochs, o.gamma)
        ),
        "slanted-triangular": lambda at: slanted_triangular(at.step, at.total, share, o.div_factor),
    }
    if o.name not in table:
        raise ConfigError(f"`schedule.name` must be one of {', '.join(table)}, but is {o.name!r}")
    return table[o.name]
