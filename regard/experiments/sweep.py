"""Sweeps: one recipe with many values of its options, trained for equal budgets, ranked.

    space = {"learning_rate": LogUniform(1e-4, 1e-2), "model.d_model": [128, 256]}
    found = regard.sweep("recipe.toml", param_space=space, strategy="successive-halving")
    found.best.values, found.run

The trials are compared by the best validation score of the task's goal (the mean over the seeds),
never by test data. The folder is that of a study (study.py), with runs trial-01-seed1 ...,
results.json and report.html. All that is drawn or suggested follows from the settings and from the
rows of results.jsonl, so the same call continues.

    in Python                        on the command line
    [128, 256]                       128,256        these values
    LogUniform(1e-4, 1e-2)           1e-4..1e-2     any value between the two
    Uniform(0.0, 0.5)                0.0..0.5
                                     1e-4..1e-2:5   five values at equal distances, with both ends

A range of the command line whose ends are positive and differ by a factor of 10 or more is searched
on a logarithmic scale, others on a linear scale. Values of an option that must be an integer are
integers.
"""

import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import product
from os import PathLike
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from regard import habit_names
from regard.checkpoints.filling import on_meta
from regard.errors import ConfigError, MissingExtra, RegardError, check_at_least, check_choice
from regard.executors import ExecutorOptions, Json
from regard.experiments import recipe_options
from regard.experiments.results import StudyResults, Trial, Values
from regard.experiments.study import (
    BUDGET,
    RunOptions,
    Study,
    check_equal,
    conditions_of,
    folder_of_study,
    opened,
    recipe_in_file,
    runs_by_seed,
    with_tokenizer,
)
from regard.experiments.training_plan import build_model, build_tokenizer
from regard.recipe import check_name, full_name, readings, takes
from regard.schema import toml_value

LOGARITHMIC = 10  # a range with ends that differ by this factor is searched on a logarithmic scale
DIGITS = 4  # significant digits of values that are drawn
EXAMPLES = (
    "Examples: 128,256 (these values); 1e-4..1e-2 (any value between the two); 1e-4..1e-2:5 (five "
    "values from end to end)."
)
_NUMBER = r"[-+]?\d[\d_]*(?:\.\d+)?(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"\s*({_NUMBER})\.\.({_NUMBER})(?::([1-9]\d{{0,3}}))?\s*")


@dataclass(frozen=True)
class Uniform:
    """Any value from `min` to `max`: equal differences are equally probable.

    whole: whole numbers alone.
    """

    min: float
    max: float
    whole: bool = False
    scale = "linear"

    def at(self, share: float) -> float:
        """The value at a share of the way from `min` to `max`, with few digits."""
        return self._rounded((1 - share) * self.min + share * self.max)

    def draw(self, random: Random) -> float:
        """A random value."""
        if self.whole:
            return random.randint(int(self.min), int(self.max))
        return self.at(random.random())

    def suggest(self, trial: Any, name: str) -> float:
        """The value that a trial of Optuna suggests."""
        log = self.scale == "logarithmic"
        if self.whole:
            return trial.suggest_int(name, int(self.min), int(self.max), log=log)
        return self._rounded(trial.suggest_float(name, self.min, self.max, log=log))

    def _rounded(self, value: float) -> float:
        rounded = round(value) if self.whole else float(f"{value:.{DIGITS}g}")
        return min(self.max, max(self.min, rounded))

    def __str__(self) -> str:
        kind = ", integers" if self.whole else ""
        return f"{self.min:g} to {self.max:g} on a {self.scale} scale{kind}"


@dataclass(frozen=True)
class LogUniform(Uniform):
    """Any value from `min` to `max`: equal factors are equally probable."""

    scale = "logarithmic"

    def at(self, share: float) -> float:
        return self._rounded(self.min ** (1 - share) * self.max**share)

    def draw(self, random: Random) -> float:
        return self.at(random.random())


