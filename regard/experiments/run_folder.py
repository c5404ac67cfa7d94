"""A run that was trained: its folder, its scores and curves, and its model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.data.in_memory import is_path
from regard.errors import ConfigError
from regard.training import Result
from regard.training.metrics_log import read_events

if TYPE_CHECKING:
    from regard.metrics.score import Scores
    from regard.tasks.task import Task
    from regard.visual.picture import PictureColumn


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
