"""How the learning rate changes: pure functions from the update to a multiplier of the peak rate.

Updates count from 1. Decays reach their end one update after the last, so that the last update
still learns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from regard.errors import ConfigError
from regard.training.options import ScheduleOptions


@dataclass(frozen=True)
class ScheduleStep:
    """What a schedule depends on.

    update: the update to be made, from 1.
    epoch: its epoch, from 0.
    total: the number of all updates: an estimate where the end is given in epochs or tokens,
        infinity as long as none can be made.
    """

    update: int
    epoch: int
    total: float


def warm(update: int, warmup: int) -> float:
    """Linear growth: update / warmup, and 1 afterwards."""
    return min(1.0, update / warmup) if warmup else 1.0


def inverse_square_root(update: int, warmup: int) -> float:
    """1 at the end of the warm-up, then sqrt(warmup / update): equation 3 of Vaswani et al. 2017
    relative to its peak."""
    return min(update / warmup, math.sqrt(warmup / update))


def noam(update: int, d_model: int, warmup: int) -> float:
    """Equation 3 of Vaswani et al. 2017 itself, for a learning rate of 1:

    d_model^-0.5 * min(update^-0.5, update * warmup^-1.5), with a peak of (d_model * warmup)^-0.5.
    """
    return d_model**-0.5 * min(update**-0.5, update * warmup**-1.5)


def linear(update: int, total: float, warmup: int = 0, final: float = 0.0) -> float:
    """Up to 1 in `warmup` updates, then a straight line down to `final`."""
    return min(warm(update, warmup), final + (1 - final) * _left(update, total, warmup))


def cosine(update: int, total: float, warmup: int = 0, final: float = 0.0) -> float:
    """Up to 1 in `warmup` updates, then half a cosine wave down to `final`."""
    wave = 0.5 * (1 - math.cos(math.pi * _left(update, total, warmup)))
    return min(warm(update, warmup), final + (1 - final) * wave)


def step(epoch: int, epochs: int, factor: float) -> float:
    """1 during the first `epochs`, then multiplied by `factor` at each epoch (Zaremba et al. 2014:
    4 and 0.5 for the small model of Penn Treebank)."""
    return factor ** max(0, epoch + 1 - epochs)


def slanted_triangular(update: int, total: float, cut: float = 0.1, ratio: float = 32.0) -> float:
    """Up from 1 / ratio to 1 in the part `cut` of all updates, then down again (Howard & Ruder
    2018, equation 3)."""
    if math.isinf(total):
        return 1 / ratio  # the start
    top = max(1.0, math.floor(total * cut))
    if update < top:
        share = update / top
    else:
        share = max(0.0, 1 - (update - top) / (top * (1 / cut - 1)))
    return (1 + share * (ratio - 1)) / ratio


def _left(update: int, total: float, warmup: int) -> float:
    """The part of the decay that lies ahead: 1 at the end of the warm-up, 0 after the last."""
    if math.isinf(total):
        return 1.0
    span = max(1.0, total + 1 - warmup)
    return min(1.0, max(0.0, (total + 1 - update) / span))


def schedule(options: ScheduleOptions) -> Callable[[ScheduleStep], float]:
    """The multiplier of the learning rate at an update, by the name in the options."""
    o = options
    table: dict[str, Callable[[ScheduleStep], float]] = {
        "constant": lambda at: warm(at.update, o.warmup),
        "inverse-sqrt": lambda at: inverse_square_root(at.update, o.warmup),
        "noam": lambda at: noam(at.update, o.d_model, o.warmup),
        "linear": lambda at: linear(at.update, at.total, o.warmup, o.final),
        "cosine": lambda at: cosine(at.update, at.total, o.warmup, o.final),
        "step": lambda at: warm(at.update, o.warmup) * step(at.epoch, o.epochs, o.factor),
        "slanted-triangular": lambda at: (
            warm(at.update, o.warmup) * slanted_triangular(at.update, at.total, o.cut, o.ratio)
        ),
    }
    if o.name not in table:
        raise ConfigError(f"`schedule.name` must be one of {', '.join(table)}, but is {o.name!r}")
    return table[o.name]
