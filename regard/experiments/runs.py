"""From a recipe to a run folder, and the run: its scores and curves, and its model.

run = train("recipes/demo.toml", epochs=3)
run.folder, run.scores, run.model
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib.metadata import PackageNotFoundError, version
from itertools import chain, count
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard import training
from regard.checkpoints.filling import load_weights
from regard.checkpoints.hub import CONFIG
from regard.data.files import split_member
from regard.data.in_memory import is_path
from regard.errors import CheckpointError, ConfigError, DataError
from regard.experiments import recipe_options, training_plan
from regard.experiments.recipe_options import checked_recipe, open_recipe, read_recipe, schema_of
from regard.experiments.training_plan import TrainingPlan, plan
from regard.models.conversions import merged
from regard.models.encoder_with_heads import deployed
from regard.progress import showing
from regard.recipe import RawRecipe, plain_name, write
from regard.schema import checked
from regard.tasks.folders import device_for, load, save
from regard.text import Tokenizer
from regard.training import Result
from regard.training.callbacks import RESULT, Callback, Progress, display_of, read_result
from regard.training.distributed import connected, processes
from regard.training.metrics_log import read_events
from regard.training.options import DefaultEpochs

if TYPE_CHECKING:
    from regard.metrics.score import Scores
    from regard.tasks.task import Task
    from regard.visual.picture import PictureColumn

__all__ = ["load", "plan", "read_recipe", "resume", "save", "train"]


def check_out(out: object) -> None:
    """Check that an argument `out` is a path, or None.

    Raises:
        ConfigError: it is something else.
    """
    if out is not None and not is_path(out):
        raise ConfigError(f"`out` must be the path of a folder, but is {out!r:.60}.")


@dataclass(frozen=True)
class Run:
    """A finished training, as `regard.train` and `regard.resume` return it.

    It is a path, that of its folder: `regard.load(run)`.

    folder: the folder of the run.
    result: how the training ended, with its scores.
    """

    folder: Path
    result: Result

    def __fspath__(self) -> str:
        """The folder, so that a run is a path: `regard.resume(run)`, `regard.load(run)`."""
        return str(self.folder)

    def __repr__(self) -> str:
        """The folder, how the training ended, which weights are kept, and their scores."""
        result = self.result
        labelled = result.labelled_scores().items()
        scores = [f"{name} {value:.4g}" for name, value in labelled if value is not None]
        return f"Run({str(self.folder)!r}: {', '.join([result.reason, result.weights, *scores])})"

    @cached_property
    def model(self) -> Task:
        """The model as `regard.load` opens it: `run.model.predict(texts)`."""
        return load(self.folder)

    @property
    def scores(self) -> dict[str, float | None]:
        """The scores of `model` on the validation data, by the names of the metrics.

        They are of the weights that are kept, which `result.weights` names: those of the best step,
        or the mean of the last checkpoints.
        """
        return self.result.scores

    @property
    def test_scores(self) -> dict[str, float | None]:
        """The scores on the recipe's test data, by the names that `regard evaluate` prints."""
        return self.result.test_scores

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl: logged values and validations, each with its `step`."""
        return read_events(self.folder)

    @property
    def curves(self) -> PictureColumn:
        """The charts of the training: losses, scores, learning rate, speed."""
        from regard.visual.report import training_curves

        return training_curves(self.history)

    def evaluate(self, data: Any, **options: Any) -> Scores:
        """The scores of the model on other data: a file, a reader, or data in memory.

        If a table has the columns that the recipe names (`columns`), these are read.

        Args:
            options: arguments of the task's `evaluate`, such as `columns`.

        Raises:
            DataError: the data cannot be read.
            ConfigError: the names of the columns do not tell which to read.
        """
        from regard.tasks.folders import evaluate, recipe_columns

        if not options.get("columns"):
            options["columns"] = recipe_columns(self.folder, data)
        return evaluate(self.model, data, **options)

    def predict(self, texts: Any) -> Any:
        """The predictions of the model for one text or several, as `run.model.predict`."""
        return self.model.predict(texts)

    def _repr_html_(self) -> str:
        """In a notebook: the scores and the curves."""
        from regard.visual.picture import Table, fragment

        scores = self.result.labelled_scores().items()
        rows = [[name, "" if value is None else f"{value:.4g}"] for name, value in scores]
        title = f"{self.folder}: {self.result.weights}"
        table = Table.of(["score", ""], rows, title).body() if rows else ""
        return fragment(f'{table}<div class="rg-charts">{self.curves.body()}</div>')


def train(
    recipe: str | PathLike[str] | None = None,
    *,
    out: str | PathLike[str] | None = None,
    device: str | None = None,
    progress: bool | Progress = True,
    callbacks: Sequence[Callback] = (),
    stop_after_fraction: float | None = None,
    **options: Any,
) -> Run:
    """Train by a recipe, or by options in Python, in a new run folder.

    A run folder holds recipe.toml (the resolved recipe), model/, checkpoints/, metrics.jsonl and,
    when it is finished, report.html.

        run = train("recipes/demo.toml", epochs=3, model={"d_model": 64})
        run = train(task="classification", model="a folder or a name", train=dataframe, valid=0.1)
        run.scores, run.model.predict("a text")

    Args:
        recipe: a TOML file; None: the options say everything.
        out: the folder of the run; None: runs/NAME, or runs/NAME-2 where there is such a folder.
        device: "cpu", "cuda", "cuda:1"; None: a GPU, if there is one. It is no part of the recipe.
        progress: whether the progress is shown, or a `regard.training.callbacks.Progress`, which
            shows it.
        callbacks: are told what happens; see `regard.training.Callback`.
        stop_after_fraction: the fraction of the training, such as 0.25, after which it saves and
            stops; `resume` goes on, and ends as if it had not stopped.
        options: the options of a recipe, in place of the recipe's own: single options by name, or
            sections as mappings. `train`, `valid` and `test` are files, or data in memory (see
            `regard.data.in_memory.rows`), which are written into the run folder; `valid` may be a
            share of the training data.

    Raises:
        ConfigError: the recipe is wrong, or `out` holds a run already.
        DataError: a file of data is missing or malformed.
        Paused: at `stop_after_fraction`, when the training is saved.
        Others as `regard.training.train`.
    """
    raw = recipe_options.recipe_from_keywords(recipe, options)
    return train_recipe(raw, out, device, progress, callbacks, stop_after_fraction)


def train_recipe(
    raw: RawRecipe,
    out: str | PathLike[str] | None = None,
    device: str | None = None,
    progress: bool | Progress = True,
    callbacks: Sequence[Callback] = (),
    stop_after_fraction: float | None = None,
) -> Run:
    """As `train`, by a recipe that was read, such as with the NAME=VALUE of a command line."""
    begun: list[tuple[RawRecipe, TrainingPlan, Path]] = []
    with connected(device) as own_device:

        def begin_here() -> Path:
            begun.append(_begin(raw, out, own_device, progress))
            return begun[0][2]

        folder = processes().from_first(begin_here)
        if begun:
            with_data, planned, _ = begun[0]
        else:  # another process has begun the run
            with_data, recipe = open_recipe(folder / "recipe.toml")
            planned = _plan_of_run(folder, with_data, recipe, (), own_device)
        with with_data.locating(type(planned.recipe)):
            train_or_resume = partial(training.train, stop_after_fraction=stop_after_fraction)
            return Run(folder, _train(train_or_resume, planned, folder, progress, callbacks))


def _begin(
    raw: RawRecipe, out: str | PathLike[str] | None, device: str | None, progress: bool | Progress
) -> tuple[RawRecipe, TrainingPlan, Path]:
    """Begin a new run: write its recipe and tokenizer into its folder; its recipe, plan, folder.

    Raises:
        ConfigError, DataError: as `train`.
    """
    device_for(device)  # raises an error before anything is written
    schema = schema_of(raw)
    raw = recipe_options.with_options_in_sections(raw, schema)
    # Wrong options raise an error here, before data in memory are written.
    checked = checked_recipe(recipe_options.with_placeholder_paths(raw, schema))
    folder = new_folder(raw, checked.name, out)
    with recipe_options.data_in_files(raw, schema, folder) as raw:
        checked = checked_recipe(raw)
        with raw.locating(type(checked)), showing(progress):
            planned = plan(checked, device=device)
            if isinstance(checked.training.epochs, DefaultEpochs):
                planned = planned.with_enough_epochs()
            planned.task.check_test(checked)
            check_new(folder)  # reading data takes long: another process may have been quicker
            folder.mkdir(parents=True, exist_ok=True)
            planned.task.tokenizer.save(folder / "model")
            training_plan.keep_start(checked.model, folder)
            about = {"seed": checked.seed, "versions": _versions(), "data": planned.checksums}
            about |= {"start": planned.start_checksums, "notes": planned.task.notes()}
            write(folder / "recipe.toml", planned.recipe, about)
        return raw, planned, folder


def _versions() -> dict[str, str]:
    """Of the libraries that repeating a run takes."""
    versions = {"python": platform.python_version()}
    for package in ("regard", "torch", "numpy", "tokenizers", "sacrebleu"):
        with suppress(PackageNotFoundError):  # such as a checkout that was never installed
            versions[package] = version(package)
    return versions


def new_folder(raw: RawRecipe, name: str, out: str | PathLike[str] | None) -> Path:
    """The folder of a new run; `name` is that of its recipe.

    Raises:
        ConfigError: there is a run already; the recipe's file or `name` cannot be a folder's.
    """
    if out is not None:
        check_out(out)
        folder = Path(out)
        for parent in (folder, *folder.parents):
            if parent.exists() and not parent.is_dir():
                raise ConfigError(f"{folder} cannot be a folder: {parent} is a file.")
    else:
        folder = Path("runs") / name_of_run(raw.path or raw.text_at("task"), name)
        others = (folder.with_name(f"{folder.name}-{n}") for n in count(2))
        return next(path for path in chain([folder], others) if not path.exists())
    check_new(folder)
    return folder


def name_of_run(path: str | PathLike[str], name: str) -> str:
    """The name that a recipe gives its run: `name`, or that of its file.

    Raises:
        ConfigError: the file's name cannot be a folder's.
    """
    try:
        return plain_name(name or Path(path).stem)
    except ValueError as error:
        raise ConfigError(f"{path}: the name of this file {error}. Or set `name` in it.") from None


# What a run that was killed early may have left in its folder.
LEFTOVERS = {recipe_options.DATA_FOLDER, "model", training_plan.START}


def check_new(folder: Path, leftovers: Collection[str] = LEFTOVERS) -> None:
    """Check that a folder takes a new run: it is not there, is empty, or holds what a run has left
    that was killed before its recipe was written.

    leftovers: the names of such files.

    Raises:
        ConfigError: it holds a run, a model or other files.
    """
    held = ""
    names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if "recipe.toml" in names:
        held = f"{folder} holds a run already. Go on with it (regard resume {folder})"
    elif (folder / "model" / CONFIG).exists() or CONFIG in names:
        held = f"{folder} holds a model"
    elif others := sorted(name for name in names.difference(leftovers) if not name.startswith(".")):
        held = f"{folder} holds other files, such as {others[0]}"
    if held:
        raise ConfigError(f"{held}; a new run needs a folder of its own (`out`, --out).")


def resume(
    folder: str | PathLike[str],
    overrides: Sequence[str] = (),
    *,
    device: str | None = None,
    progress: bool | Progress = True,
    callbacks: Sequence[Callback] = (),
    stop_after_fraction: float | None = None,
) -> Run:
    """Resume a run from its newest intact checkpoint; it ends as if it had never stopped.

    In a finished run a missing report is written again; nothing else changes.

    overrides: the paths of data that have moved, such as ["data.train=NEW"]. The files must have
        the recorded checksums.
    device, progress, callbacks, stop_after_fraction: as in `train`.

    Raises:
        Paused: at `stop_after_fraction`.
        CheckpointError: the folder is not a run, or its files are damaged.
        DataError: files of data are missing; all are named.
        ConfigError: the recipe, the data or the tokenizer has changed.
    """
    folder = Path(folder)
    if not (folder / "recipe.toml").exists():
        raise CheckpointError(f"{folder} is not a run: it has no recipe.toml.")
    raw, recipe = open_recipe(folder / "recipe.toml")
    with raw.locating(type(recipe)), connected(device) as own_device:
        if (folder / RESULT).exists() and not training_plan.check_start(
            recipe.model, _recorded(raw, "start"), folder
        ):
            with closing(display_of(progress)) as shown:
                shown.say(f"{folder} is finished: there is nothing to resume.")
            return Run(folder, read_result(folder))
        with showing(progress):
            planned = _plan_of_run(folder, raw, recipe, overrides, own_device)
        train_or_resume = partial(training.resume, stop_after_fraction=stop_after_fraction)
        return Run(folder, _train(train_or_resume, planned, folder, progress, callbacks))


def _recorded(raw: RawRecipe, part: str) -> dict[str, str]:
    """The checksums that a run has recorded: of its "data", or of the model of its "start"."""
    where = raw.path or "recipe.toml"
    return checked(raw.run.get(part, {}), dict[str, str], where, ConfigError, f"run.{part}")


def _plan_of_run(
    folder: Path,
    raw: RawRecipe,
    recipe: Any,
    overrides: Sequence[str],
    device: str | None,
) -> TrainingPlan:
    """The plan of an existing run, its data at the recorded paths or at those of `overrides`."""
    recorded = _recorded(raw, "data")
    tokenizer = (
        Tokenizer.load(folder / "model")
        if training_plan.holds_tokenizer(folder / "model")
        else None
    )
    training_plan.check_start(recipe.model, _recorded(raw, "start"), folder)
    gone = [name for name in recorded if not split_member(name)[0].exists()]
    if not overrides:  # where the run has moved, so have the data that were in memory
        data = folder.absolute() / recipe_options.DATA_FOLDER
        overrides = [
            f"data.{field}={data / path.name}"
            for field, path in recipe.data
            if isinstance(path, Path) and str(path) in gone and (data / path.name).exists()
        ]
    if overrides:
        _, moved = open_recipe(folder / "recipe.toml", overrides)
        planned = plan(moved, tokenizer, device, training_plan.kept_start(folder))
        if sorted(planned.checksums.values()) != sorted(recorded.values()):
            return planned  # its identity is another one: the error names the files
        paths = {
            field: value
            for field, value in recipe.data
            if value and isinstance(value, Path | tuple)
        }
        data = moved.data.model_copy(update=paths)
        return replace(planned, recorded=(moved.model_copy(update={"data": data}), recorded))
    if gone:
        problem = f"the data of this run is no longer there: {', '.join(gone)}."
        hint = f"If it has moved, name the new path: regard resume {folder} data.train=NEW"
        hint += f", or regard.resume({str(folder)!r}, ['data.train=NEW'])."
        raise DataError(folder, None, problem, hint)
    return plan(recipe, tokenizer, device, training_plan.kept_start(folder))


def _train(
    train_or_resume: Callable[..., Result],
    planned: TrainingPlan,
    folder: Path,
    progress: bool | Progress,
    callbacks: Sequence[Callback],
) -> Result:
    """Train or resume, then write the card and, unless it exists, the report.

    train_or_resume: `regard.training.train` or `regard.training.resume`.
    """
    finished = (folder / RESULT).exists()
    if progress is True and "IPython" in sys.modules:
        from regard.visual.report import NotebookProgress, in_notebook

        if in_notebook():
            progress = notebook = NotebookProgress()
            callbacks = (*callbacks, notebook)
    result = train_or_resume(
        planned.task,
        planned.recipe.training,
        folder,
        seed=planned.recipe.seed,
        identity=planned.identity(),
        save=lambda model, folder: planned.publish(folder),
        test=lambda: planned.task.test(planned.recipe),
        progress=progress,
        callbacks=callbacks,
    )
    processes().from_first(lambda: _write_card_and_report(planned, folder, result, finished))
    processes().from_first(lambda: training_plan.remove_start(folder))
    return result


def _write_card_and_report(
    planned: TrainingPlan, folder: Path, result: Result, finished: bool
) -> None:
    """Write the card of the model and, unless it exists, the report.

    finished: whether the run had been finished before; the task then has its weights from before
        the training.
    """
    from regard.experiments.report import write_report, write_run_card

    write_run_card(planned, folder, result)
    if (folder / training_plan.REPORT).exists():
        return
    if finished:
        planned.task.module = merged(planned.task.module)
        for name, task in {"model": planned.task, **planned.task.companions()}.items():
            load_weights(deployed(task.module), load(folder / name).module.state_dict())
        planned.task.module.eval()
    write_report(folder, planned.task, planned.recipe, result)
