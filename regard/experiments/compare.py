"""Several models under equal conditions: the same data, tokenizer, decoding, scores, budget, seeds.

    compare(["lstm.toml", "transformer.toml"], seeds=(1, 2, 3), out="runs/compare")

Every run is a process of its own, so that its peak memory can be measured. Finished runs are kept:
the same call again continues where it was stopped, and can add seeds and recipes. A run whose
process is lost continues from its checkpoint, wherever the executor starts it again. The folder is
that of a study (study.py), with comparison.json and report.html.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from regard.data.files import lines
from regard.data.in_memory import is_path
from regard.data.splits import split_text
from regard.errors import ConfigError, check_at_least
from regard.executors import ExecutorOptions
from regard.experiments.estimate import seconds_of, tokens_within
from regard.experiments.recipe_options import read_recipe
from regard.experiments.results import StudyResults
from regard.experiments.runs import name_of_run
from regard.experiments.study import (
    HINT,
    RunOptions,
    StudyRun,
    check_equal,
    conditions_of,
    folder_of_study,
    opened,
    recipe_in_file,
    runs_by_seed,
    scored_conditions,
    with_tokenizer,
)
from regard.file_writing import write_json
from regard.recipe import recipe_set
from regard.schema import read_json
from regard.tasks.folders import device_for

DEFAULTS = RunOptions()
Compared = str | PathLike[str] | Mapping[str, Any]
"""A recipe, a run or its folder, the keywords of `regard.train`, or the name of a model."""


def compare(
    recipes: Sequence[Compared],
    *,
    seeds: Sequence[int] = (1,),
    out: str | PathLike[str] = "runs/compare",
    executor: str | ExecutorOptions = "local",
    workers: int = 1,
    gpus: int = 0,
    progress: bool = True,
    budget: str = "",
    **options: Any,
) -> StudyResults:
    """Train each recipe with each seed, measure, and write comparison.json and report.html.

        compare(["lstm.toml", "transformer.toml"], seeds=(1, 2, 3))
        compare(["runs/first", "runs/second"])
        compare([{"model": {"name": "bilstm"}}, {"model": "path/to/minilm", "learning_rate": 5e-5}],
                task="classification", train=dataframe, valid=other, epochs=3)
        compare(["road"], data="my.txt", budget="20m")

    Args:
        recipes: the models of the comparison. Each is a recipe, the keywords of `regard.train`, the
            name or the folder of a model, or a run or its folder, which is scored and not trained
            again; an unfinished one is continued. "road" stands for all recipes that come with the
            library and whose names begin with "road-".
        seeds: each is a run of every recipe; the spread over them is shown.
        out: the folder; finished runs in it are not repeated.
        executor: where runs are processes: "local", "slurm", "ray", or one with its options; with
            "here" they run in this process.
        workers: how many runs at once. Where the recipe leaves `training.threads` open, they share
            the machine's cores; other numbers of threads give other last bits.
        gpus: how many GPUs of its own each run has; 0: it finds those that there are.
        progress: whether the progress is shown.
        budget: a time such as "20m" within which all ends on this machine. The tokens that every
            model then reads are measured once, and kept in the folder.
        options: as of `regard.train`, for every recipe. `data` may be a file of text, parts of
            which become the validation and the test data of language models.

    Raises:
        ConfigError: the recipes differ in what must be equal, or `out` holds something else, or
            another process is comparing in it; a text or a time is too small.
        RegardError: a run has failed; the others are kept.
        Interrupted: after Ctrl-C; the runs in progress are saved.
    """
    if isinstance(recipes, str | PathLike | Mapping):
        raise ConfigError(f"`recipes` must be a list, but is {recipes!r:.60}.")
    if is_path(options.get("data")):
        options = {**options, **_parts(options["data"]), "data": None}
    run_options = RunOptions(tuple(seeds), executor, workers, gpus, progress)
    return compare_files(_in_files(recipes, options, Path(out)), (), run_options, out, budget)


def _in_files(recipes: Sequence[Compared], options: Mapping[str, Any], out: Path) -> list[Path]:
    """The files of recipes with options of `regard.train`, and the folders of runs."""
    files: list[Path] = []
    for recipe in _by_name(recipes):
        path, keywords = (None, recipe) if isinstance(recipe, Mapping) else (Path(recipe), {})
        is_run = path is not None and (path / "recipe.toml").exists()
        if path is not None and path.suffix != ".toml" and not is_run:
            path, keywords = None, {"model": str(path)}
        if path is None or options and not is_run:
            names = [file.stem for file in files]
            path = recipe_in_file(path, {**options, **keywords}, out, names)
        files.append(path)
    return files


def _by_name(recipes: Sequence[Compared]) -> list[Compared]:
    """The recipes, and each name of several as their files."""
    named = (recipe_set(recipe) if isinstance(recipe, str) else [recipe] for recipe in recipes)
    return [recipe for several in named for recipe in several]


BUDGET = "budget.json"  # in the folder, what was measured
VOCABULARY, CHARACTERS = 8000, 200  # the most tokens of a vocabulary, each for so much of a text


def _parts(file: Any) -> dict[str, Any]:
    """The parts of a text as options of `regard.train`, and the size of its vocabulary."""
    text = [*lines(file)]
    size = min(VOCABULARY, sum(map(len, text)) // CHARACTERS)
    # Lines in arrays are never taken for the names of files.
    arrays = {part: np.array(rows, object) for part, rows in split_text(text).items()}
    return {**arrays, "vocab_size": size}


def compare_files(
    paths: Sequence[str | PathLike[str]],
    overrides: Sequence[str] = (),
    options: RunOptions = DEFAULTS,
    out: str | PathLike[str] = "runs/compare",
    budget: str = "",
    data: str | PathLike[str] | None = None,
) -> StudyResults:
    """As `compare`, of recipes with the NAME=VALUE of a command line, and of run folders."""
    out, began = Path(out), time.monotonic()
    files: Any = _by_name(paths) if data is None else _in_files(paths, _parts(data), out)
    entries = _entries(files, overrides)
    conditions = _shared_conditions(entries)
    if budget:
        conditions["budget"] = {"time": budget}
    with opened(out, conditions, options, "comparing in") as study:
        new = [entry for entry in entries.values() if entry.run is None]
        exchanged = with_tokenizer([entry.recipe for entry in new], out)
        if budget:
            if not (out / BUDGET).exists():
                recipes = [read_recipe(e.path, exchanged(e.recipe, overrides)) for e in new]
                seconds = seconds_of(budget) - (time.monotonic() - began)
                tokens = tokens_within(seconds / len(options.seeds), recipes)
                write_json(out / BUDGET, {"tokens": tokens})
            conditions["budget"] |= read_json(out / BUDGET)
            overrides = [*overrides, "training.tokens={tokens}".format(**conditions["budget"])]
            study.say("{time}: each model reads {tokens:,} tokens".format(**conditions["budget"]))
        by_model: dict[str, list[StudyRun]] = {}
        for name, entry in entries.items():
            if entry.run is not None:
                by_model[name] = [StudyRun(name, entry.run, entry.recipe, entry.path)]
            else:
                texts = exchanged(entry.recipe, overrides)
                by_model[name] = runs_by_seed(name, entry.path, texts, options.seeds, out)
        study.train([run for runs in by_model.values() for run in runs], strict=True)
    trials = tuple(map(study.trial, by_model.values()))
    comparison = StudyResults(out, trials, conditions, tested=True)
    comparison.write("comparison.json")
    return comparison


@dataclass(frozen=True)
class _Entry:
    """A recipe that is trained, or a run that was.

    path: of the recipe.  run: the folder of the run; None: the recipe is trained here.
    """

    path: Path
    recipe: Any
    run: Path | None = None


def _entries(paths: Sequence[str | PathLike[str]], overrides: Sequence[str]) -> dict[str, _Entry]:
    """The recipes and the runs, by their names.

    overrides: `dotted.name=value`, for the recipes.

    Raises:
        ConfigError: there is none, or two have the same name.
    """
    entries: dict[str, _Entry] = {}
    for path in map(Path, paths):
        if (path / "recipe.toml").exists():
            file = path / "recipe.toml"
            name, entry = path.resolve().name, _Entry(file, read_recipe(file), path)
        else:
            recipe = read_recipe(path, overrides)
            name, entry = name_of_run(path, recipe.name), _Entry(path, recipe)
        if name in entries:
            both = f"{entries[name].path} and {entry.path}"
            raise ConfigError(f"{both} are both named {name!r}. Give one another `name`.")
        entries[name] = entry
    if not entries:
        raise ConfigError("`recipes` must name at least one recipe, but is empty.")
    return entries


def _shared_conditions(entries: Mapping[str, _Entry]) -> dict[str, Any]:
    """The conditions of all entries.

    Models that are started from folders have their own tokenizers, and runs were trained as they
    were: they share what their scores depend on.

    Raises:
        ConfigError: the entries differ in what must be equal, or have no data to be scored with.
    """
    checksums: dict[str, str] = {}
    conditions = {name: conditions_of(entry.recipe, checksums) for name, entry in entries.items()}
    hint = HINT
    if any(entry.run for entry in entries.values()):
        conditions = {name: scored_conditions(of_entry) for name, of_entry in conditions.items()}
        hint = "Train them again with the same data: one file as `valid` for all."
    tokenizers = {
        name: {"tokenizer": of_entry.pop("tokenizer", None)}
        for name, of_entry in conditions.items()
    }
    check_equal(conditions, hint)
    if not any(entry.recipe.data.valid or entry.recipe.data.test for entry in entries.values()):
        raise ConfigError("Models are compared by their scores: give `valid` or `test` data.")
    trained = {name: part for name, part in tokenizers.items() if part["tokenizer"] is not None}
    if trained:
        check_equal(trained)
    return {**next(iter(conditions.values())), **next(iter((trained or tokenizers).values()))}


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
) -> StudyResults:
    """Train once for each fold of the training data, on the other folds, and score it on the fold.

        cross_validate(task="classification", model="a folder", train=dataframe, folds=5, epochs=3)

    Rows are drawn as for `valid` as a share: at random by `split_seed`, by class with `stratified`,
    by group with `group`; folds of running text are consecutive lines. The same call again goes on
    where it was stopped, and repeats no finished run. The results have one trial, with a run for
    each fold: its scores are those of the weights in model/ of the run. Where the training
    validates several times, the fold itself has chosen those weights: the scores are optimistic.
    Scores on the recipe's test data, called "test NAME", are not.

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
) -> StudyResults:
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
        study.train(runs, strict=True)
    trial = study.trial(runs)
    result = StudyResults(folder, (trial,), conditions)
    result.write("cross-validation.json")
    return result
