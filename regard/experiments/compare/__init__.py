"""Several models under equal conditions: the same data, tokenizer, decoding, scores, budget, seeds.

    compare(["lstm.toml", "transformer.toml"], seeds=(1, 2, 3), out="runs/compare")

Every run is a process of its own, so that its peak memory can be measured. Finished runs are kept:
the same call again continues where it was stopped, and can add seeds and recipes.

    OUT/
      conditions.json    what all runs share
      tokenizer/         trained once, for all, where models are not started from folders
      NAME-seed1/        a run folder, and outcome.json: what it reached and what it cost
      comparison.json    the results, for programs
      report.html        the results, for people
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.errors import ConfigError, check_at_least
from regard.experiments.compare.conditions import (
    check_equal,
    check_same_run,
    check_unchanged,
    conditions_of,
)
from regard.experiments.compare.results import OUTCOME, ComparisonResults, Outcome
from regard.experiments.compare.workers import RunJob, WorkerPool
from regard.experiments.runs import holds_tokenizer, name_of_run, read_recipe
from regard.file_writing import write_text
from regard.schema import read_json

CONDITIONS = "conditions.json"


@dataclass(frozen=True)
class ComparedRun:
    """One training of a comparison."""

    folder: Path
    recipe: Any
    job: RunJob


def compare(
    recipes: Sequence[str | Path],
    overrides: Sequence[str] = (),
    *,
    seeds: Sequence[int] = (1,),
    out: str | Path = "runs/compare",
    jobs: int = 1,
    show: str = "auto",
) -> ComparisonResults:
    """Train each recipe with each seed, measure, and write comparison.json and report.html.

    Args:
        recipes: files, at least one; each is a model of the comparison.
        overrides: `dotted.name=value`, for every recipe.
        seeds: each is a run of every recipe; the spread over them is shown.
        out: the folder; finished runs in it are not repeated.
        jobs: how many runs at once. Set `training.threads` so that all of them together have no
            more threads than the machine has cores.
        show: how progress is shown: "auto", "bar", "lines" or "none".

    Raises:
        ConfigError: the recipes differ in what must be equal, or `out` holds something else.
        RegardError: a run has failed; the others are kept.
        Interrupted: after Ctrl-C; the runs in progress are saved.
    """
    check_at_least(1, jobs=jobs)
    if not seeds or len(set(seeds)) < len(seeds):
        raise ConfigError(f"`seeds` must be different numbers, at least one, but is {seeds!r}.")
    out = Path(out)
    named = _named(recipes, overrides)
    shared = _shared(named)
    given = _with_tokenizer(next(iter(named.values()))[1], overrides, shared, out)
    runs = {
        name: [_run(path, (*given, f"seed={seed}"), out / f"{name}-seed{seed}") for seed in seeds]
        for name, (path, _) in named.items()
    }
    every = [run for of_model in runs.values() for run in of_model]
    for run in every:
        check_same_run(run.folder, run.recipe)
    unfinished = [run.job for run in every if not (run.folder / OUTCOME).exists()]
    WorkerPool(show).run(unfinished, jobs)
    outcomes = {n: tuple(Outcome.read(run.folder) for run in each) for n, each in runs.items()}
    result = ComparisonResults(out, shared, tuple(seeds), outcomes)
    write_text(out / "comparison.json", json.dumps(result.facts(), indent=1) + "\n")
    result.report().save(out / "report.html")
    return result


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


def _with_tokenizer(
    recipe: Any, overrides: Sequence[str], shared: Mapping[str, Any], out: Path
) -> list[str]:
    """The overrides of all runs: [tokenizer] is the path of the tokenizer that they share.

    It is trained here, unless that was done before or the recipe names one. Models that are started
    from folders have their own.
    """
    trained = recipe.tokenizer is not None and recipe.tokenizer.path is None
    conditions, tokenizer = out / CONDITIONS, (out / "tokenizer").absolute()
    if conditions.exists():
        check_unchanged(read_json(conditions), json.loads(json.dumps(shared)), out)
    if trained and not (conditions.exists() and holds_tokenizer(tokenizer)):
        recipe.tokenizer.build(recipe.data.texts).save(tokenizer)
    if not conditions.exists():
        out.mkdir(parents=True, exist_ok=True)
        write_text(conditions, json.dumps(shared, indent=1) + "\n")
    if not trained:
        return list(overrides)
    others = [one for one in overrides if not one.startswith("tokenizer.")]
    return [*others, f"tokenizer={{path={json.dumps(str(tokenizer))}}}"]


def _run(path: Path, overrides: tuple[str, ...], folder: Path) -> ComparedRun:
    job = RunJob(folder.name, folder, (str(path), *overrides))
    return ComparedRun(folder, read_recipe(path, overrides), job)
