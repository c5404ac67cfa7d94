"""Several models under equal conditions: the same data, tokenizer, decoding, scores, budget, seeds.

    compare(["lstm.toml", "transformer.toml"], seeds=(1, 2, 3), out="runs/compare")

Every run is a process of its own, so that its peak memory can be measured. Finished runs are kept:
the same call again continues where it was stopped, and can add seeds and recipes. A run whose
process is lost continues from its checkpoint, wherever the executor starts it again.

    OUT/
      conditions.json    what all runs share
      tokenizer/         trained once, for all, where models are not started from folders
      NAME-seed1/        a run folder, and outcome.json: what it reached and what it cost
      results.jsonl      a row for each run
      comparison.json    the results, for programs
      report.html        the results, for people
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from os import PathLike
from pathlib import Path
from typing import Any, Unpack

from regard.errors import RegardError
from regard.executors import make_executor
from regard.executors.protocol import Executor, ExecutorOptions
from regard.experiments.compare.conditions import check_same_run
from regard.experiments.compare.entries import (
    Compared,
    Entry,
    entries_of,
    in_files,
    shared_conditions,
)
from regard.experiments.compare.results import (
    COMPARISON,
    OUTCOME,
    Comparison,
    Outcome,
)
from regard.experiments.compare.shared_tokenizer import shared_tokenizer
from regard.experiments.compare.study import (
    ERROR,
    ResultLog,
    RunOptions,
    StudyRun,
    run_name,
    train_runs,
)
from regard.experiments.compare.workers import RunsDisplay
from regard.experiments.keyword_types import RecipeOptions
from regard.experiments.recipe_options import read_recipe
from regard.file_writing import locked, write_json

DEFAULTS = RunOptions()


def compare(
    recipes: Sequence[Compared],
    *,
    seeds: Sequence[int] = (1,),
    out: str | PathLike[str] = "runs/compare",
    executor: str | ExecutorOptions = "local",
    workers: int = 1,
    gpus: int = 0,
    progress: bool = True,
    **options: Unpack[RecipeOptions],
) -> Comparison:
    """Train each recipe with each seed, measure, and write comparison.json and report.html.

        compare(["lstm.toml", "transformer.toml"], seeds=(1, 2, 3))
        compare(["runs/first", "runs/second"])
        compare([{"model": {"name": "bilstm"}}, {"model": "path/to/minilm", "learning_rate": 5e-5}],
                task="classification", train=dataframe, valid=other, epochs=3)

    Args:
        recipes: the models of the comparison. Each is a recipe, the keywords of `regard.train`, the
            name or the folder of a model, or a run or its folder, which is scored and not trained
            again; an unfinished one is continued.
        seeds: each is a run of every recipe; the spread over them is shown.
        out: the folder; finished runs in it are not repeated.
        executor: where runs are processes: "local", "slurm", "ray", or one with its options.
        workers: how many runs at once. Where the recipe leaves `training.threads` open, they share
            the machine's cores; other numbers of threads give other last bits.
        gpus: how many GPUs of its own each run has; 0: it finds those that there are.
        progress: whether the progress is shown.
        options: as of `regard.train`, for every recipe.

    Raises:
        ConfigError: the recipes differ in what must be equal, or `out` holds something else, or
            another process is comparing in it.
        RegardError: a run has failed; the others are kept.
        Interrupted: after Ctrl-C; the runs in progress are saved.
    """
    run_options = RunOptions(tuple(seeds), executor, workers, gpus, progress)
    return compare_files(in_files(recipes, options, Path(out)), (), run_options, out)


def compare_files(
    paths: Sequence[str | PathLike[str]],
    overrides: Sequence[str] = (),
    options: RunOptions = DEFAULTS,
    out: str | PathLike[str] = "runs/compare",
) -> Comparison:
    """As `compare`, of recipes with the NAME=VALUE of a command line, and of run folders."""
    out = Path(out)
    entries = entries_of(paths, overrides)
    shared = shared_conditions(entries)
    with closing(RunsDisplay(options.progress)) as shown:
        runs_on = make_executor(options.executor, options.workers, shown.log)
        with locked(out, "comparing in"):
            outcomes = _outcomes(entries, overrides, shared, options, out, runs_on, shown.every)
    found = Comparison(out, shared, options.seeds, outcomes)
    write_json(out / COMPARISON, found.facts())
    found.report().save(out / "report.html")
    return found


def _outcomes(
    entries: Mapping[str, Entry],
    overrides: Sequence[str],
    shared: Mapping[str, Any],
    options: RunOptions,
    out: Path,
    executor: Executor,
    every: float,
) -> dict[str, tuple[Outcome, ...]]:
    """Train what is not finished; the outcomes of each entry by its name."""
    recipes = [one.recipe for one in entries.values() if one.run is None]
    with_tokenizer = shared_tokenizer(recipes, shared, out)
    runs = {
        name: _runs_of(name, entry, with_tokenizer(entry.recipe, overrides), options.seeds, out)
        for name, entry in entries.items()
    }
    every_run = [run for of_model in runs.values() for run in of_model]
    for run in every_run:  # before any is trained
        check_same_run(run.folder, run.recipe)
    left = [run for run in every_run if not (run.folder / OUTCOME).exists()]
    in_jobs: dict[str, Any] = {"every": every, "gpus": options.gpus, "retry": True}
    with closing(train_runs(left, ResultLog(out), executor, **in_jobs)) as rows:
        for run, row in rows:
            if ERROR in row:
                raise RegardError(
                    f"the run in {run.folder} has failed: {row[ERROR]}\n"
                    "Finished runs are kept: the same command continues from there."
                )
    return {n: tuple(Outcome.read(run.folder) for run in each) for n, each in runs.items()}


def _runs_of(
    name: str, entry: Entry, overrides: Sequence[str], seeds: Sequence[int], out: Path
) -> list[StudyRun]:
    """The run of each seed; of a run that there is, itself."""
    if entry.run is not None:
        return [StudyRun(name, entry.run, entry.recipe, entry.path, ())]
    runs = []
    for seed in seeds:
        given = (*overrides, f"seed={seed}")
        recipe = read_recipe(entry.path, given)
        runs.append(StudyRun(name, out / run_name(name, seed), recipe, entry.path, given, seed))
    return runs
