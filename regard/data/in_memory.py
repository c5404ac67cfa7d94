"""Data in memory: the rows of a DataFrame, a dataset or a list, and files written from them.

rows(dataframe)                     an iterator over the rows, as mappings
write_jsonl(dataframe, path)        the same rows as JSON lines
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import suppress
from dataclasses import asdict, is_dataclass
from itertools import islice
from math import isfinite, isnan
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from regard.errors import ConfigError, DataError, shown
from regard.file_writing import replacing, sync
from regard.habit_names import COLUMNS, NEGATIVES, SOURCES, TARGETS, TEXTS

DOCUMENT = "text"  # the field of the files of `write_documents`
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
        data: a DataFrame of pandas or polars, a dataset of `datasets`, an array of NumPy, a mapping
            from column to values, or another iterable of rows.

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
    *("Series", "Table", "DataFrameGroupBy", "SeriesGroupBy", "GroupBy"),
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
        f"of them are texts and which the target. {remedy}"
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
    names = column_names(data)
    texts = text_columns_among(names)
    if not texts:
        raise _unclear(data, names, "Give one column of texts: data['text'].")
    text_tuples = [tuple(row[name] for name in texts) for row in rows(data)]
    return text_tuples if len(texts) > 1 else [text for (text,) in text_tuples]


def is_table(data: Any) -> bool:
    """Whether this is a DataFrame or a dataset, which has columns by name."""
    return _library(data) in ("pandas", "polars", "datasets") and type(data).__name__ in _TABLES


# ------------------------------------------------------------------------------------- values


def plain(value: Any) -> Any:
    """A value of NumPy, PyTorch or pandas as Python has it; None where it is missing."""
    if isinstance(value, np.generic | np.ndarray | Tensor):
        with suppress(RuntimeError, NotImplementedError):  # a sparse tensor, one without data
            value = value.tolist()
    if isinstance(value, float) and isnan(value):
        return None
    return None if type(value).__name__ in ("NAType", "NaTType") else value


def plain_list(value: Any) -> list[Any] | None:
    """The items of a list, an array or a set, as `plain` has them; None for other values."""
    value = plain(value)
    if isinstance(value, set | frozenset):
        value = sorted(value, key=str)
    return [plain(item) for item in value] if isinstance(value, list | tuple) else None


# ------------------------------------------------------------------------------------- files


def write_jsonl(data: Any, path: Path, columns: Sequence[str | int] = (), source: str = "") -> int:
    """Write the rows of data as JSON lines, completely or not at all; returns their number.

    Args:
        columns: the columns to write, none of which may lack a value; (): all of them. A nested
            field is named `outer.inner`. An index names a field of a row that is a sequence; the
            index is then the name of the column in the file.
        source: the name of the data in errors.

    Raises:
        DataError: a value is missing, or cannot be written as JSON; there are no rows.
        CheckpointError: the file cannot be written.
    """
    names = tuple(map(str, columns))
    return _write(data, path, source, lambda row, error: _json_record(row, names, error))


def write_lines(data: Any, path: Path, source: str = "") -> int:
    """Write texts as running text, each on its own line; returns their number.

    Args:
        data: a list or a Series of texts, or a table with one column.
        source: the name of the data in errors.

    Raises:
        DataError: a row is not a text; there are no rows.
        CheckpointError: the file cannot be written.
    """
    return _write(data, path, source, lambda row, error: _text_of_row(row, error).rstrip("\n"))


def write_documents(
    data: Any, path: Path, column: str | int | None = None, source: str = ""
) -> int:
    """Write texts as JSON lines, each a document with the field `text`; returns their number.

    Args:
        column: of tables: that with the text; None: there is one column.

    Raises:
        DataError, CheckpointError: as of `write_lines`; or there is no such column.
    """
    return _write(
        data, path, source, lambda row, error: {DOCUMENT: _text_of_row(row, error, column)}
    )


ErrorOf = Callable[[str], DataError]  # of the row that is written


def _write(data: Any, path: Path, source: str, line: Callable[[Any, ErrorOf], Any]) -> int:
    """Write a line for each row: a text as it is, other values as JSON."""
    source, count = source or source_name(data), 0

    def error(problem: str) -> DataError:
        return DataError(source, count, problem)

    with replacing(path) as temporary:
        with temporary.open("w", encoding="utf-8", newline="\n") as file:
            for row in data if type(data).__name__ == "Series" else rows(data):
                count += 1
                content = line(row, error)
                if not isinstance(content, str):
                    content = _ENCODER.encode(content)
                try:
                    file.write(content + "\n")
                except UnicodeEncodeError:
                    problem = "has half of a surrogate pair, which is no character."
                    raise error(problem) from None
        if not count:
            raise DataError(source, None, "is empty: it has not one row.")
        sync(temporary)
    return count


_ENCODER = json.JSONEncoder(ensure_ascii=False)


def _text_of_row(row: Any, error: ErrorOf, column: str | int | None = None) -> str:
    """The text of a row: of this column, or of its only one."""
    if column is not None:
        try:
            row = [row[column]]
        except (KeyError, IndexError, TypeError):
            raise error(f"has no field {column!r}.") from None
    fields = list(row.values()) if isinstance(row, Mapping) else row
    if isinstance(fields, Sequence) and not isinstance(fields, str) and len(fields) == 1:
        fields = fields[0]
    if isinstance(fields, str):
        return fields
    raise error(f"must be a text, but is {shown(row)}.")


def _json_record(row: Any, columns: Sequence[str], error: ErrorOf) -> dict[str, Any]:
    """These columns of a row as values of JSON; without `columns` all of them."""
    row = _with_names(row)
    if not isinstance(row, Mapping):
        if isinstance(row, str | bytes) or not isinstance(row, Sequence):
            raise error(f"must be a mapping or a sequence of fields, but is {shown(row)}.")
        row = {str(index): value for index, value in enumerate(row)}
    names = [name if name in row else name.partition(".")[0] for name in columns] or [*row]
    for name in names:
        if name not in row:
            raise error(f"has no column {name!r}. It has: {', '.join(map(str, row))}.")
        if columns and plain(row[name]) is None:
            raise error(f"has no value in column {name!r}. Leave such rows out.")
    return {str(name): _json_value(row[name], name, error) for name in names}


def _json_value(value: Any, name: str, error: ErrorOf) -> Any:
    """A value of a column as a value of JSON."""
    value = plain(value)
    if isinstance(value, bool):
        return str(value)  # labels are texts
    if isinstance(value, Mapping):
        return {str(key): _json_value(item, name, error) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_json_value(item, name, error) for item in value]
    if (
        value is None
        or isinstance(value, str | int)
        or isinstance(value, float)
        and isfinite(value)
    ):
        return value
    raise error(
        f"has a {type(value).__name__} in column {name!r}: {shown(value, 60)}. It must be text, a "
        "finite number or a list."
    )
