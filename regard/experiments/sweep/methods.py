"""Methods of sweeping: which trials are trained in each stage, and to which part of the budget.

The next stage is a function of the scores of the finished ones, so that a sweep that was stopped
continues exactly as if it had not been stopped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from regard.experiments.sweep.space import Values

WHOLE = Fraction(1)


@dataclass(frozen=True)
class SweepStage:
    """Trials that are trained to the same part of the budget.

    until: that part; 1 is the end.  trials: the configuration of each trial, by its name.
    """

    until: Fraction
    trials: Mapping[str, Values]


@dataclass(frozen=True)
class FinishedStage:
    """A stage with the score of each trial: the mean over its seeds, None where one has failed."""

    stage: SweepStage
    scores: Mapping[str, float | None]
    better: str  # "max" or "min"

    def ranked(self) -> list[str]:
        """The trials that have a score, the best first; equal ones in their order."""
        scored = {name: score for name, score in self.scores.items() if score is not None}
        sign = -1 if self.better == "max" else 1
        return sorted(scored, key=lambda name: sign * scored[name])


class SweepMethod(Protocol):
    """A method of sweeping: chooses the stages."""

    def next(self, finished: Sequence[FinishedStage]) -> SweepStage | None:
        """The stage after these; None: the sweep is finished."""

    def plan(self) -> list[tuple[Fraction, int]]:
        """Of each stage: the part of the budget, and how many trials it has at most."""


@dataclass(frozen=True)
class AllAtOnce:
    """Every configuration is trained to the end: a grid, or configurations drawn at random."""

    trials: Mapping[str, Values]

    def next(self, finished: Sequence[FinishedStage]) -> SweepStage | None:
        """All of them, once."""
        return None if finished else SweepStage(WHOLE, self.trials)

    def plan(self) -> list[tuple[Fraction, int]]:
        return [(WHOLE, len(self.trials))]


@dataclass(frozen=True)
class SuccessiveHalving:
    """Successive halving (Jamieson and Talwalkar 2016): after each rung the better half
    continues.

    With 2 rungs all trials are trained to 1/8 of the budget, the better half (rounded up) to 1/4,
    and the better half of these to the end. If one trial is left, it is trained to the end.

    The last rung is at 1/4: later, and until the learning rate has decayed, scores say little about
    those at the end. At 1/2, a trial with a high learning rate often has worse scores than trials
    that are worse at the end.
    """

    trials: Mapping[str, Values]
    rungs: int

    def next(self, finished: Sequence[FinishedStage]) -> SweepStage | None:
        """The better half of the last stage, to the next rung."""
        if not finished:
            return SweepStage(self._until(0), self.trials)
        last = finished[-1]
        kept = last.ranked()[: math.ceil(len(last.stage.trials) / 2)]
        if last.stage.until == WHOLE or not kept:
            return None
        until = WHOLE if len(kept) == 1 else self._until(len(finished))
        return SweepStage(until, {name: self.trials[name] for name in self.trials if name in kept})

    def plan(self) -> list[tuple[Fraction, int]]:
        count, found = len(self.trials), list[tuple[Fraction, int]]()
        for rung in range(self.rungs + 1):
            until = WHOLE if rung and count == 1 else self._until(rung)
            found.append((until, count))
            if until == WHOLE:
                break
            count = math.ceil(count / 2)
        return found

    def _until(self, rung: int) -> Fraction:
        return Fraction(1, 2 ** (self.rungs + 1 - rung)) if rung < self.rungs else WHOLE


def budgets(plan: Sequence[tuple[Fraction, int]]) -> Fraction:
    """How many whole budgets a plan spends: a trial that continues resumes from its checkpoint."""
    before, spent = Fraction(0), Fraction(0)
    for until, count in plan:
        spent += count * (until - before)
        before = until
    return spent


def numbered(configurations: Sequence[Values], first: int = 1) -> dict[str, Values]:
    """The configurations by the names of their trials: trial-01, trial-02."""
    return {f"trial-{number:02}": one for number, one in enumerate(configurations, first)}
