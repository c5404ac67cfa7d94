"""The settings of a sweep, checked before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from os import PathLike
from pathlib import Path
from typing import Any

from regard import habit_names
from regard.data.in_memory import is_path
from regard.errors import ConfigError, RegardError, check_at_least
from regard.experiments import runs
from regard.experiments.compare.conditions import BUDGET
from regard.experiments.recipe_options import open_recipe, read_recipe, schema_of
from regard.experiments.sweep.methods import (
    AllAtOnce,
    SuccessiveHalving,
    SweepMethod,
    budgets,
    numbered,
)
from regard.experiments.sweep.space import Space, Values, axis_of
from regard.recipe import check_name, full_name, takes
from regard.suggest import nearest
from regard.toml_text import toml_value

METHODS = ("grid", "random", "successive-halving")
DEFAULT_TRIALS = 16  # configurations that are drawn, if `trials` is not given
PROBES = (0.5, 1.5)  # an option that takes one of them takes numbers that are not whole
# Options of [data] that make batches. They may be swept over: all trials read equally many tokens.
BATCHING = ("batch_size", "max_tokens_per_batch")


@dataclass(frozen=True)
class SweepSettings:
    """The settings of a sweep.

    path, overrides, recipe: common to all trials, without the values that are swept over.
    workers: the number of runs at once.
    """

    path: Path
    overrides: tuple[str, ...]
    recipe: Any
    space: Space
    strategy: str
    method: SweepMethod
    seeds: tuple[int, ...]
    draw_seed: int
    workers: int
    folder: Path

    def texts(self, values: Values) -> list[str]:
        """A trial's values as overrides."""
        return [f"{name}={toml_value(value)}" for name, value in values.items()]

    def recipe_of(self, name: str, values: Values, overrides: Sequence[str] | None = None) -> Any:
        """The recipe of a trial.

        Raises:
            ConfigError: it is wrong; the message names the trial.
        """
        given = self.overrides if overrides is None else overrides
        with self.naming(name, values):
            return read_recipe(self.path, [*given, *self.texts(values)])

    @contextmanager
    def naming(self, name: str, values: Values) -> Iterator[None]:
        """Errors inside name a trial."""
        try:
            yield
        except RegardError as error:
            raise ConfigError(f"{name} ({' '.join(self.texts(values))}): {error}") from None

    def without_batching(self, conditions: Mapping[str, Any]) -> dict[str, Any]:
        """The conditions that all trials must share.

        The size of batches may be swept, unless the budget is in steps, which then read more.
        """
        if "max_steps" in conditions["budget"]:
            return dict(conditions)
        data = {name: one for name, one in conditions["data"].items() if name not in BATCHING}
        return {**conditions, "data": data}

    def facts(self) -> dict[str, Any]:
        """The settings that must be the same when the sweep continues."""
        return {
            "param_space": {name: str(axis) for name, axis in self.space.axes.items()},
            "strategy": self.strategy,
            "plan": [[str(until), count] for until, count in self.method.plan()],
            "seeds": [*self.seeds],
            "draw_seed": self.draw_seed,
            "recipe": self.recipe.model_dump(mode="json"),
        }

    def about(self) -> dict[str, str]:
        """The settings that the report shows."""
        return {
            "strategy": self.strategy,
            **{name: str(axis) for name, axis in self.space.axes.items()},
            "seeds": ", ".join(map(str, self.seeds)),
            "budget of a run": self._budget(Fraction(1)),
        }

    def lines(self) -> Iterator[str]:
        """The lines that are printed before the training: values, stages and budgets."""
        yield from self.space.lines()
        plan, before = self.method.plan(), Fraction(0)
        for until, count in plan:
            trials = "1 trial" if count == 1 else f"{count} trials"
            verb = "continue" if before else "are trained"
            if count == 1:
                verb = "continues" if before else "is trained"
            best = "the best " if before else ""
            yield f"{best}{trials} {verb} to {_part(until)}: {self._budget(until)} each"
            before = until
        spent, most = budgets(plan) * len(self.seeds), plan[0][1] * len(self.seeds)
        seeds = f" ({len(self.seeds)} seeds per trial)" if len(self.seeds) > 1 else ""
        share = f", {float(spent / most):.0%} of training all trials to the end"
        yield f"in total at most {self._budget(spent)}{seeds}{share if spent < most else ''}"

    def _budget(self, times: Fraction) -> str:
        """The budget of the recipe, multiplied by `times`, in words."""
        limits = {name: getattr(self.recipe.training, name) for name in BUDGET}
        found = {name: float(limit * times) for name, limit in limits.items() if limit}
        return " or ".join(
            f"{count:,.0f} {name}" if count >= 100 else f"{count:.3g} {name}"
            for name, count in found.items()
        )


