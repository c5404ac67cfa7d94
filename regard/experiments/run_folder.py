"""A run that was trained: its folder, its scores and curves, and its model.

Until it is finished, a run keeps the files of the model that it starts from, so that it can be
resumed where the model's own folder has been removed: RUN/start/ has hard links to the weights,
which take no space, or copies of them where the run is on another disk.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.checkpoints.hub import files_of_model, folder_of
from regard.data import hash_of
from regard.data.in_memory import is_path
from regard.errors import CheckpointError, ConfigError
from regard.experiments.recipe_options import FineTuneSection
from regard.file_writing import not_written
from regard.schema import change_lines
from regard.training import Result
from regard.training.metrics_log import read_events

if TYPE_CHECKING:
    from regard.metrics.score import Scores
    from regard.tasks.task import Task
    from regard.visual.picture import PictureColumn


REPORT = "report.html"


def report_links(folder: Path, runs: Sequence[str]) -> dict[str, str]:
    """The reports of the runs in a folder, by the names of the runs; only those that exist."""
    pages = {run: f"{run}/{REPORT}" for run in runs}
    return {run: page for run, page in pages.items() if (folder / page).exists()}


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
        from regard.tasks.folders import load

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
        from regard.tasks.calls import evaluate, recipe_columns

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


# ---- the model that a training starts from

START = "start"
SMALL = 1 << 20  # bytes; smaller files are copied, so that an editor does not change them


def checksums_of(folder: Path) -> dict[str, str]:
    """The SHA-256 of each file that a model is read from, by its name in the folder."""
    files = files_of_model(folder)
    return {str(file.relative_to(folder)): hash_of(file) for file in files}


def keep_start(section: Any, run: Path) -> None:
    """Keep the files of the model that [model] `path` names in the folder of a run.

    Raises:
        CheckpointError: they cannot be written.
    """
    if not isinstance(section, FineTuneSection):
        return
    source = folder_of(section.path)
    for file in files_of_model(source):
        kept = run / START / file.relative_to(source)
        try:
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.unlink(missing_ok=True)
            _link_or_copy(file.resolve(), kept)
        except OSError as error:
            raise not_written(kept, error) from error


def _link_or_copy(file: Path, new: Path) -> None:
    if file.stat().st_size >= SMALL:
        try:
            os.link(file, new)
        except OSError:  # another disk, or one without links
            pass
        else:
            return
    shutil.copyfile(file, new)


def kept_start(run: Path) -> Path | None:
    """The folder of the model that an unfinished run started from, if the run keeps it."""
    return run / START if (run / START).is_dir() else None


def remove_start(run: Path) -> None:
    """Remove what `keep_start` has kept, from a run that is finished."""
    shutil.rmtree(run / START, ignore_errors=True)


def check_start(section: Any, recorded: Mapping[str, str], run: Path) -> bool:
    """Check that the model that a run started from is what it was, if its folder is still there.

    recorded: the checksums that the run has recorded.

    Returns:
        False where the folder is gone.

    Raises:
        ConfigError: its files have changed; all that differ are named.
    """
    if not isinstance(section, FineTuneSection) or not recorded:
        return True
    try:
        folder = folder_of(section.path, download=False)
    except CheckpointError:  # it has been removed
        return False
    if changes := change_lines(recorded, checksums_of(folder)):
        raise ConfigError(
            f"the model that {run} started from, {folder}, has changed since:{changes}\nPut its "
            "files back, or train into another folder."
        )
    return True
