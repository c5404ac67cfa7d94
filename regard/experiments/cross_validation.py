"""Cross-validation: one training for each fold of the training data, which is validated on it.

    found = cross_validate("recipe.toml", folds=5)
    found.mean["accuracy"], found.sd["accuracy"]

The recipe of each run names its fold, `valid = {fold = 1, of = 5}`, so each is a run like any
other. The same call again continues where it was stopped. The folder is that of a study (study.py),
with runs fold-1, fold-2 ..., cross-validation.json and report.html.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from regard.errors import ConfigError, check_at_least
from regard.executors import ExecutorOptions
from regard.experiments.recipe_options import read_recipe
from regard.experiments.results import Outcome, StudyResults, cv_results
from regard.experiments.run_folder import Run
from regard.experiments.study import (
    RunOptions,
    StudyRun,
    conditions_of,
    folder_of_study,
    opened,
    recipe_in_file,
)
from regard.tasks.folders import device_for
from regard.training.callbacks import read_result
from regard.visual.picture import Table
from regard.visual.report import RunReport


@dataclass(frozen=True)
class CrossValidation(StudyResults):
    """The runs of all folds, and the mean and the standard deviation of their scores.

    folder: that of the folders of the runs.  runs: in the order of the folds.
    scores: the score of each fold by the name of the metric; NaN where it is not finite. They are
        those of the weights in model/ of each run, on the rows of its fold. Where the training
        validates several times, the fold itself has chosen those weights: the scores are
        optimistic. Scores on the recipe's test data, called "test NAME", are not.
    """

    folder: Path
    runs: tuple[Run, ...]
    scores: dict[str, tuple[float, ...]]

    @property
    def mean(self) -> dict[str, float]:
        """The mean of each score over the folds."""
        return {name: fmean(values) for name, values in self.scores.items()}

    @property
    def sd(self) -> dict[str, float]:
        """The sample standard deviation of each score over the folds: the divisor is folds - 1."""
        return {
            name: stdev(values) if all(map(math.isfinite, values)) else math.nan
            for name, values in self.scores.items()
        }

    @property
    def cv_results(self) -> dict[str, list[Any]]:
        """Columns as of scikit-learn's `cv_results_`: a row for the recipe, a split for each fold.

        pandas.DataFrame(found.cv_results)
        """
        scores = {
            name.replace(" ", "_") if name.startswith("test ") else f"valid_{name}": values
            for name, values in self.scores.items()
        }
        return cv_results([(self.folder.name, {}, scores)], len(self.runs), "max")

    def picture(self) -> Table:
        """A row for each score."""
        mean, sd = self.mean, self.sd
        head = ["score", "mean", "sd", *(f"fold {n}" for n in range(1, len(self.runs) + 1))]
        rows = [
            [name, *(f"{value:.4g}" for value in (mean[name], sd[name], *values))]
            for name, values in self.scores.items()
        ]
        return Table.of(head, rows, f"{len(self.runs)} folds")

    def facts(self) -> dict[str, Any]:
        """The contents of cross-validation.json, in which a number that is not finite is null."""

        def finite(value: float) -> float | None:
            return value if math.isfinite(value) else None

        scores = {
            name: {
                "mean": finite(self.mean[name]),
                "sd": finite(self.sd[name]),
                "folds": [finite(value) for value in values],
            }
            for name, values in self.scores.items()
        }
        folders = [str(run.folder) for run in self.runs]
        return {"folds": len(self.runs), "scores": scores, "runs": folders}

    def report(self) -> RunReport:
        """A page with the table."""
        facts = {"folds": str(len(self.runs)), "sd": "standard deviation of a sample (ddof 1)"}
        return RunReport(self.folder.name, facts, pictures=[("Scores", self.picture())])

    def __repr__(self) -> str:
        mean, sd = self.mean, self.sd
        scores = ", ".join(f"{name} {mean[name]:.4g} ± {sd[name]:.2g}" for name in mean)
        return f"CrossValidation({str(self.folder)!r}: {scores})"


def cross_validate(
    recipe: str | PathLike[str] | None = None,
    *,
    folds: int = 5,
    out: str | PathLike[str] | None = None,
    executor: str | ExecutorOptions = "here",
    workers: int = 1,
    gpus: int = 0,
    device: str | None = None,
    progress: bool = True,
    **options: Any,
) -> CrossValidation:
    """Train once for each fold of the training data, on the other folds, and score it on the fold.

        cross_validate(task="classification", model="a folder", train=dataframe, folds=5, epochs=3)

    Rows are drawn as for `valid` as a share: at random by `split_seed`, by class with `stratified`,
    by group with `group`; folds of running text are consecutive lines. The same call again goes on
    where it was stopped, and repeats no finished run.

    Args:
        recipe, device, options: as of `regard.train`; `valid` of the recipe is replaced.
        folds: how many, at least 2.
        out: the folder; None: runs/NAME-folds.
        executor, workers, gpus, progress: where runs are computed, as of `regard.compare`; "here":
            in this process, one after the other.

    Raises:
        ConfigError: there are too few rows or groups; `valid` is an option; `out` holds runs of
            other options or on other data.
        RegardError: a run has failed; the others are kept.
        Interrupted: after a signal, when the training is saved.
    """
    if options.get("valid") is not None or "valid" in (options.get("data") or {}):
        raise ConfigError(VALID_GIVEN)
    run_options = RunOptions((1,), executor, workers, gpus, progress, device)
    folder = folder_of_study(recipe, options, out, "folds")
    path = None if recipe is None else Path(recipe)
    if path is None or options:
        check_at_least(MIN_FOLDS, folds=folds)
        device_for(device)
        with_fold: Any = {**options, "valid": {"fold": 1, "of": folds}}
        path = recipe_in_file(path, with_fold, folder)
    return cross_validate_file(path, (), folds, run_options, folder)


MIN_FOLDS = 2
VALID_GIVEN = (
    "Cross-validation takes the validation data from the training data: leave out `valid`."
)


def cross_validate_file(
    path: str | PathLike[str],
    overrides: Sequence[str],
    folds: int,
    options: RunOptions,
    out: str | PathLike[str] | None = None,
) -> CrossValidation:
    """As `cross_validate`, of a file with the NAME=VALUE of a command line."""
    check_at_least(MIN_FOLDS, folds=folds)
    device_for(options.device)  # raises an error before anything is written
    if any(text.partition("=")[0].strip().startswith("data.valid") for text in overrides):
        raise ConfigError(VALID_GIVEN)
    path, folder = Path(path), folder_of_study(path, {}, out, "folds")
    runs = []
    for fold in range(1, folds + 1):
        texts = (*overrides, f"data.valid={{fold={fold}, of={folds}}}")
        recipe = read_recipe(path, texts)
        where = folder / f"fold-{fold}"
        runs.append(StudyRun(folder.name, where, recipe, path, texts, {"fold": fold}))
    conditions = conditions_of(runs[0].recipe, {}) | {"folds": folds}
    del conditions["data"]["valid"]
    with opened(folder, conditions, options, "cross-validating in") as study:
        rows = study.train(runs, strict=True)
    outcomes = [Outcome.of_row(rows[run.folder.name], folder) for run in runs]
    by_fold = [
        outcome.valid | {f"test {score['name']}": score["value"] for score in outcome.scores}
        for outcome in outcomes
    ]
    scores = {
        name: tuple(math.nan if (value := of.get(name)) is None else value for of in by_fold)
        for name in by_fold[0]
    }
    trained = tuple(Run(run.folder, read_result(run.folder)) for run in runs)
    result = CrossValidation(folder, trained, scores)
    result.write("cross-validation.json")
    return result