def _part(until: Fraction) -> str:
    return "the end" if until == 1 else f"{until} of the budget"


def checked_settings(
    recipe: str | PathLike[str],
    overrides: Sequence[str],
    param_space: Mapping[str, Any],
    strategy: str,
    trials: int | None,
    num_rungs: int,
    seeds: Sequence[int],
    draw_seed: int,
    workers: int,
    out: str | PathLike[str] | None,
) -> SweepSettings:
    """The settings from the arguments of `regard.sweep`.

    Raises:
        ConfigError: an argument is wrong, an option does not exist, or its values are neither a
            list nor a range.
    """
    check_at_least(1, trials=trials, num_rungs=num_rungs)
    if not seeds or len(set(seeds)) < len(seeds):
        raise ConfigError(f"`seeds` must be different numbers, at least one, but is {seeds!r}.")
    if not param_space:
        raise ConfigError(
            "`param_space` must name at least one option, such as model.d_model=128,256."
        )
    if not is_path(recipe) or (out is not None and not is_path(out)):
        raise ConfigError(f"`recipe` and `out` must be paths, but are {recipe!r:.40}, {out!r:.40}.")
    path = Path(recipe)
    raw, checked = open_recipe(path, overrides)
    schema = schema_of(raw)
    axes = {}
    for given_name, given in param_space.items():
        name = _full_name(schema, given_name)
        real = any(takes(schema, name, value) for value in PROBES)
        axes[name] = axis_of(name, given, real)
    space = Space(axes)
    name = runs.name_of_run(path, checked.name)
    folder = Path("runs") / f"{name}-sweep" if out is None else Path(out)
    method = _method(strategy, space, trials, num_rungs, draw_seed)
    return SweepSettings(
        path,
        tuple(overrides),
        checked,
        space,
        strategy,
        method,
        tuple(seeds),
        draw_seed,
        workers,
        folder,
    )


def _full_name(schema: Any, name: str) -> str:
    """The dotted name of an option to be swept, which may be given by its last part.

    Raises:
        ConfigError: there is no such option, or several sections have it; or it is the seed.
    """
    if name == "seed":
        raise ConfigError(
            "`seed` is no option to sweep over. Give several seeds: --seeds 1,2,3 (`seeds` in "
            "Python)."
        )
    name = full_name(schema, habit_names.OPTIONS.get(name, name))
    check_name(schema, name)
    return name


def _method(
    strategy: str, space: Space, trials: int | None, num_rungs: int, draw_seed: int
) -> SweepMethod:
    """Raises ConfigError: there is no such method, or an option is without effect."""
    if strategy == "grid":
        if trials is not None:
            raise ConfigError(
                "`trials` has no effect with a grid, which has all combinations. Leave it out, or "
                "use --strategy random."
            )
        return AllAtOnce(numbered(space.grid()))
    drawn = trials or DEFAULT_TRIALS
    if strategy == "random":
        return AllAtOnce(numbered(space.drawn(drawn, draw_seed)))
    if strategy == "successive-halving":
        return SuccessiveHalving(numbered(space.drawn(drawn, draw_seed)), num_rungs)
    raise ConfigError(f"`strategy` {strategy!r} is unknown. {nearest(strategy, METHODS)}")
