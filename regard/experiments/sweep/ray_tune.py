"""Configurations that a searcher of Ray Tune suggests from the scores of those before.

Only the searchers of Ray Tune are used, such as "optuna" or "hyperopt", which need the packages of
these names. The trials run on the executor of the sweep, which need not be a Ray cluster.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from regard.errors import ConfigError, MissingExtra
from regard.experiments.sweep.methods import WHOLE, FinishedStage, SweepStage, numbered
from regard.experiments.sweep.space import DIGITS, Axis, Space, ValueList, Values
from regard.suggest import nearest

SCORE = "score"  # the name of the metric that a searcher maximizes
SEEDS = ("seed", "random_state", "random_state_seed", "random_seed")  # in searchers' constructors


@dataclass(frozen=True)
class RayTuneSearch:
    """A `SweepMethod`: `at_once` configurations a stage, each trained to the end.

    searcher: a name of `ray.tune.search.SEARCH_ALG_IMPORT`.

    Raises:
        MissingExtra: Ray Tune is not installed.
        ConfigError: there is no such searcher, its package is missing, or it takes no such space.
    """

    space: Space
    searcher: str
    trials: int
    seed: int
    at_once: int

    def __post_init__(self) -> None:
        self._searcher()

    def next(self, finished: Sequence[FinishedStage]) -> SweepStage | None:
        """The next suggestions of a new searcher that has received all scores so far."""
        searcher, count = self._searcher(), 0
        for one in finished:
            count += len(one.stage.trials)
            for name in one.stage.trials:
                searcher.suggest(name)
            for name in one.stage.trials:
                score = one.scores[name]
                result = (
                    None if score is None else {SCORE: score if one.better == "max" else -score}
                )
                searcher.on_trial_complete(name, result=result, error=result is None)
        names = [*numbered([{}] * min(self.at_once, self.trials - count), count + 1)]
        suggested = {name: searcher.suggest(name) for name in names}
        found = {name: self._values(one) for name, one in suggested.items() if one is not None}
        return SweepStage(WHOLE, found) if found else None

    def plan(self) -> list[tuple[Fraction, int]]:
        return [(WHOLE, self.trials)]

    def _values(self, suggested: dict[str, Any]) -> Values:
        """Plain values; numbers with the digits of those that are drawn."""
        return {name: _plain(self.space.axes[name], suggested[name]) for name in self.space.axes}

    def _searcher(self) -> Any:
        """The searcher, as it is before its first suggestion."""
        try:
            from ray import tune
            from ray.tune.search import SEARCH_ALG_IMPORT, Searcher
        except ImportError:
            raise MissingExtra("ray[tune]", "tune", "A searcher of Ray Tune") from None
        if self.searcher not in SEARCH_ALG_IMPORT:
            raise ConfigError(
                f"Ray Tune has no searcher {self.searcher!r}. "
                f"{nearest(self.searcher, SEARCH_ALG_IMPORT)}"
            )
        kind = SEARCH_ALG_IMPORT[self.searcher]()
        if not issubclass(kind, Searcher):
            raise ConfigError(
                f"{self.searcher!r} of Ray Tune does not use the scores of trials: use --strategy "
                "random, which needs no Ray."
            )
        given = {one: self.seed for one in SEEDS if one in inspect.signature(kind).parameters}
        space = {name: _domain(tune, axis) for name, axis in self.space.axes.items()}
        try:
            made = kind(**given)
            made.set_search_properties(SCORE, "max", space)
        except (AssertionError, ImportError) as error:  # its package is missing
            raise ConfigError(f"the searcher {self.searcher!r}: {error}") from None
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"the searcher {self.searcher!r} does not support these values: {error}"
            ) from None
        return made


def _domain(tune: Any, axis: Axis) -> Any:
    """A list or a range, as Ray Tune has it."""
    if isinstance(axis, ValueList):
        return tune.choice(list(axis.values))
    if axis.whole:  # Tune's upper end is excluded
        draw = tune.lograndint if axis.logarithmic else tune.randint
        return draw(int(axis.low), int(axis.high) + 1)
    return (tune.loguniform if axis.logarithmic else tune.uniform)(axis.low, axis.high)


def _plain(axis: Axis, value: Any) -> Any:
    """A suggested value as JSON has it."""
    if isinstance(axis, ValueList):
        return next(one for one in axis.values if one == value)
    if axis.whole:
        return int(value)
    return min(axis.high, max(axis.low, float(f"{value:.{DIGITS}g}")))
