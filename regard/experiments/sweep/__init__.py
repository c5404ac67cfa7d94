"""Sweeps: one recipe with many values of its options, trained for equal budgets, ranked.

    found = regard.sweep("recipe.toml", over={"training.optimizer.learning_rate": (1e-4, 1e-2),
                                              "model.d_model": [128, 256]}, by="successive-halving")
    found.best.values, found.run

    OUT/
      sweep.json          what was asked, and what each run has reached: the same call goes on
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
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch

from regard.checkpoints.filling import SkipInit
from regard.errors import RegardError
from regard.executors import Job, executor
from regard.executors.protocol import Executor
from regard.experiments.build_model import build_model, build_tokenizer
from regard.experiments.compare.conditions import check_equal, check_same_run, conditions_of
from regard.experiments.compare.results import OUTCOME, Outcome
from regard.experiments.compare.shared_tokenizer import with_shared_tokenizer
from regard.experiments.compare.workers import Display, display, run_jobs
from regard.experiments.recipe_options import FineTuneSection, read_recipe
from regard.experiments.sweep.asking import Asked, ask
from regard.experiments.sweep.methods import FinishedStage, SweepStage
from regard.experiments.sweep.results import SweepResults, Trial, ordered
from regard.experiments.sweep.space import Values
from regard.experiments.sweep.state import ERROR, SweepState
from regard.file_writing import locked, write_text
from regard.progress import Show

RUN = "regard.experiments.sweep.trial:trained_until"


def sweep(
    recipe: str | Path,
    overrides: Sequence[str] = (),
    *,
    over: Mapping[str, Any],
    by: str = "grid",
    trials: int | None = None,
    rungs: int = 3,
    seeds: Sequence[int] = (1,),
    draw_seed: int = 1,
    out: str | Path | None = None,
    on: str = "local",
    workers: int = 1,
    gpus: int = 0,
    show: Show = "auto",
) -> SweepResults:
    """Train a recipe with many values of its options, and rank them by their validation scores.

    The same call again goes on where it was stopped. A trial that fails (no memory, NaN) is
    reported with its reason, and the others go on.

    Args:
        recipe, overrides: as of `regard.train`, a file and `dotted.name=value`.
        over: for each option, by its dotted name, a list of values or a range (low, high); or
            either as the command line has it, "1e-4..1e-2" (see `regard.experiments.sweep.space`).
        by: "grid", "random", "successive-halving" or "ray-tune:SEARCHER".
        trials: how many configurations are drawn; None: 16, or all where there are fewer.
        rungs: of successive halving: the first is at 2^-rungs of the budget.
        seeds: each is a run of every trial; trials are compared by the mean of their scores.
        draw_seed: of the configurations that are drawn.
        out: the folder; None: runs/NAME-sweep.
        on, workers, gpus: where runs are processes, how many at once, and the GPUs of each, as of
            `regard.experiments.compare.compare`.
        show: how progress is shown: "auto", "bar", "lines" or "none".

    Raises:
        ConfigError: an option does not exist, or a trial has impossible values, before anything
            runs; or `out` holds another sweep.
        Interrupted: after Ctrl-C; the runs in progress are saved.
        RegardError: every trial has failed.
    """
    asked = ask(recipe, overrides, over, by, trials, rungs, seeds, draw_seed, workers, out)
    runs_on = executor(on, workers)
    checked = _checked(asked, asked.method.next([]))
    with locked(asked.folder, "sweeping in"), closing(display(show)) as shown:
        state = SweepState(asked.folder, asked.facts())
        given = with_shared_tokenizer(asked.recipe, asked.overrides, checked, asked.folder)
        made = _Sweep(asked, tuple(given), state, runs_on, shown, gpus)
        made.check_models(asked.method.next([]))
        for line in asked.lines():
            shown.say(line)
        made.train()
    return _written(asked, state)


def _checked(asked: Asked, stage: SweepStage | None) -> dict[str, Any]:
    """The conditions of all trials of a stage, whose recipes are right.

    Raises:
        ConfigError: a recipe is wrong, or conditions differ.
    """
    checksums: dict[str, str] = {}
    shared = conditions_of(asked.recipe, checksums)
    for name, values in (stage.trials if stage else {}).items():
        own = conditions_of(asked.recipe_of(name, values), checksums)
        check_equal(
            {"the recipe": asked.without_batching(shared), name: asked.without_batching(own)}
        )
    return shared


@dataclass(frozen=True)
class _Sweep:
    """A sweep and what it runs with; overrides: those of all runs."""

    asked: Asked
    overrides: tuple[str, ...]
    state: SweepState
    executor: Executor
    shown: Display
    gpus: int

    def train(self) -> None:
        """SweepStage after stage."""
        finished: list[FinishedStage] = []
        while (stage := self.asked.method.next(finished)) is not None:
            if finished:
                _checked(self.asked, stage)
                self.check_models(stage)
            self.state.begin(len(finished), stage)
            finished.append(self._train(len(finished), stage))

    def _train(self, index: int, stage: SweepStage) -> FinishedStage:
        """Train the runs of a stage that are left."""
        done = self.state.reached(index)
        jobs = [job for job in self._jobs(stage) if job.name not in done]
        with closing(run_jobs(self.executor, jobs, self.shown)) as results:
            for result in results:
                found: Any = {ERROR: result.error} if result.error else result.value
                if found.get("score", 0) is None:
                    found = {ERROR: "no validation score is finite"}
                if ERROR in found:
                    self.shown.say(f"{result.job.name} has failed: {found[ERROR]}")
                    (self.asked.folder / result.job.name).mkdir(exist_ok=True)
                self.state.record(index, result.job.name, found)
        return finished_stage(stage, self.state.reached(index), self.asked.seeds)

    def _jobs(self, stage: SweepStage) -> Iterator[Job]:
        for name, values in stage.trials.items():
            for seed in self.asked.seeds:
                run = self.asked.folder / f"{name}-seed{seed}"
                overrides = (*self.overrides, *self.asked.texts(values), f"seed={seed}")
                recipe: Any = read_recipe(self.asked.path, overrides)
                check_same_run(run, recipe)
                given = {
                    "folder": str(run),
                    "recipe": str(self.asked.path),
                    "overrides": overrides,
                    "every": self.shown.every,
                    "until": float(stage.until),
                }
                yield Job(RUN, given, run.name, recipe.training.threads, self.gpus)

    def check_models(self, stage: SweepStage | None) -> None:
        """Build each model without numbers.

        Raises:
            ConfigError: the options of a trial's model contradict each other.
        """
        for name, values in (stage.trials if stage else {}).items():
            recipe: Any = self.asked.recipe_of(name, values, self.overrides)
            if isinstance(recipe.model, FineTuneSection):
                return
            with self.asked.naming(name, values), torch.device("meta"), SkipInit():
                build_model(recipe.model, build_tokenizer(recipe))


def finished_stage(
    stage: SweepStage, reached: Mapping[str, Mapping[str, Any]], seeds: Sequence[int]
) -> FinishedStage:
    """A stage with the mean score of each trial."""
    scores: dict[str, float | None] = {}
    better = "min"
    for name in stage.trials:
        found = [reached[f"{name}-seed{seed}"] for seed in seeds]
        failed = any(ERROR in one for one in found)
        scores[name] = None if failed else sum(one["score"] for one in found) / len(found)
        better = next((one["goal"][1] for one in found if ERROR not in one), better)
    return FinishedStage(stage, scores, better)


def _written(asked: Asked, state: SweepState) -> SweepResults:
    """The results, also in results.json and report.html."""
    latest: dict[str, tuple[Fraction, Values, list[dict[str, Any]]]] = {}
    for until, trials, reached in state.stages():
        for name, values in trials.items():
            latest[name] = until, values, [reached[f"{name}-seed{one}"] for one in asked.seeds]
    every = [run for _, _, several in latest.values() for run in several]
    goal = next((run["goal"] for run in every if ERROR not in run), None)
    if goal is None:
        reasons = dict.fromkeys(str(run[ERROR]) for run in every)
        raise RegardError(f"every trial has failed: {'; '.join(reasons)}")
    ranked = ordered([_trial(asked, name, *one) for name, one in latest.items()], goal[1])
    spent = sum(run.get("tokens", 0) for run in every)
    about = asked.about() | {"read by all runs": f"{spent:,} tokens"}
    found = SweepResults(asked.folder, (goal[0], goal[1]), asked.seeds, ranked, about)
    write_text(asked.folder / "results.json", json.dumps(found.facts(), indent=1) + "\n")
    found.report().save(asked.folder / "report.html")
    return found


def _trial(
    asked: Asked, name: str, until: Fraction, values: Values, reached: Sequence[Mapping[str, Any]]
) -> Trial:
    tokens = sum(run.get("tokens", 0) for run in reached)
    errors = [str(run[ERROR]) for run in reached if ERROR in run]
    if errors:
        return Trial(name, values, until, (), tokens, error=errors[0])
    folders = [asked.folder / f"{name}-seed{seed}" for seed in asked.seeds]
    outcomes = tuple(
        Outcome.read(one) for one in folders if until == 1 and (one / OUTCOME).exists()
    )
    return Trial(name, values, until, tuple(run["score"] for run in reached), tokens, outcomes)
