"""`regard.evaluate` and `regard.search`, for what is in memory or in a folder."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from regard import recipe
from regard.data.in_memory import column_names, is_path
from regard.errors import ConfigError
from regard.metrics.score import Scores
from regard.tasks.folders import load
from regard.tasks.inputs import first_record, rows_of
from regard.tasks.language_modeling import TextGenerator
from regard.tasks.predictions import TextMatch
from regard.tasks.search_index import FACTS, SearchIndex
from regard.tasks.task import Task

Model = str | PathLike[str] | Task
"""A model, or a run, a folder or a name on the hub that holds one."""


def evaluate(
    model: Model, data: Any, *, columns: Sequence[int | str] = (), **options: Any
) -> Scores:
    """The scores of a model on data, as its method `evaluate` gives them.

        regard.evaluate("runs/reviews", "test.csv")
        regard.evaluate(model, dataframe, columns=["text", "label"])

    Args:
        data: a file, or rows in memory: a DataFrame, a list of rows, a dataset, a reader.
        columns: of a table, in the order that the task reads them; (): those that the recipe of a
            run names, where the table has them, else chosen by their names.
        options: further arguments of the method.

    Raises:
        DataError: the data cannot be read.
        ConfigError: the names of the columns do not tell which to read.
    """
    task = as_task(model)
    if not columns and not isinstance(model, Task):
        columns = recipe_columns(Path(model), data)
    if is_path(data) and not isinstance(task, TextGenerator):
        data, columns = rows_of(task, [Path(data)], columns), ()
    return task.evaluate(data, **({"columns": columns} if columns else {}), **options)


def recipe_columns(run: Path, data: Any) -> tuple[str, ...]:
    """The columns of texts and target that the recipe of a run names, if the data have them; else
    ().
    """
    if not (run / "recipe.toml").exists():
        return ()
    section = recipe.read(run / "recipe.toml").tables.get("data", {})
    columns = () if section.get("target_columns") else section.get("columns", ())
    if not columns or not all(isinstance(column, str) for column in columns):
        return ()
    names = first_record(Path(data)) if is_path(data) else column_names(data)
    return tuple(columns) if {*columns} <= {*names} else ()


def search(
    model: Model | SearchIndex,
    query: str,
    texts: Sequence[str] | None = None,
    top_k: int = 5,
    **options: Any,
) -> list[TextMatch]:
    """The texts most similar to a query by the cosine of their vectors, the best first.

        regard.search("path/to/model", "a query", texts)
        regard.search("index", "a query")       # the folder of a `SearchIndex`

    Args:
        model: a model, or an index; either may be a folder.
        texts: what is searched; an index has its own.
        options: further arguments of the method `search`.

    Raises:
        ConfigError: texts are missing, or are given beside those of an index.
    """
    if isinstance(model, str | PathLike) and (Path(model) / FACTS).exists():
        model = SearchIndex.load(Path(model))
    if isinstance(model, SearchIndex) != (texts is None):
        raise ConfigError("Give the texts to search, or an index, which has its own texts.")
    own_texts = () if texts is None else (texts,)
    searched: Any = model if isinstance(model, SearchIndex) else as_task(model)
    matches: list[TextMatch] = searched.search(query, *own_texts, top_k=top_k, **options)
    return matches


def as_task(model: Model) -> Any:
    """The model itself, or the one in a folder."""
    return model if isinstance(model, Task) else load(model)
