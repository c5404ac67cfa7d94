"""`regard.evaluate` and `regard.search`: a method of a model that may still be in its folder."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from regard.data import read
from regard.data.in_memory import is_path
from regard.tasks.folders import load
from regard.tasks.language_modeling import TextGenerator
from regard.tasks.predictions import TextMatch
from regard.tasks.task import Task

Model = str | PathLike[str] | Task
"""A model, or a run, a folder or a name on the hub that holds one."""


def evaluate(model: Model, data: Any, *, columns: Sequence[int | str] = (), **options: Any) -> Any:
    """The scores of a model on data, as its method `evaluate` gives them.

        regard.evaluate("runs/reviews", "test.csv")
        regard.evaluate(model, dataframe, columns=["text", "label"])

    Args:
        data: a file, or rows in memory: a DataFrame, a list of rows, a dataset, a reader.
        columns: of a table, in the order that the task reads them; (): chosen by their names.
        options: further arguments of the method.

    Raises:
        DataError: the data cannot be read.
        ConfigError: the names of the columns do not tell which to read.
    """
    task = as_task(model)
    if is_path(data) and isinstance(task, TextGenerator):
        data = read(data, format=task.format)
    elif is_path(data):
        data, columns = task.rows_to_evaluate([Path(data)], list(columns)), ()
    return task.evaluate(data, **({"columns": columns} if columns else {}), **options)


def search(
    model: Model, query: str, texts: Sequence[str], top_k: int = 5, **options: Any
) -> list[TextMatch]:
    """The texts most similar to a query by the cosine of their vectors, the best first.

    options: further arguments of the method `search`.
    """
    found: list[TextMatch] = as_task(model).search(query, texts, top_k, **options)
    return found


def as_task(model: Model) -> Any:
    """The model itself, or the one in a folder."""
    return model if isinstance(model, Task) else load(Path(model))
