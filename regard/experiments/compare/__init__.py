"""Several models under equal conditions: the same data, tokenizer, decoding, scores, budget, seeds.

    compare(["lstm.toml", "transformer.toml"], seeds=(1, 2, 3), out="runs/compare")

Every run is a process of its own, so that its peak memory can be measured. Finished runs are kept:
the same call again continues where it was stopped, and can add seeds and recipes. A run whose
process is lost continues from its checkpoint, wherever the executor starts it again.

    OUT/
      conditions.json    what all runs share
      tokenizer/         trained once, for all, where models are not started from folders
      NAME-seed1/        a run folder, and outcome.json: what it reached and what it cost
      comparison.json    the results, for programs
      report.html        the results, for people
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.errors import ConfigError, RegardError
from regard.executors import Job, JobResult, make_executor
from regard.executors.protocol import ExecutorOptions
from regard.experiments.compare.conditions import check_equal, check_same_run, conditions_of
from regard.experiments.compare.results import (
    COMPARISON,
    OUTCOME,
    Comparison,
    Outcome,
    run_name,
)
from regard.experiments.compare.shared_tokenizer import with_shared_tokenizer
from regard.experiments.compare.workers import display, run_jobs
from regard.experiments.recipe_options import read_recipe
from regard.experiments.runs import name_of_run
from regard.file_writing import locked, write_json

FUNCTION = "regard.experiments.compare.worker:measured_run"


@dataclass(frozen=True)
class ComparedRun:
    """One training of a comparison."""

    folder: Path
    recipe: Any
    arguments: tuple[str, tuple[str, ...]]  # the recipe's path and overrides

    def job(self, every: float, gpus: int) -> Job:
        """The job that trains and measures it; every: seconds between messages."""
        path, overrides = self.arguments
        given = {"folder": str(self.folder), "recipe": path, "overrides": overrides, "every": every}
        return Job(FUNCTION, given, self.folder.name, self.recipe.training.threads, gpus)


def compare(
    recipes: Sequence[str | Path],
    overrides: Sequence[str] = (),
    *,
    seeds: Sequence[int] = (1,),
    out: str | Path = "runs/compare",
    executor: str | ExecutorOptions = "local",
    workers: int = 1,
    gpus: int = 0,
    progress: bool = True,
) -> Comparison:
    """Train each recipe with each seed, measure, and write comparison.json and report.html.

    Args:
        recipes: files, at least one; each is a model of the comparison.
        overrides: `dotted.name=value`, for every recipe.
        seeds: each is a run of every recipe; the spread over them is shown.
        out: the folder; finished runs in it are not repeated.
        executor: where runs are processes: "local", "slurm", "ray", or one with its options.
        workers: how many runs at once. Where the recipe leaves `training.threads` open, they share
            the machine's cores; other numbers of threads give other last bits.
        gpus: how many GPUs of its own each run has; 0: it finds those that there are.
        progress: whether the progress is shown.

    Raises:
        ConfigError: the recipes differ in what must be equal, or `out` holds something else, or
            another process is comparing in it.
        RegardError: a run has failed; the others are kept.
        Interrupted: after Ctrl-C; the runs in progress are saved.
    """
    runs_on = make_executor(executor, workers)
    if not seeds or len(set(seeds)) < len(seeds):
        raise ConfigError(f"`seeds` must be different numbers, at least one, but is {seeds!r}.")
    out = Path(out)
    named = _named(recipes, overrides)
    shared = _shared(named)
    with locked(out, "comparing in"), closing(display(progress)) as shown:
        given = with_shared_tokenizer(next(iter(named.values()))[1], overrides, shared, out)
        runs = {
            name: [_run(path, (*given, f"seed={n}"), out / run_name(name, n)) for n in seeds]
            for name, (path, _) in named.items()
        }
        every = [run for of_model in runs.values() for run in of_model]
        for run in every:
            check_same_run(run.folder, run.recipe)
        unfinished = [run for run in every if not (run.folder / OUTCOME).exists()]
        jobs = [run.job(shown.every, gpus) for run in unfinished]
        with closing(run_jobs(runs_on, jobs, shown)) as results:
            for result in results:
                _check_done(result)
    outcomes = {n: tuple(Outcome.read(run.folder) for run in each) for n, each in runs.items()}
    found = Comparison(out, shared, tuple(seeds), outcomes)
    write_json(out / COMPARISON, found.facts())
    found.report().save(out / "report.html")
    return found


def _check_done(result: JobResult) -> None:
    """Raises RegardError where a run has failed."""
    if result.error:
        folder = result.job.arguments["folder"]
        raise RegardError(
            f"the run in {folder} has failed: {result.error}\n"
            "Finished runs are kept: the same command continues from there."
        )


def _named(recipes: Sequence[str | Path], overrides: Sequence[str]) -> dict[str, tuple[Path, Any]]:
    """The recipes and their files, by the names of their runs."""
    named: dict[str, tuple[Path, Any]] = {}
    for path in map(Path, recipes):
        _check_no_run(path)
        recipe = read_recipe(path, overrides)
        name = name_of_run(path, recipe.name)
        if name in named:
            raise ConfigError(
                f"{named[name][0]} and {path} are both named {name!r}. Give one of them another "
                "`name`."
            )
        named[name] = path, recipe
    if not named:
        raise ConfigError("`recipes` must name at least one recipe, but is empty.")
    return named


def _check_no_run(path: Path) -> None:
    """Raises ConfigError for the folder of a run, which is no recipe; it says what to do."""
    if (path / "recipe.toml").exists():
        raise ConfigError(
            f"{path} is a run, and `compare` trains recipes under equal conditions. Its own recipe "
            f"can be one of them: regard compare {path / 'recipe.toml'} OTHER.toml. Scores and "
            f"curves of the run alone are in {path / 'report.html'}; regard evaluate {path} scores "
            "it again."
        )


def _shared(named: Mapping[str, tuple[Path, Any]]) -> dict[str, Any]:
    """The conditions, which are those of every recipe."""
    checksums: dict[str, str] = {}
    conditions = {name: conditions_of(recipe, checksums) for name, (_, recipe) in named.items()}
    check_equal(conditions)
    return next(iter(conditions.values()))


def _run(path: Path, overrides: tuple[str, ...], folder: Path) -> ComparedRun:
    return ComparedRun(folder, read_recipe(path, overrides), (str(path), overrides))
