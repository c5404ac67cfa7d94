"""Sweeps: one recipe with many values of its options, trained for equal budgets, ranked.

    space = {"learning_rate": LogUniform(1e-4, 1e-2), "model.d_model": [128, 256]}
    found = regard.sweep("recipe.toml", param_space=space, strategy="successive-halving")
    found.best.values, found.run

    OUT/
      sweep.json          the settings, and the state of each run: the same call continues
      conditions.json     what all runs share
      tokenizer/          trained once, for all, where models are not started from folders
      trial-01-seed1/     a run folder
      results.json        the results, for programs
      report.html         the results, for people

The trials are compared by the best validation score of the task's goal (the mean over the seeds),
never by test data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from fractions import Fraction
from os import PathLike
from pathlib import Path
from typing import Any, Unpack

from regard.checkpoints.filling import on_meta
from regard.errors import RegardError
from regard.executors import Job, make_executor
from regard.executors.protocol import Executor, ExecutorOptions
from regard.experiments.build_model import build_model, build_tokenizer
from regard.experiments.compare.conditions import check_equal, check_same_run, conditions_of
from regard.experiments.compare.entries import in_files
from regard.experiments.compare.results import OUTCOME, Outcome, run_name
from regard.experiments.compare.shared_tokenizer import shared_tokenizer
from regard.experiments.compare.workers import Display, display, run_jobs
from regard.experiments.keyword_types import RecipeOptions
from regard.experiments.recipe_options import FineTuneSection, read_recipe
from regard.experiments.sweep.methods import FinishedStage, SweepStage
from regard.experiments.sweep.results import SweepResults, Trial, ordered
from regard.experiments.sweep.settings import SweepSettings, checked_settings
from regard.experiments.sweep.space import Choice, LogUniform, Uniform, Values
from regard.experiments.sweep.state import ERROR, SweepState
from regard.file_writing import locked, write_json

__all__ = ["Choice", "LogUniform", "Uniform", "sweep", "sweep_file"]

FUNCTION = "regard.experiments.sweep.trial:trained_until"
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
        strategy: "grid", "random" or "successive-halving".
        trials: how many configurations are drawn; None: 16, or all where there are fewer.
        num_rungs: how often successive halving stops the worse half; the last time at 1/4 of the
            budget, before that at 1/8, and so on.
        seeds: each is a run of every trial; trials are compared by the mean of their scores.
        draw_seed: the seed of the random configurations.
        out: the folder; None: runs/NAME-sweep.
        executor, workers, gpus: where runs are processes, how many at once, and the GPUs of each,
            as of `regard.compare`.
        progress: whether the progress is shown.

    Raises:
        ConfigError: an option does not exist, or a trial has impossible values, before anything
            runs; or `out` holds another sweep.
        Interrupted: after Ctrl-C; the runs in progress are saved.
        RegardError: every trial has failed.
    """
    if recipe is None or options:
        name = options.get("name") or (Path(recipe).stem if recipe else options.get("task", ""))
        out = Path("runs") / f"{name}-sweep" if out is None else Path(out)
        (recipe,) = in_files([{} if recipe is None else recipe], options, out)
    return sweep_file(
        recipe,
        param_space=param_space,
        strategy=strategy,
        trials=trials,
        num_rungs=num_rungs,
        seeds=seeds,
        draw_seed=draw_seed,
        out=out,
        executor=executor,
        workers=workers,
        gpus=gpus,
        progress=progress,
    )


def sweep_file(
    recipe: str | PathLike[str],
    overrides: Sequence[str] = (),
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
) -> SweepResults:
    """As `sweep`, of a file with the NAME=VALUE of a command line."""
    settings = checked_settings(
        recipe, overrides, param_space, strategy, trials, num_rungs, seeds, draw_seed, workers, out
    )
    checked = _check_stage(settings, settings.method.next([]))
    with closing(display(progress)) as shown, ExitStack() as stack:
        runs_on = make_executor(executor, workers, shown.log)
        stack.enter_context(locked(settings.folder, "sweeping in"))
        state = SweepState(settings.folder, settings.facts())
        with_tokenizer = shared_tokenizer([settings.recipe], checked, settings.folder)
        given = with_tokenizer(settings.recipe, settings.overrides)
        made = _Sweep(settings, tuple(given), state, runs_on, shown, gpus)
        made.check_models(settings.method.next([]))
        for line in settings.lines():
            shown.say(line)
        made.train()
    return _write_results(settings, state)


def _check_stage(settings: SweepSettings, stage: SweepStage | None) -> dict[str, Any]:
    """Check the recipes of all trials of a stage; the conditions that they share.

    Raises:
        ConfigError: a recipe is wrong, or conditions differ.
    """
    checksums: dict[str, str] = {}
    shared = conditions_of(settings.recipe, checksums)
    for name, values in (stage.trials if stage else {}).items():
        own = conditions_of(settings.recipe_of(name, values), checksums)
        check_equal(
            {"the recipe": settings.without_batching(shared), name: settings.without_batching(own)},
            HINT,
        )
    return shared


