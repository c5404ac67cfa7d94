"""Data in memory: the rows of a DataFrame, a dataset, a list or an Arrow table.

rows(dataframe)                     an iterator over the rows, as mappings
infer_columns(dataframe)            the columns of texts and target, by their names
write_copy(dataframe, path)         a file with the same rows, for a run that is resumed
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import suppress
from dataclasses import asdict, is_dataclass
from itertools import chain, islice
from math import isnan
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from regard.errors import ConfigError, DataError, shown
from regard.file_writing import replacing, sync
from regard.habit_names import COLUMNS, NEGATIVES, SOURCES, TARGETS, TEXTS

DOCUMENT = "text"  # the column of texts without columns
LONGEST_PATH = 1024  # characters of a string that may be the path of a file


def is_path(value: object) -> bool:
    """Whether this is a path, and not data."""
    return isinstance(value, str | PathLike)


def is_running_text(value: object) -> bool:
    """Whether a string is a text, and not the path of a file: it has white space, does not end as
    names of files do, and no file has this name.
    """
    if not isinstance(value, str) or not re.search(r"\s", value):
        return False
    named = len(value) < LONGEST_PATH and re.search(r"\.\w{1,8}$", value) is not None
    return not named and not (len(value) < LONGEST_PATH and os.path.exists(value))


def source_name(data: object) -> str:
    """The name of data in memory in errors, where a file would have its path: "<DataFrame>"."""
    return f"<{type(data).__name__}>"


def rows(data: Any) -> Iterator[Any]:
    """The rows of data in memory, in order, each as a mapping by column, a sequence or a text.

    Args:
        data: a DataFrame of pandas or polars, a dataset of `datasets`, an Arrow table, an array of
            NumPy, a mapping from column to values, a Series, or another iterable of rows.

    Raises:
        DataError: the data are none of these, or have several columns of a name.
    """
    library, kind = _library(data), type(data).__name__
    if library == "pandas" and kind == "DataFrame":
        names = _unique_names(map(str, data.columns), data)
        return (dict(zip(names, row, strict=True)) for row in data.itertuples(False, None))
    if library == "polars" and kind == "DataFrame":
        return data.iter_rows(named=True)
    if library == "datasets" and kind in ("Dataset", "IterableDataset"):
        return _with_class_names(data)
    if library == "pyarrow" and kind == "Table":
        _unique_names(data.column_names, data)
        return chain.from_iterable(batch.to_pylist() for batch in data.to_batches())
    if isinstance(data, Mapping) and not is_table(data):
        return _rows_of_columns(data)
    if isinstance(data, np.ndarray | Tensor):
        return iter(plain(data)) if data.ndim else iter(())
    if isinstance(data, Iterable) and kind not in NO_ROWS:
        return iter(data)
    is_sequence = isinstance(data, Sized) and hasattr(data, "__getitem__")  # of PyTorch
    if is_sequence and kind not in NO_ROWS:
        return (data[index] for index in range(len(data)))
    problem = f"must be a table or a list of rows, but is {shown(data)}."
    raise DataError(source_name(data), None, problem)


def _library(data: Any) -> str:
    return type(data).__module__.partition(".")[0]


_TABLES = {
    *("DataFrame", "LazyFrame", "Dataset", "IterableDataset", "DatasetDict", "IterableDatasetDict")
}
# What can be looped over, but gives no rows, or none in an order.
NO_ROWS = {
    *("bytes", "bytearray", "set", "frozenset", "LazyFrame", "DatasetDict", "IterableDatasetDict"),
    *("Table", "DataFrameGroupBy", "SeriesGroupBy", "GroupBy"),
}


def _unique_names(names: Iterable[str], data: Any) -> list[str]:
    """The names as a list.

    Raises:
        DataError: a name occurs twice.
    """
    names = list(names)
    if twice := [name for name in names if names.count(name) > 1]:
        problem = f"has several columns with the name {twice[0]!r}."
        raise DataError(source_name(data), None, problem, "Rename or drop all but one of them.")
    return names


def _with_class_names(dataset: Any) -> Iterator[dict[str, Any]]:
    """The rows of a dataset of `datasets`; a class label is its name, not its number."""
    features = dataset.features or {}  # None: of a stream whose columns are not known yet
    class_labels = {name: kind for name, kind in features.items() if hasattr(kind, "int2str")}
    for row in dataset.with_format(None):
        for name, kind in class_labels.items():
            if row[name] is not None and row[name] >= 0:  # -1: not known
                row[name] = kind.int2str(row[name])
        yield row


def _rows_of_columns(data: Mapping[Any, Any]) -> Iterator[dict[str, Any]]:
    names, columns = _unique_names(map(str, data), data), list(data.values())
    for name, values in zip(names, columns, strict=True):
        is_list = isinstance(values, Sized) and isinstance(values, Iterable)
        if not is_list or isinstance(values, str | bytes | Mapping):
            problem = f"must have a list of values as column {name!r}, but has {shown(values, 60)}."
            raise DataError(source_name(data), None, problem)
    lengths = dict(zip(names, map(len, columns), strict=True))
    if len({*lengths.values()}) > 1:
        raise DataError(source_name(data), None, f"has columns of different lengths: {lengths}.")
    return (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))


def column_names(data: Any) -> list[str]:
    """The names of the columns; [] if the rows have no names, or the data are an iterator.

    (An iterator could not be read again.)
    """
    if is_path(data) or isinstance(data, Iterator):
        return []
    if type(data).__name__ == "DataFrame" and not len(data):
        return list(map(str, data.columns))
    first = _with_names(next(islice(rows(data), 1), None))
    return list(map(str, first)) if isinstance(first, Mapping) else []


def _with_names(row: Any) -> Any:
    """A row; a dataclass or a named tuple becomes a mapping."""
    if is_dataclass(row) and not isinstance(row, type):
        return asdict(row)
    return dict(row._asdict()) if hasattr(row, "_asdict") else row


def _indices(data: Any, excluded: Sequence[str | int]) -> tuple[int, ...]:
    """The fields of rows without names, by their numbers."""
    first = next(iter(rows(data)), ())
    count = len(first) if isinstance(first, Sequence) and not isinstance(first, str) else 0
    return tuple(index for index in range(count) if index not in excluded)


def _unclear(data: Any, names: Sequence[str], remedy: str) -> ConfigError:
    """The error for columns whose names do not tell what they hold."""
    return ConfigError(
        f"{source_name(data)} has the columns {', '.join(names)}, and their names do not say which "
        f"are texts and which the one target (usual names are {', '.join(TARGETS)}). {remedy}"
    )


def infer_columns(data: Any, excluded: Sequence[str | int] = ()) -> tuple[str | int, ...]:
    """The columns of the texts, then that of the target, found by their names.

    Of rows without names they are the indices of all fields.

    Args:
        excluded: columns that are neither texts nor target.

    Raises:
        ConfigError: the names do not tell which columns they are.
    """
    names = [name for name in column_names(data) if name not in excluded]
    if not names:
        return _indices(data, excluded)
    usual = plain_names(names)
    usual = usual if len({*usual}) == len(names) else names
    if columns := _usual_columns(usual):
        return tuple(names[usual.index(column)] for column in columns)
    remedy = "Rename them, to text (or sentence1 and sentence2) and label, or name them in this "
    raise _unclear(data, names, f"{remedy}order: columns=[text column, label column].")


def columns_of_part(columns: Sequence[int | str], part: str) -> tuple[int | str, ...]:
    """The columns that a part of the data must have: negatives are of "train" alone."""
    used = [c for c in columns if part == "train" or not NEGATIVES.fullmatch(str(c))]
    return tuple(used)


def plain_names(names: Iterable[str]) -> list[str]:
    """Names of columns in lower case, with underscores."""
    return [name.strip().lower().replace(" ", "_").replace("-", "_") for name in names]


def _usual_columns(names: Sequence[str]) -> tuple[str, ...]:
    """The columns of texts, then that of the target, by their plain names; () if these do not tell.

    Those of two texts alone may be followed by those of their negatives.

    Of two columns without a name of targets, the one with a name of texts comes first; two others,
    such as those of languages, stay in their order.
    """
    targets = [name for name in names if name in TARGETS]
    if {*targets} == {"label", "label_text"}:  # the same labels, as numbers and as texts
        targets, names = ["label_text"], [name for name in names if name != "label"]
    texts = next((columns for columns in TEXTS if {*columns} <= {*names}), ())
    if pair := next((columns for columns in SOURCES if {*columns} <= {*names}), None):
        return pair
    negatives = [name for name in names if NEGATIVES.fullmatch(name)]
    if len(texts) == 2 and not targets and len(names) == 2 + len(negatives):
        return (*texts, *negatives)
    if len(targets) == 1 and (texts or len(names) == 2):
        rest = tuple(name for name in names if name not in targets)
        return (*(texts or rest), *targets)
    if len(names) != 2 or targets or not COLUMNS.issuperset(names):
        return ()
    return tuple(sorted(names, key=lambda name: name not in texts))


def infer_text_columns(data: Any, excluded: Sequence[str | int]) -> tuple[str | int, ...]:
    """The columns of one text or two, found by their names.

    Of rows without names they are the indices of all fields that are not excluded.

    Args:
        excluded: the columns of targets, and others that are not texts.

    Raises:
        ConfigError: the names do not tell which columns they are.
    """
    names = column_names(data)
    if not names:
        return _indices(data, excluded)
    rest = [name for name in names if name not in excluded]
    if texts := text_columns_among(rest):
        return texts
    remedy = "Rename one to text (or two to sentence1 and sentence2) or, in a training, name them: "
    raise _unclear(data, names, f"{remedy}columns={rest[:1]}.")


def text_columns_among(names: Sequence[str]) -> tuple[str, ...]:
    """The columns of one text or two among these names; () if the names do not tell."""
    rest = [name for name in names if name not in TARGETS]
    if len(rest) == 1:
        return tuple(rest)
    return next((texts for texts in TEXTS if {*texts} <= {*rest}), ())


def text_rows(data: Any) -> list[Any]:
    """The texts of a table without the target: for each row a text, or a tuple of two.

    Raises:
        ConfigError: the names of the columns do not tell which hold texts.
    """
    texts = infer_text_columns(data, ())
    text_tuples = [tuple(row[name] for name in texts) for row in rows(data)]
    return text_tuples if len(texts) > 1 else [text for (text,) in text_tuples]


def is_table(data: Any) -> bool:
    """Whether this is a DataFrame or a dataset, which has columns by name."""
    return _library(data) in ("pandas", "polars", "datasets") and type(data).__name__ in _TABLES


# ------------------------------------------------------------------------------------- values


def plain(value: Any) -> Any:
    """A value of NumPy, PyTorch or pandas, or a list of such, as Python has it; None where it is
    missing.
    """
    if type(value) in (str, int, bool):
        return value
    if isinstance(value, np.generic | np.ndarray | Tensor):
        with suppress(RuntimeError, NotImplementedError):  # a sparse tensor, one without data
            value = value.tolist()
    if isinstance(value, float) and isnan(value):
        return None
    if isinstance(value, set | frozenset):
        value = sorted(value, key=str)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return None if type(value).__name__ in ("NAType", "NaTType") else value


class Items:
    """Data in memory, item by item with its number from 1; an iterator gives its items once."""

    def __init__(self, data: Any, name: str = ""):
        self.data, self.name, self.spent = data, name or source_name(data), False

    def __call__(self) -> Iterator[tuple[int, Any]]:
        """A pass over the items.

        Raises:
            DataError: the data are no rows, or an iterator that has been read.
        """
        try:
            items = rows(self.data)
        except DataError as error:
            raise DataError(self.name, error.line, error.problem, error.hint) from None
        if self.spent:
            problem = "can be read only once, and has been read."
            hint = "Give a list, or an object whose `__iter__` starts again."
            raise DataError(self.name, None, problem, hint)
        self.spent = items is self.data
        return enumerate(items, 1)


def record_of(
    item: Any, location: tuple[str | Path, int | None], by_number: bool = False
) -> Mapping[Any, Any]:
    """A row in memory as a mapping by column; fields without names have numbers, and a text is the
    column `text`.

    by_number: whether columns are given by number.

    Raises:
        DataError: the item is no row.
    """
    named = item if by_number and isinstance(item, tuple) else _with_names(item)
    if isinstance(named, Mapping):
        return named
    if isinstance(item, str):
        return {0: item} if by_number else {DOCUMENT: item}
    if isinstance(item, bytes) or not isinstance(item, Sequence):
        problem = f"must be a tuple or a mapping, but is a {type(item).__name__}."
        raise DataError(*location, problem)
    fields = enumerate(item)
    return dict(fields) if by_number else {str(number): value for number, value in fields}


# ------------------------------------------------------------------------------------- files


def write_copy(data: Any, path: Path, columns: Sequence[str] = ()) -> int:
    """Write the rows of data as JSON lines, or as lines of text where the path ends in .txt,
    completely or not at all; returns their number.

    Args:
        columns: the columns to write; (): all of them. A nested field is named `outer.inner`.
            Fields without names are named by their numbers.

    Raises:
        DataError: a column is missing, or a value cannot be written; there are no rows.
        CheckpointError: the file cannot be written.
    """
    items = data if isinstance(data, Items) else Items(data)
    name, count = items.name, 0
    with replacing(path) as temporary:
        with temporary.open("w", encoding="utf-8", newline="\n") as file:
            for count, item in items():
                record = record_of(item, (name, count))
                line = (
                    single_text(record, (name, count)).rstrip("\n")
                    if path.suffix == ".txt"
                    else _json_line(record, columns, (name, count))
                )
                try:
                    file.write(line + "\n")
                except UnicodeEncodeError:
                    problem = "has half of a surrogate pair, which is no character."
                    raise DataError(name, count, problem) from None
        if not count:
            raise DataError(name, None, "is empty: it has not one row.")
        sync(temporary)
    return count


def single_text(record: Mapping[Any, Any], location: tuple[str, int]) -> str:
    """The text of a row with one column.

    Raises:
        DataError: it has others, or its value is no text.
    """
    texts = [*record.values()]
    if len(texts) != 1 or not isinstance(texts[0], str):
        raise DataError(*location, f"must be a text, but is {shown(record)}.")
    return texts[0]


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


def _json_line(record: Mapping[Any, Any], columns: Sequence[str], location: tuple[str, int]) -> str:
    """These columns of a row as a JSON object."""
    names = [name if name in record else name.partition(".")[0] for name in columns] or [*record]
    for name in names:
        if name not in record:
            listed = ", ".join(map(str, record))
            raise DataError(*location, f"has no column {name!r}. It has: {listed}.")
    values = {str(name): plain(record[name]) for name in names}
    try:
        return _ENCODER.encode(values)
    except (TypeError, ValueError, RecursionError):
        name = next(name for name in values if not _is_json(values[name]))
    problem = f"has a {type(values[name]).__name__} in column {name!r}: {shown(values[name], 60)}."
    raise DataError(*location, problem, "It must be text, a finite number or a list.")


def _is_json(value: Any) -> bool:
    try:
        return bool(_ENCODER.encode(value))
    except (TypeError, ValueError, RecursionError):
        return False
