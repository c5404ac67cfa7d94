"""Cross-validation: one training for each fold of the training data, which is validated on it.

    found = cross_validate("recipe.toml", folds=5)
    found.mean["accuracy"], found.sd["accuracy"]

The recipe of each run names its fold, `valid = {fold = 1, of = 5}`, so each is a run like any
other. The same call again continues where it was stopped.

    OUT/
      fold-1/                  a run folder
      results.jsonl            a row for each fold
      data/                    data that were in memory
      cross-validation.json    the results, for programs
      report.html              the results, for people
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Unpack

from regard.errors import ConfigError
from regard.experiments import keywords, runs
from regard.experiments.compare.conditions import check_same_run
from regard.experiments.compare.study import ResultLog, cv_results
from regard.experiments.keyword_types import RecipeOptions
from regard.experiments.recipe_options import checked_recipe, schema_of
from regard.experiments.run_folder import Run, check_out
from regard.file_writing import write_json
from regard.progress import showing
from regard.recipe import RawRecipe
from regard.tasks.folders import device_for
from regard.training import Interrupted
from regard.training.callbacks import (
    RESULT,
    Callback,
    Progress,
    check_callbacks,
    check_progress,
    read_result,
)
from regard.visual.picture import Table, fragment
from regard.visual.report import RunReport

MIN_FOLDS = 2


@dataclass(frozen=True)
class CrossValidation:
    """The runs of all folds, and the mean and the standard deviation of their scores.

    folder: that of the folders of the runs.  runs: in the order of the folds.
    """

    folder: Path
    runs: tuple[Run, ...]

    @cached_property
    def scores(self) -> dict[str, tuple[float, ...]]:
        """The score of each fold by the name of the metric; NaN where it is not finite.

        They are those of the weights in model/ of each run, on the rows of its fold. Where
        the training validates several times, the fold itself has chosen those weights: the scores
        are optimistic. Scores on the recipe's test data, called "test NAME", are not.
        """
        found = [_scores(run) for run in self.runs]
        return {name: tuple(one.get(name, math.nan) for one in found) for name in found[0]}

    @property
    def mean(self) -> dict[str, float]:
        """The mean of each score over the folds."""
        return {name: fmean(values) for name, values in self.scores.items()}

    @property
    def sd(self) -> dict[str, float]:
        """The sample standard deviation of each score over the folds: the divisor is folds - 1."""
        return {name: _sd(values) for name, values in self.scores.items()}

    @property
    def cv_results(self) -> dict[str, list[Any]]:
        """Columns as of scikit-learn's `cv_results_`: a row for the recipe, a split for each fold.

        pandas.DataFrame(found.cv_results)
        """
        names = {
            name: name.replace(" ", "_") if name.startswith("test ") else f"valid_{name}"
            for name in self.scores
        }
        scores = {names[name]: values for name, values in self.scores.items()}
        return cv_results([(self.folder.name, {}, scores)], len(self.runs), "max")

    def table(self) -> Table:
        """A row for each score."""
        mean, sd = self.mean, self.sd
        head = ["score", "mean", "sd", *(f"fold {n}" for n in range(1, len(self.runs) + 1))]
        rows = [
            [name, *(f"{value:.4g}" for value in (mean[name], sd[name], *values))]
            for name, values in self.scores.items()
        ]
        return Table.of(head, rows, f"{len(self.runs)} folds")

    def facts(self) -> dict[str, Any]:
        """The contents of cross-validation.json."""
        scores = {
            name: {"mean": self.mean[name], "sd": self.sd[name], "folds": list(values)}
            for name, values in self.scores.items()
        }
        plain = {name: _json_score(score) for name, score in scores.items()}
        return {
            "folds": len(self.runs),
            "scores": plain,
            "runs": [str(r.folder) for r in self.runs],
        }

    def report(self) -> RunReport:
        """A page with the table."""
        facts = {"folds": str(len(self.runs)), "sd": "standard deviation of a sample (ddof 1)"}
        return RunReport(self.folder.name, facts, pictures=[("Scores", self.table())])

    def __repr__(self) -> str:
        mean, sd = self.mean, self.sd
        scores = ", ".join(f"{name} {mean[name]:.4g} ± {sd[name]:.2g}" for name in mean)
        return f"CrossValidation({str(self.folder)!r}: {scores})"

    def __str__(self) -> str:
        return self.table().text(width=160).rstrip()

    def _repr_html_(self) -> str:
        return fragment(self.table().body())


def _sd(values: Sequence[float]) -> float:
    """The sample standard deviation; NaN if a value is not finite, for which `stdev` fails."""
    return stdev(values) if all(map(math.isfinite, values)) else math.nan


def _json_score(score: Mapping[str, Any]) -> dict[str, Any]:
    """A score with None instead of numbers that are not finite, which JSON does not have."""

    def finite(value: float) -> float | None:
        return value if math.isfinite(value) else None

    return {
        name: [finite(one) for one in value] if isinstance(value, list) else finite(value)
        for name, value in score.items()
    }


def _scores(run: Run) -> dict[str, float]:
    """The scores of the weights in model/ on the fold, and those on the test data."""
    tested = {f"test {name}": value for name, value in run.test_scores.items()}
    scores = run.scores | tested
    return {name: math.nan if value is None else value for name, value in scores.items()}


def cross_validate(
    recipe: str | PathLike[str] | None = None,
    *,
    folds: int = 5,
    out: str | PathLike[str] | None = None,
    device: str | None = None,
    progress: bool | Progress = True,
    callbacks: Sequence[Callback] = (),
    **options: Unpack[RecipeOptions],
) -> CrossValidation:
    """Train once for each fold of the training data, on the other folds, and score it on the fold.

        cross_validate(task="classification", model="a folder", train=dataframe, folds=5, epochs=3)

    Rows are drawn as for `valid` as a share: at random by `split_seed`, by class with `stratified`,
    by group with `group`; folds of running text are consecutive lines. The same call again goes on
    where it was stopped, and repeats no finished run.

    Args:
        recipe, device, progress, callbacks, options: as of `regard.train`; `valid` of the recipe
            is replaced.
        folds: how many, at least 2.
        out: the folder; None: runs/NAME-folds.

    Raises:
        ConfigError: there are too few rows or groups; `valid` is an option; `out` holds runs of
            other options or on other data.
        Interrupted: after a signal, when the training is saved.
        Others as `regard.train`.
    """
    if options.get("valid") is not None or "valid" in (options.get("data") or {}):
        raise _valid_given()
    raw = keywords.recipe_from_keywords(recipe, options)
    return cross_validate_recipe(raw, folds, out, device, progress, callbacks)


def cross_validate_recipe(
    raw: RawRecipe,
    folds: int = 5,
    out: str | PathLike[str] | None = None,
    device: str | None = None,
    progress: bool | Progress = True,
    callbacks: Sequence[Callback] = (),
) -> CrossValidation:
    """As `cross_validate`, by a recipe that was read."""
    check_progress(progress)
    check_callbacks(callbacks)
    if type(folds) is not int or folds < MIN_FOLDS:
        raise ConfigError(
            f"`folds` must be a whole number, at least {MIN_FOLDS}, but is {folds!r:.60}."
        )
    device_for(device)  # raises an error before anything is written
    raw, folder = _in_files(raw, folds, out)
    recipes = [_with_fold(raw, fold, folds) for fold in range(1, folds + 1)]
    folders = [folder / f"fold-{fold}" for fold in range(1, folds + 1)]
    for one, where in zip(recipes, folders, strict=True):
        check_same_run(where, checked_recipe(one))
    trained, log = list[Run](), ResultLog(folder)
    try:
        for fold, (one, where) in enumerate(zip(recipes, folders, strict=True), 1):
            run = _run(one, where, device, progress, callbacks)
            trained.append(run)
            if log.find(where.name, 1.0) is None:
                numbers = {"steps": run.result.step, "tokens": run.result.tokens}
                scores = _json_score(_scores(run))
                log.append({"run": where.name, "fold": fold, "until": 1.0, **scores, **numbers})
    except Interrupted as stopped:
        left = "The same cross-validation goes on with it, and with the folds that are left."
        raise Interrupted(f"{stopped}\n{left}", stopped.code) from None
    found = CrossValidation(folder, tuple(trained))
    write_json(folder / "cross-validation.json", found.facts())
    found.report().save(folder / "report.html")
    return found


def _in_files(
    raw: RawRecipe, folds: int, out: str | PathLike[str] | None
) -> tuple[RawRecipe, Path]:
    """The recipe of all folds, its data in files, and the folder of the runs."""
    if any(key.split(".")[:2] == ["data", "valid"] for key in raw.overrides):
        raise _valid_given()
    schema = schema_of(raw)
    raw = _with_fold(keywords.with_options_in_sections(raw, schema), 1, folds)
    checked = checked_recipe(keywords.with_placeholder_paths(raw, schema))
    name = runs.name_of_run(raw.path or raw.text_at("task"), checked.name)
    check_out(out)
    folder = Path("runs") / f"{name}-folds" if out is None else Path(out)
    begun = any(folder.glob("fold-*/recipe.toml"))
    return keywords.data_in_shared_files(raw, schema, folder, begun), folder


def _valid_given() -> ConfigError:
    return ConfigError(
        "Cross-validation takes the validation data from the training data: leave out `valid`."
    )


def _with_fold(raw: RawRecipe, fold: int, folds: int) -> RawRecipe:
    """The recipe of one fold."""
    data = {**raw.tables.get("data", {}), "valid": {"fold": fold, "of": folds}}
    return replace(raw, tables={**raw.tables, "data": data})


def _run(
    raw: RawRecipe,
    folder: Path,
    device: str | None,
    progress: bool | Progress,
    callbacks: Sequence[Callback],
) -> Run:
    """The run of one fold: read where it is finished, else resumed or trained."""
    if (folder / RESULT).exists():
        return Run(folder, read_result(folder))
    if (folder / "recipe.toml").exists():
        return runs.resume(folder, device=device, progress=progress, callbacks=callbacks)
    with showing(progress):
        made = runs.begin(raw, folder, device)
    return runs.run_plan(raw, made, folder, progress, callbacks)