@dataclass(frozen=True)
class ValueList:
    """A list of values."""

    values: tuple[Json, ...]

    def draw(self, random: Random) -> Json:
        """A random value."""
        return random.choice(self.values)

    def suggest(self, trial: Any, name: str) -> Json:
        """The value that a trial of Optuna suggests; to Optuna each is a TOML text."""
        by_text = {toml_value(value): value for value in self.values}
        return by_text[trial.suggest_categorical(name, [*by_text])]

    def __str__(self) -> str:
        return ", ".join(v if isinstance(v, str) else json.dumps(v) for v in self.values)


Axis = ValueList | Uniform


@dataclass(frozen=True)
class Space:
    """The swept options by their dotted names."""

    axes: Mapping[str, Axis]

    def grid(self) -> list[Values]:
        """Every configuration; the last option changes fastest.

        Raises:
            ConfigError: an option has a range without points.
        """
        for name, axis in self.axes.items():
            if not isinstance(axis, ValueList):
                hint = "write LOW..HIGH:5 for five points, or draw them: --strategy random"
                raise ConfigError(f"`{name}` is a range, and a grid needs values: {hint}.")
        lists = [axis.values for axis in self.axes.values() if isinstance(axis, ValueList)]
        return [dict(zip(self.axes, values, strict=True)) for values in product(*lists)]

    def drawn(self, count: int, seed: int) -> list[Values]:
        """So many configurations, drawn at random; all of them where there are no more.

        They depend on the seed alone; with a range, the first ones not on how many follow.
        """
        random = Random(seed)
        if all(isinstance(axis, ValueList) for axis in self.axes.values()):
            points = self.grid()
            return points if len(points) <= count else random.sample(points, count)
        return [{name: axis.draw(random) for name, axis in self.axes.items()} for _ in range(count)]


def axis_of(name: str, given: Any, real: bool) -> Axis:
    """A range or a list, as the command line or Python has it.

    Args:
        given: a `Uniform`, a `LogUniform`, a list or an array of values; or a text, "1e-4..1e-2" or
            "128,256".
        real: whether the option takes numbers that are not whole.

    Raises:
        ConfigError: it is neither.
    """
    axis, points, values = given, None, _plain(given)
    if isinstance(values, str) and (match := _RANGE.fullmatch(values)):
        low, high = float(match[1]), float(match[2])
        axis = (LogUniform if 0 < LOGARITHMIC * low <= high else Uniform)(low, high)
        points = match[3]
    elif isinstance(values, str):
        values = [*_listed(values)]
    if isinstance(axis, Uniform):
        if not real:
            low, high = math.ceil(axis.min), math.floor(axis.max)
            axis = replace(axis, min=low, max=high, whole=True)
        if axis.min < axis.max and (axis.min > 0 or not isinstance(axis, LogUniform)):
            if points is None:
                return axis
            steps = max(1, int(points) - 1)
            return ValueList(tuple(dict.fromkeys(axis.at(n / steps) for n in range(int(points)))))
    elif isinstance(values, list | tuple) and values:
        return ValueList(tuple({toml_value(value): value for value in values}.values()))
    raise ConfigError(
        f"`param_space` {name} must be a range from a lower to a higher number (positive in logs) "
        f"or a list of values, but is {given!r:.80}. {EXAMPLES}"
    )


def _plain(values: Any) -> Any:
    """Arrays and numbers of NumPy as Python has them."""
    if isinstance(values, np.ndarray | np.generic):
        return values.tolist()
    if isinstance(values, list | tuple):
        return type(values)(map(_plain, values))
    return values


def _listed(text: str) -> Iterator[Any]:
    """The values of a list; commas inside brackets and quotes separate nothing."""
    try:
        yield from tomllib.loads(f"values = [{text}]")["values"]
    except ValueError:
        yield from (readings(part.strip())[0] for part in text.split(","))


__all__ = ["LogUniform", "Uniform", "sweep", "sweep_file"]

