"""Sweeps: one recipe with many values of its options, trained for equal budgets, ranked.

    space = {"learning_rate": LogUniform(1e-4, 1e-2), "model.d_model": [128, 256]}
    found = regard.sweep("recipe.toml", param_space=space, strategy="successive-halving")
    found.best.values, found.run

    OUT/
      sweep.json          the settings
      journal.log         Optuna's journal of the trials: the same call continues
      results.jsonl       a row for each run at each part of its budget
      conditions.json     what all runs share
      tokenizer/          trained once, for all, where models are not started from folders
      trial-01-seed1/     a run folder
      results.json        the results, for programs
      report.html         the results, for people

The trials are compared by the best validation score of the task's goal (the mean over the seeds),
never by test data.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, Unpack

from regard import habit_names
from regard.checkpoints.filling import on_meta
from regard.data.in_memory import is_path
from regard.errors import ConfigError, RegardError, check_at_least
from regard.executors import make_executor
from regard.executors.protocol import ExecutorOptions
from regard.experiments import runs
from regard.experiments.build_model import build_model, build_tokenizer
from regard.experiments.compare.conditions import (
    BUDGET,
    check_equal,
    check_unchanged,
    conditions_of,
)
from regard.experiments.compare.entries import in_files
from regard.experiments.compare.shared_tokenizer import shared_tokenizer
from regard.experiments.compare.study import (
    ResultLog,
    RunOptions,
    StudyRun,
    run_name,
    train_runs,
)
from regard.experiments.compare.workers import RunsDisplay
from regard.experiments.keyword_types import RecipeOptions
from regard.experiments.recipe_options import (
    FineTuneSection,
    open_recipe,
    read_recipe,
    schema_of,
)
from regard.experiments.sweep.results import SweepResults, results_of_sweep
from regard.experiments.sweep.space import Choice, LogUniform, Space, Uniform, Values, axis_of
from regard.experiments.sweep.trials import SweepTrials
from regard.file_writing import locked, write_json
from regard.recipe import check_name, full_name, takes
from regard.schema import read_json
from regard.suggest import nearest
from regard.toml_text import toml_value

__all__ = ["Choice", "LogUniform", "Uniform", "sweep", "sweep_file"]

STRATEGIES = ("grid", "random", "tpe", "successive-halving")
DEFAULT_TRIALS = 16  # if `trials` is not given
SETTINGS = "sweep.json"
PROBES = (0.5, 1.5)  # an option that takes one of them takes numbers that are not whole
# Options of [data] that make batches. They may be swept over: all trials read equally many tokens.
BATCHING = ("batch_size", "max_tokens_per_batch")
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
    **options: Unpack[RecipeOptions],
) -> SweepResults:
    """Train a recipe with many values of its options, and rank them by their validation scores.

    After an interruption, the same call continues. A trial that fails (no memory, NaN) is
    reported with its reason, and the other trials continue.

    Args:
        recipe, options: as of `regard.train`.
        param_space: for each option, by its name, a `Uniform`, a `LogUniform`, a `Choice` or a list
            of values (see `regard.experiments.sweep.space`). The name is dotted where several
            sections have the option.
        strategy: "grid", "random", "tpe" (values near those of good trials) or
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
        MissingExtra: Optuna is not installed.
        ConfigError: an option does not exist, or a trial has impossible values, before anything
            runs; or `out` holds another sweep.
        Interrupted: after Ctrl-C; the runs in progress are saved.
        RegardError: every trial has failed.
    """
    drawn = strategy, trials, num_rungs, draw_seed
    run_options = RunOptions(tuple(seeds), executor, workers, gpus, progress)
    if recipe is None or options:
        name = options.get("name") or (Path(recipe).stem if recipe else options.get("task", ""))
        out = Path("runs") / f"{name}-sweep" if out is None else Path(out)
        (recipe,) = in_files([{} if recipe is None else recipe], options, out)
    return sweep_file(recipe, (), param_space, drawn, run_options, out)


def sweep_file(
    recipe: str | PathLike[str],
    overrides: Sequence[str],
    param_space: Mapping[str, Any],
    drawn: tuple[str, int | None, int, int],
    options: RunOptions,
    out: str | PathLike[str] | None = None,
) -> SweepResults:
    """As `sweep`, of a file with the NAME=VALUE of a command line.

    drawn: `strategy`, `trials`, `num_rungs` and `draw_seed`.
    """
    if not is_path(recipe) or (out is not None and not is_path(out)):
        raise ConfigError(f"`recipe` and `out` must be paths, but are {recipe!r:.40}, {out!r:.40}.")
    path = Path(recipe)
    raw, checked = open_recipe(path, overrides)
    name = runs.name_of_run(path, checked.name)
    folder = Path("runs") / f"{name}-sweep" if out is None else Path(out)
    space = _space(schema_of(raw), param_space)
    plan = SweepPlan(*drawn, space, options.workers)
    made = Sweep(path, tuple(overrides), checked, plan, options.seeds, folder)
    shared = made.check()
    with closing(RunsDisplay(options.progress)) as shown, ExitStack() as stack:
        runs_on = make_executor(options.executor, options.workers, shown.log)
        stack.enter_context(locked(folder, "sweeping in"))
        made.begin()
        with_tokenizer = shared_tokenizer([checked], shared, folder)
        given = tuple(with_tokenizer(checked, overrides))
        made.check_models(given)
        for line in [*space.lines(), *made.lines()]:
            shown.say(line)
        log, journal = ResultLog(folder), SweepTrials(folder, plan.points, plan.draw_seed)
        while batch := journal.next(plan.count, plan.batch, space):
            for rung, until in enumerate(plan.rungs, 1):
                if alive := journal.begin_rung(batch, rung, until):
                    some = [run for n in alive for run in made.runs(n, journal.values(n), given)]
                    in_jobs: dict[str, Any] = {"every": shown.every, "gpus": options.gpus}
                    with closing(train_runs(some, log, runs_on, until=until, **in_jobs)) as rows:
                        for run, row in rows:
                            if told := journal.record(run, row, rung, until, len(options.seeds)):
                                shown.say(told)
                    journal.end_rung(alive, rung, until)
    found = results_of_sweep(folder, options.seeds, journal.configurations(), log, made.about())
    write_json(folder / "results.json", found.facts())
    found.report().save(folder / "report.html")
    return found


def _space(schema: Any, param_space: Mapping[str, Any]) -> Space:
    """The swept options by their dotted names; one may be given by its last part.

    Raises:
        ConfigError: there is no such option, or several sections have it; or it is the seed.
    """
    if not param_space:
        raise ConfigError(
            "`param_space` must name at least one option, such as model.d_model=128,256."
        )
    axes = {}
    for given, values in param_space.items():
        if given == "seed":
            raise ConfigError(
                "`seed` is no option to sweep over. Give several seeds: --seeds 1,2,3 (`seeds` in "
                "Python)."
            )
        name = full_name(schema, habit_names.OPTIONS.get(given, given))
        check_name(schema, name)
        axes[name] = axis_of(name, values, any(takes(schema, name, value) for value in PROBES))
    return Space(axes)


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
        if self.strategy not in STRATEGIES:
            known = nearest(self.strategy, STRATEGIES)
            raise ConfigError(f"`strategy` {self.strategy!r} is unknown. {known}")
        if self.strategy == "grid" and self.trials is not None:
            raise ConfigError(
                "`trials` has no effect with a grid, which has all combinations. Leave it out, or "
                "use --strategy random."
            )

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
    def batch(self) -> int:
        """How many trials are trained together."""
        return self.workers if self.strategy == "tpe" else self.count

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
        count, stages = self.count, list[tuple[float, int]]()
        for until in self.rungs:
            if count > 1 or not stages or until == 1:
                stages.append((until, count))
            count = -(-count // 2)
        return stages


@dataclass(frozen=True)
class Sweep:
    """A sweep before it runs.

    path, overrides, recipe: common to all trials, without the values that are swept over.
    """

    path: Path
    overrides: tuple[str, ...]
    recipe: Any
    plan: SweepPlan
    seeds: tuple[int, ...]
    folder: Path

    def texts(self, values: Values) -> list[str]:
        """A trial's values as overrides."""
        return [f"{name}={toml_value(value)}" for name, value in values.items()]

    @contextmanager
    def naming(self, number: int, values: Values) -> Iterator[None]:
        """Errors inside name a trial."""
        try:
            yield
        except RegardError as error:
            name = f"trial-{number + 1:02} ({' '.join(self.texts(values))})"
            raise ConfigError(f"{name}: {error}") from None

    def check(self) -> dict[str, Any]:
        """Check the recipes of all trials that are known; the conditions that they share.

        Raises:
            ConfigError: a recipe is wrong, or conditions differ.
        """
        checksums: dict[str, str] = {}
        shared = conditions_of(self.recipe, checksums)
        for number, values in enumerate(self.plan.points):
            with self.naming(number, values):
                recipe = read_recipe(self.path, [*self.overrides, *self.texts(values)])
            own = self._without_batching(conditions_of(recipe, checksums))
            names = {"the recipe": self._without_batching(shared), f"trial-{number + 1:02}": own}
            check_equal(names, HINT)
        return shared

    def _without_batching(self, conditions: Mapping[str, Any]) -> dict[str, Any]:
        """The conditions that all trials must share.

        The size of batches may be swept, unless the budget is in steps, which then read more.
        """
        if "max_steps" in conditions["budget"]:
            return dict(conditions)
        data = {name: one for name, one in conditions["data"].items() if name not in BATCHING}
        return {**conditions, "data": data}

    def check_models(self, overrides: Sequence[str]) -> None:
        """Build the model of each trial on the meta device, without memory for its parameters.

        Raises:
            ConfigError: the options of a trial's model contradict each other.
        """
        for number, values in enumerate(self.plan.points):
            with self.naming(number, values), on_meta():
                recipe: Any = read_recipe(self.path, [*overrides, *self.texts(values)])
                if isinstance(recipe.model, FineTuneSection):
                    return
                build_model(recipe.model, build_tokenizer(recipe))

    def begin(self) -> None:
        """Write the settings into the folder, or check that they are those from before.

        Raises:
            ConfigError: the folder holds another sweep; every difference is named.
        """
        settings = {
            "param_space": {name: str(axis) for name, axis in self.plan.space.axes.items()},
            "strategy": self.plan.strategy,
            "trials": self.plan.count,
            "rungs": self.plan.rungs,
            "seeds": [*self.seeds],
            "draw_seed": self.plan.draw_seed,
            "recipe": self.recipe.model_dump(mode="json"),
        }
        file = self.folder / SETTINGS
        if file.exists():
            check_unchanged(read_json(file), json.loads(json.dumps(settings)), self.folder)
        else:
            write_json(file, settings)

    def runs(self, number: int, values: Values, overrides: Sequence[str]) -> list[StudyRun]:
        """The run of each seed of a trial."""
        trial = f"trial-{number + 1:02}"
        made = []
        for seed in self.seeds:
            given = (*overrides, *self.texts(values), f"seed={seed}")
            recipe = read_recipe(self.path, given)
            folder = self.folder / run_name(trial, seed)
            made.append(StudyRun(trial, folder, recipe, self.path, given, seed, values))
        return made

    def about(self) -> dict[str, str]:
        """The settings that the report shows."""
        return {
            "strategy": self.plan.strategy,
            **{name: str(axis) for name, axis in self.plan.space.axes.items()},
            "seeds": ", ".join(map(str, self.seeds)),
            "budget of a run": self._budget(1),
        }

    def lines(self) -> Iterator[str]:
        """The lines that are printed before the training: stages and budgets."""
        before, spent, stages = 0.0, 0.0, self.plan.stages()
        for until, count in stages:
            trials = "1 trial" if count == 1 else f"{count} trials"
            verb = "continue" if before else "are trained"
            if count == 1:
                verb = "continues" if before else "is trained"
            part = "the end" if until == 1 else f"{Fraction(until)} of the budget"
            best = "the best " if before else ""
            yield f"{best}{trials} {verb} to {part}: {self._budget(until)} each"
            spent += count * (until - before) * len(self.seeds)
            before = until
        most = stages[0][1] * len(self.seeds)
        seeds = f" ({len(self.seeds)} seeds per trial)" if len(self.seeds) > 1 else ""
        share = f", {spent / most:.0%} of training all trials to the end" if spent < most else ""
        yield f"in total at most {self._budget(spent)}{seeds}{share}"

    def _budget(self, times: float) -> str:
        """The budget of the recipe, multiplied by `times`, in words."""
        limits = {name: getattr(self.recipe.training, name) for name in BUDGET}
        found = {name: limit * times for name, limit in limits.items() if limit}
        return " or ".join(
            f"{count:,.0f} {name}" if count >= 100 else f"{count:.3g} {name}"
            for name, count in found.items()
        )