@dataclass(frozen=True)
class _Sweep:
    """A sweep in progress.

    overrides: those of all runs.  executor: where the runs are trained.  shown: the display of
    their progress.  gpus: the GPUs of each run.
    """

    settings: SweepSettings
    overrides: tuple[str, ...]
    state: SweepState
    executor: Executor
    shown: Display
    gpus: int

    def train(self) -> None:
        """Train one stage after another."""
        finished: list[FinishedStage] = []
        while (stage := self.settings.method.next(finished)) is not None:
            if finished:
                _check_stage(self.settings, stage)
                self.check_models(stage)
            self.state.begin(len(finished), stage)
            finished.append(self._train(len(finished), stage))

    def _train(self, index: int, stage: SweepStage) -> FinishedStage:
        """Train the runs of a stage that are not finished."""
        done = self.state.reached(index)
        jobs = [job for job in self._jobs(stage) if job.name not in done]
        with closing(run_jobs(self.executor, jobs)) as results:
            for job, future in results:
                try:
                    found: Any = future.result()
                except RegardError as error:
                    found = {ERROR: str(error)}
                if found.get("score", 0) is None:
                    found = {ERROR: "no validation score is finite"}
                if ERROR in found:
                    self.shown.say(f"{job.name} has failed: {found[ERROR]}")
                    (self.settings.folder / job.name).mkdir(exist_ok=True)
                self.state.record(index, job.name, found)
        return finished_stage(stage, self.state.reached(index), self.settings.seeds)

    def _jobs(self, stage: SweepStage) -> Iterator[Job]:
        for name, values in stage.trials.items():
            for seed in self.settings.seeds:
                run = self.settings.folder / run_name(name, seed)
                overrides = (*self.overrides, *self.settings.texts(values), f"seed={seed}")
                recipe: Any = read_recipe(self.settings.path, overrides)
                check_same_run(run, recipe)
                given = {
                    "folder": str(run),
                    "recipe": str(self.settings.path),
                    "overrides": overrides,
                    "every": self.shown.every,
                    "until": float(stage.until),
                }
                yield Job(FUNCTION, given, run.name, recipe.training.threads, self.gpus)

    def check_models(self, stage: SweepStage | None) -> None:
        """Build the model of each trial on the meta device, without memory for its parameters.

        Raises:
            ConfigError: the options of a trial's model contradict each other.
        """
        for name, values in (stage.trials if stage else {}).items():
            recipe: Any = self.settings.recipe_of(name, values, self.overrides)
            if isinstance(recipe.model, FineTuneSection):
                return
            with self.settings.naming(name, values), on_meta():
                build_model(recipe.model, build_tokenizer(recipe))


def finished_stage(
    stage: SweepStage, reached: Mapping[str, Mapping[str, Any]], seeds: Sequence[int]
) -> FinishedStage:
    """A stage with the mean score of each trial.

    reached: what each run of the stage has reached, by its name.
    """
    scores: dict[str, float | None] = {}
    better = "min"
    for name in stage.trials:
        found = [reached[run_name(name, seed)] for seed in seeds]
        failed = any(ERROR in one for one in found)
        scores[name] = None if failed else sum(one["score"] for one in found) / len(found)
        better = next((one["goal"][1] for one in found if ERROR not in one), better)
    return FinishedStage(stage, scores, better)


def _write_results(settings: SweepSettings, state: SweepState) -> SweepResults:
    """Write results.json and report.html; returns the results.

    Raises:
        RegardError: every trial has failed.
    """
    latest: dict[str, tuple[Fraction, Values, list[dict[str, Any]]]] = {}
    for until, trials, reached in state.stages():
        for name, values in trials.items():
            latest[name] = until, values, [reached[run_name(name, seed)] for seed in settings.seeds]
    every = [run for _, _, several in latest.values() for run in several]
    goal = next((run["goal"] for run in every if ERROR not in run), None)
    if goal is None:
        reasons = dict.fromkeys(str(run[ERROR]) for run in every)
        raise RegardError(f"every trial has failed: {'; '.join(reasons)}")
    ranked = ordered([_trial(settings, name, *one) for name, one in latest.items()], goal[1])
    spent = sum(run.get("tokens", 0) for run in every)
    about = settings.about() | {"read by all runs": f"{spent:,} tokens"}
    found = SweepResults(settings.folder, (goal[0], goal[1]), settings.seeds, ranked, about)
    write_json(settings.folder / "results.json", found.facts())
    found.report().save(settings.folder / "report.html")
    return found


def _trial(
    settings: SweepSettings,
    name: str,
    until: Fraction,
    values: Values,
    reached: Sequence[Mapping[str, Any]],
) -> Trial:
    tokens = sum(run.get("tokens", 0) for run in reached)
    errors = [str(run[ERROR]) for run in reached if ERROR in run]
    if errors:
        return Trial(name, values, until, (), tokens, error=errors[0])
    folders = [settings.folder / run_name(name, seed) for seed in settings.seeds]
    outcomes = tuple(
        Outcome.read(one) for one in folders if until == 1 and (one / OUTCOME).exists()
    )
    return Trial(name, values, until, tuple(run["score"] for run in reached), tokens, outcomes)