STRATEGIES = ("grid", "random", "tpe", "successive-halving")
DEFAULT_TRIALS = 16  # if `trials` is not given
PROBES = (0.5, 1.5)  # an option that takes one of them takes numbers that are not whole
HINT = (
    "All trials must have these in common: do not sweep over them (`param_space`, --param-space)."
)


def sweep(
    recipe: str | PathLike[str] | None = None,
    *,
    param_space: Mapping[str, Any],
    strategy: str = "grid",
    trials: int | None = None,
    num_rungs: int = 2,
    seeds: Sequence[int] = (1,),
    draw_seed: int = 1,
    out: str | PathLike[str] | None = None,
    executor: str | ExecutorOptions = "local",
    workers: int = 1,
    gpus: int = 0,
    progress: bool = True,
    **options: Any,
) -> StudyResults:
    """Train a recipe with many values of its options, and rank them by their validation scores.

    After an interruption, the same call continues. A trial that fails (no memory, NaN) is
    reported with its reason, and the other trials continue.

    Args:
        recipe, options: as of `regard.train`.
        param_space: for each option, by its name, a `Uniform`, a `LogUniform` or a list of values
            (see `regard.experiments.sweep`). The name is dotted where several sections have
            the option.
        strategy: "grid", "random", "tpe" (values near those of good trials, by Optuna) or
            "successive-halving".
        trials: how many configurations are drawn; None: 16, or all where there are fewer.
        num_rungs: how often successive halving stops the worse half; the last time at 1/4 of the
            budget, before that at 1/8, and so on.
        seeds: each is a run of every trial; trials are compared by the mean of their scores.
        draw_seed: the seed of the values that are drawn.
        out: the folder; None: runs/NAME-sweep.
        executor, workers, gpus: where runs are processes, how many at once, and the GPUs of each,
            as of `regard.compare`. With "tpe" `workers` trials are chosen together.
        progress: whether the progress is shown.

    Raises:
        MissingExtra: Optuna is not installed, which "tpe" needs.
        ConfigError: an option does not exist, or a trial has impossible values, before anything
            runs; or `out` holds another sweep.
        Interrupted: after Ctrl-C; the runs in progress are saved.
        RegardError: every trial has failed.
    """
    drawn = strategy, trials, num_rungs, draw_seed
    run_options = RunOptions(tuple(seeds), executor, workers, gpus, progress)
    if recipe is None or options:
        out = folder_of_study(recipe, options, out, "sweep")
        recipe = recipe_in_file(None if recipe is None else Path(recipe), options, out)
    return sweep_file(recipe, (), param_space, drawn, run_options, out)


def sweep_file(
    recipe: str | PathLike[str],
    overrides: Sequence[str],
    param_space: Mapping[str, Any],
    drawn: tuple[str, int | None, int, int],
    options: RunOptions,
    out: str | PathLike[str] | None = None,
) -> StudyResults:
    """As `sweep`, of a file with the NAME=VALUE of a command line.

    drawn: `strategy`, `trials`, `num_rungs` and `draw_seed`.
    """
    path, folder = Path(recipe), folder_of_study(recipe, {}, out, "sweep")
    raw, checked = recipe_options.open_recipe(path, overrides)
    plan = SweepPlan(*drawn, _space(recipe_options.schema_of(raw), param_space), options.workers)
    conditions = plan.check(path, overrides, checked)
    settings = {
        "param_space": {name: str(axis) for name, axis in plan.space.axes.items()},
        "strategy": plan.strategy,
        "trials": plan.count,
        "rungs": plan.rungs,
        "seeds": [*options.seeds],
        "draw_seed": plan.draw_seed,
        "together": plan.workers if plan.strategy == "tpe" else None,
        "recipe": checked.model_dump(mode="json"),
    }
    with opened(folder, conditions | settings, options, "sweeping in") as study:
        texts = with_tokenizer([checked], folder)(checked, overrides)
        plan.check_models(path, texts)
        axes = {name: str(axis) for name, axis in plan.space.axes.items()}
        for line in [*(f"{name}: {axis}" for name, axis in axes.items()), *plan.lines(checked)]:
            study.say(line)
        trials = plan.train(study, path, texts)
    trials.sort(key=lambda trial: (trial.error != "", -trial.until, -trial.score))
    if trials[0].error:
        reasons = dict.fromkeys(trial.error for trial in trials)
        raise RegardError(f"every trial has failed: {'; '.join(reasons)}")
    about = {"strategy": plan.strategy, "seeds": ", ".join(map(str, options.seeds)), **axes}
    results = StudyResults(folder, tuple(trials), conditions, about=about)
    results.write("results.json")
    return results


