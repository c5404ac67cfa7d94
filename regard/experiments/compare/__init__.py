"""Several models under equal conditions: the same data, tokenizer, search, scores, budget, seeds.

    compare(["lstm.toml", "transformer.toml"], seeds=(1, 2, 3), out="runs/compare")

Every run is a process of its own, so that its peak of memory is its own. What is finished stays:
the same call again goes on where it was stopped, and another seed or another recipe is added.

    OUT/
      conditions.json    what all runs share
      tokenizer/         learned once, for all, where models begin from nothing
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

from regard.checkpoints.store import write_text
from regard.data import hash_of
from regard.errors import ConfigError
from regard.experiments.compare.conditions import conditions_of, refuse_changes, refuse_unfair
from regard.experiments.compare.crew import Crew, Job
from regard.experiments.compare.results import OUTCOME, Comparison, Outcome
from regard.experiments.runs import holds_tokenizer, name_of_run, read_recipe
from regard.recipe import read
from regard.schema import read_json
from regard.tasks import task_class

CONDITIONS = "conditions.json"


@dataclass(frozen=True)
class Run:
    """One training of a comparison."""

    folder: Path
    recipe: Any
    job: Job

    def refuse_changes(self) -> None:
        """A folder that is there must hold this run and no other."""
        written = self.folder / "recipe.toml"
        if written.exists():
            before = read_recipe(written).model_dump(mode="json")
            refuse_changes(before, self.recipe.model_dump(mode="json"), self.folder)
            hashes = read(written).run.get("data", {})
            refuse_changes(hashes, {name: hash_of(name) for name in hashes}, self.folder)


def compare(
    recipes: Sequence[str | Path],
    overrides: Sequence[str] = (),
    *,
    seeds: Sequence[int] = (1,),
    out: str | Path = "runs/compare",
    jobs: int = 1,
    show: str = "auto",
) -> Comparison:
    """Train each recipe with each seed, measure, and write comparison.json and report.html.

    Args:
        overrides: `dotted.name=value`, for every recipe.
        seeds: each is a run of every recipe; the spread over them is shown.
        out: the folder; what is finished in it is not done again.
        jobs: how many runs at once. Set `training.threads` so that all of them together have no
            more threads than the machine has cores; what runs beside it slows each a little.
        show: how progress is shown: "auto", "bar", "lines" or "none".

    Raises:
        ConfigError: the recipes differ in what must be equal, or `out` holds something else.
        RegardError: a run has failed; the others are kept.
        Interrupted: after Ctrl-C; the run that was under way is saved.
    """
    if jobs < 1:
        raise ConfigError(f"`jobs` must be at least 1, but is {jobs}.")
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
    each = [run for several in runs.values() for run in several]
    for run in each:
        run.refuse_changes()
    left = [run.job for run in each if not (run.folder / OUTCOME).exists()]
    Crew(show).work(left, jobs)
    outcomes = {n: tuple(Outcome.read(run.folder) for run in many) for n, many in runs.items()}
    result = Comparison(out, shared, tuple(seeds), outcomes)
    write_text(out / "comparison.json", json.dumps(result.facts(), indent=1) + "\n")
    result.report().save(out / "report.html")
    return result


def _named(recipes: Sequence[str | Path], overrides: Sequence[str]) -> dict[str, tuple[Path, Any]]:
    """Each recipe under the name that the results have for it."""
    named: dict[str, tuple[Path, Any]] = {}
    for path in map(Path, recipes):
        recipe = read_recipe(path, overrides)
        name = name_of_run(path, recipe)
        if name in named:
            raise ConfigError(
                f"{named[name][0]} and {path} are both named {name!r}. Give one of them another "
                "`name`."
            )
        named[name] = path, recipe
    if not named:
        raise ConfigError("`recipes` must name at least one recipe, but is empty.")
    return named


def _shared(named: Mapping[str, tuple[Path, Any]]) -> dict[str, Any]:
    """The conditions, which are those of every recipe."""
    hashes: dict[str, str] = {}
    conditions = {name: conditions_of(recipe, hashes) for name, (_, recipe) in named.items()}
    refuse_unfair(conditions)
    return next(iter(conditions.values()))


def _with_tokenizer(
    recipe: Any, overrides: Sequence[str], shared: Mapping[str, Any], out: Path
) -> list[str]:
    """The overrides of all runs, which read one tokenizer: [tokenizer] names its folder.

    It is learned here, unless it is there already or the recipe names one. Models that are started
    from folders bring their own.
    """
    learned = recipe.tokenizer is not None and recipe.tokenizer.path is None
    place = out / CONDITIONS
    if place.exists():
        refuse_changes(read_json(place), json.loads(json.dumps(shared)), out)
    tokenizer = (out / "tokenizer").absolute()
    if learned and not (place.exists() and holds_tokenizer(tokenizer)):
        kind = task_class(recipe.task)
        recipe.tokenizer.build(lambda: kind.texts(recipe)).save(tokenizer)
    if not place.exists():
        out.mkdir(parents=True, exist_ok=True)
        write_text(place, json.dumps(shared, indent=1) + "\n")
    if not learned:
        return list(overrides)
    others = [one for one in overrides if not one.startswith("tokenizer.")]
    return [*others, f"tokenizer={{path={json.dumps(str(tokenizer))}}}"]


def _run(path: Path, overrides: tuple[str, ...], folder: Path) -> Run:
    job = Job(folder.name, folder, (str(path), *overrides))
    return Run(folder, read_recipe(path, overrides), job)