def _space(schema: Any, param_space: Mapping[str, Any]) -> Space:
    """The swept options by their dotted names; one may be given by its last part.

    Raises:
        ConfigError: there is no such option, or several sections have it; or it is the seed.
    """
    if not param_space or "seed" in param_space:
        raise ConfigError("`param_space` must name options, and not `seed`: see `seeds` (--seeds).")
    axes = {}
    for given_name, values in param_space.items():
        name = full_name(schema, habit_names.OPTIONS.get(given_name, given_name))
        check_name(schema, name)
        axes[name] = axis_of(name, values, any(takes(schema, name, value) for value in PROBES))
    return Space(axes)


def _texts(values: Values) -> list[str]:
    """A trial's values as overrides."""
    return [f"{name}={toml_value(value)}" for name, value in values.items()]


def _budget(recipe: Any, times: float) -> str:
    """The budget of a recipe, multiplied by `times`, in words."""
    limits = {name.removeprefix("max_"): getattr(recipe.training, name) for name in BUDGET}
    return " or ".join(f"{limit * times:,.6g} {unit}" for unit, limit in limits.items() if limit)


@dataclass(frozen=True)
class SweepPlan:
    """Which trials there are, and to which parts of the budget they are trained.

    Raises:
        ConfigError: there is no such strategy, or an option is without effect.
    """

    strategy: str
    trials: int | None
    num_rungs: int
    draw_seed: int
    space: Space
    workers: int = 1

    def __post_init__(self) -> None:
        check_at_least(1, trials=self.trials, num_rungs=self.num_rungs)
        check_choice("strategy", self.strategy, STRATEGIES)
        if self.strategy == "grid" and self.trials is not None:
            raise ConfigError("`trials` is without effect in a grid, which has all combinations.")

    @cached_property
    def points(self) -> list[Values]:
        """The configurations that are known before anything runs; TPE chooses the others."""
        if self.strategy == "grid":
            return self.space.grid()
        if self.strategy == "tpe":
            return []
        return self.space.drawn(self.trials or DEFAULT_TRIALS, self.draw_seed)

    @property
    def count(self) -> int:
        """The number of trials."""
        return len(self.points) or self.trials or DEFAULT_TRIALS

    @property
    def rungs(self) -> list[float]:
        """The parts of the budget; at all but the last, the better half goes on.

        The last rung before the end is at 1/4: later, and until the learning rate has decayed,
        scores say little about those at the end.
        """
        halvings = self.num_rungs if self.strategy == "successive-halving" else 0
        return [0.5 ** (halvings + 1 - rung) for rung in range(halvings)] + [1.0]

    def stages(self) -> list[tuple[float, int]]:
        """Of each rung: the part of the budget, and how many trials it has at most."""
        counts = [-(-self.count // 2**rung) for rung in range(len(self.rungs))]
        return [*zip(self.rungs, counts, strict=True)]

    def lines(self, recipe: Any) -> Iterator[str]:
        """The lines that are printed before the training: stages and budgets."""
        for until, count in self.stages():
            part = "the end" if until == 1 else f"{Fraction(until)} of the budget"
            yield f"trials that are trained to {part}: {count}, {_budget(recipe, until)} each"

    @contextmanager
    def _naming(self, number: int, values: Values) -> Iterator[None]:
        """Errors inside name a trial."""
        try:
            yield
        except RegardError as error:
            raise ConfigError(f"{_name(number)} ({' '.join(_texts(values))}): {error}") from None

    def check(self, path: Path, overrides: Sequence[str], recipe: Any) -> dict[str, Any]:
        """Check the recipes of all trials that are known; the conditions that they share.

        Raises:
            ConfigError: a recipe is wrong, or conditions differ.
        """
        checksums: dict[str, str] = {}
        shared = conditions_of(recipe, checksums)
        for number, values in enumerate(self.points):
            with self._naming(number, values):
                trial = recipe_options.read_recipe(path, [*overrides, *_texts(values)])
            both = {"the recipe": shared, _name(number): conditions_of(trial, checksums)}
            check_equal(both, HINT)
        return shared

    def check_models(self, path: Path, overrides: Sequence[str]) -> None:
        """Build the model of each trial on the meta device, without memory for its parameters.

        Raises:
            ConfigError: the options of a trial's model contradict each other.
        """
        for number, values in enumerate(self.points):
            with self._naming(number, values), on_meta():
                recipe: Any = recipe_options.read_recipe(path, [*overrides, *_texts(values)])
                if isinstance(recipe.model, recipe_options.FineTuneSection):
                    return
                build_model(recipe.model, build_tokenizer(recipe))

    def train(self, study: Study, path: Path, overrides: Sequence[str]) -> list[Trial]:
        """Train all trials."""
        if self.strategy != "tpe":
            values_of = {_name(number): values for number, values in enumerate(self.points)}
            return self._train_together(study, path, overrides, values_of)
        try:
            import optuna
        except ImportError as error:
            raise MissingExtra("optuna", "sweep", "A sweep by tpe") from error
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        suggestions, trials = optuna.create_study(direction="maximize"), list[Trial]()
        while len(trials) < self.count:
            asked, values_of = [], dict[str, Values]()
            for number in range(len(trials), min(len(trials) + self.workers, self.count)):
                # Each trial has a seed of its own, so that a resumed sweep suggests the same.
                suggestions.sampler = optuna.samplers.TPESampler(
                    seed=self.draw_seed + number, constant_liar=self.workers > 1
                )
                asked.append(suggestions.ask())
                axes = self.space.axes.items()
                values_of[_name(number)] = {n: axis.suggest(asked[-1], n) for n, axis in axes}
            new = self._train_together(study, path, overrides, values_of)
            for suggestion, trial in zip(asked, new, strict=True):
                failed = optuna.trial.TrialState.FAIL if trial.error else None
                suggestions.tell(suggestion, trial.score, state=failed)
            trials += new
        return trials

    def _train_together(
        self, study: Study, path: Path, overrides: Sequence[str], values_of: Mapping[str, Values]
    ) -> list[Trial]:
        """Train trials from rung to rung.

        After each rung the worse half is stopped; a single trial is trained to the end at once.
        """
        trials: dict[str, Trial] = {}
        alive = [*values_of]
        for until in self.rungs:
            if len(alive) == 1 and until < 1:
                continue
            runs = {}
            for name in alive:
                texts, values = [*overrides, *_texts(values_of[name])], values_of[name]
                runs[name] = runs_by_seed(
                    name, path, texts, study.options.seeds, study.folder, values
                )
            study.train([run for of_trial in runs.values() for run in of_trial], until)
            for name in alive:
                trials[name] = study.trial(runs[name], until)
            ranked = sorted(
                (n for n in alive if not trials[n].error), key=lambda n: -trials[n].score
            )
            alive = ranked[: -(-len(ranked) // 2)]
        return [trials[name] for name in values_of]


def _name(number: int) -> str:
    """The name of a trial, whose number is from 0."""
    return f"trial-{number + 1:02}"
