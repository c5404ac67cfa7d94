"""Data in memory: the rows of a DataFrame, a dataset or a list, and files written from them.

rows(dataframe)                     an iterator over the rows, as mappings
write_jsonl(dataframe, path)        the same rows as JSON lines
"""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import asdict, dataclass, is_dataclass
from difflib import get_close_matches
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from regard.errors import ConfigError, DataError, shown
from regard.file_writing import replacing, sync
from regard.habit_names import COLUMNS, SOURCES, TARGETS, TEXTS

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
        DataError: the data are none of these, or two columns have the same name.
    """
    library, kind = _library(data), type(data).__name__
    if library == "pandas" and kind == "DataFrame":
        return _rows_of_pandas(data)
    if library == "polars" and kind == "DataFrame":
        return data.iter_rows(named=True)
    if kind in _HINTS:
        raise DataError(source_name(data), None, *_HINTS[kind])
    if library == "datasets" and kind in ("Dataset", "IterableDataset"):
        return _with_class_names(data)
    if isinstance(data, np.ndarray):
        return _rows_of_array(data)
    if isinstance(data, Tensor):
        return _rows_of_array(data.detach().cpu().numpy())
    if isinstance(data, Mapping):
        return _rows_of_columns(data)
    if isinstance(data, bytes | bytearray):
        raise _no_rows(data)
    if isinstance(data, Iterable):
        return iter(data)
    if isinstance(data, Sized) and hasattr(data, "__getitem__"):  # datasets of PyTorch
        return (data[index] for index in range(len(data)))
    raise _no_rows(data)


def _library(data: Any) -> str:
    return type(data).__module__.partition(".")[0]


def _no_rows(data: Any) -> DataError:
    problem = f"must be a table or a list of rows, but is {shown(data)}."
    return DataError(source_name(data), None, problem)


GROUPED = ("DataFrameGroupBy", "SeriesGroupBy", "GroupBy")  # of pandas and polars
_TABLES = {
    *("DataFrame", "LazyFrame", "Dataset", "IterableDataset", "DatasetDict", "IterableDatasetDict")
}
_HINTS = {
    "LazyFrame": ("is not computed yet.", "Give data.collect()."),
    "DatasetDict": ("holds several datasets.", "Give one of them, such as data['train']."),
    "IterableDatasetDict": ("holds several datasets.", "Give one of them, such as data['train']."),
    "Table": ("is a table of Arrow.", "Give a DataFrame: data.to_pandas()."),
    **dict.fromkeys(GROUPED, ("is grouped rows.", "Give the DataFrame that they are from.")),
    "Series": ("is one column, without labels.", "Give the DataFrame that it is from."),
    "set": ("has no order, so that a training could not be repeated.", "Give a list."),
    "frozenset": ("has no order, so that a training could not be repeated.", "Give a list."),
}


def _rows_of_pandas(frame: Any) -> Iterator[dict[str, Any]]:
    if frame.columns.nlevels > 1:
        problem = "has columns with names of several levels (a MultiIndex)."
        hint = "Give each one name: data.columns = ['_'.join(map(str, n)) for n in data.columns]"
        raise DataError(source_name(frame), None, problem, hint)
    names = _unique_names(map(str, frame.columns), frame)
    return (dict(zip(names, row, strict=True)) for row in frame.itertuples(False, None))


def _unique_names(names: Iterable[str], data: Any) -> list[str]:
    """The names as a list.

    Raises:
        DataError: a name occurs twice.
    """
    counts = Counter(names)
    if twice := [name for name, count in counts.items() if count > 1]:
        problem = f"has several columns with the name {twice[0]!r}."
        raise DataError(source_name(data), None, problem, "Rename or drop all but one of them.")
    return list(counts)


def _with_class_names(dataset: Any) -> Iterator[dict[str, Any]]:
    """The rows of a dataset of `datasets`; a class label is its name, not its number."""
    features = dataset.features or {}  # None: of a stream whose columns are not known yet
    class_labels = {name: kind for name, kind in features.items() if _class_label(kind)}
    for batch in dataset.with_format(None).iter(batch_size=1000):
        for name, kind in class_labels.items():
            batch[name] = [_class_name(value, _class_label(kind)) for value in batch[name]]
        names = list(batch)
        yield from (dict(zip(names, row, strict=True)) for row in zip(*batch.values(), strict=True))


def _class_label(kind: Any) -> Any:
    """The `datasets.ClassLabel` of a column, or of the items of a column of lists; or None."""
    kind = kind[0] if isinstance(kind, list) else getattr(kind, "feature", kind)
    return kind if hasattr(kind, "int2str") else None


def _class_name(value: Any, label: Any) -> Any:
    if isinstance(value, list):
        return [_class_name(item, label) for item in value]
    return value if value is None or value < 0 else label.int2str(value)  # -1: not known


def _rows_of_array(array: np.ndarray) -> Iterator[Any]:
    if not array.ndim:
        raise _no_rows(array)
    names = array.dtype.names
    if names is None:
        return iter(array.tolist())
    return (dict(zip(names, row, strict=True)) for row in array.tolist())


def _rows_of_columns(data: Mapping[Any, Any]) -> Iterator[dict[str, Any]]:
    names = _unique_names(map(str, data), data)
    for name, values in zip(names, data.values(), strict=True):
        no_column = isinstance(values, str | bytes | Mapping) or is_table(values)
        no_column = no_column or _has_no_axis(values)
        if no_column or not (isinstance(values, Sized) and isinstance(values, Iterable)):
            problem = f"must have a list of values as column {name!r}, but has {shown(values, 60)}."
            raise DataError(source_name(data), None, problem)
    lengths = {name: len(values) for name, values in zip(names, data.values(), strict=True)}
    if len({*lengths.values()}) > 1:
        problem = f"has columns of different lengths: {lengths}."
        raise DataError(source_name(data), None, problem)
    return (dict(zip(names, row, strict=True)) for row in zip(*data.values(), strict=True))


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
        first = next(iter(rows(data)), ())
        count = len(first) if isinstance(first, Sequence) and not isinstance(first, str) else 0
        return tuple(index for index in range(count) if index not in excluded)
    plain = plain_names(names)
    plain = plain if len({*plain}) == len(names) else names
    if columns := _usual_columns(plain):
        return tuple(names[plain.index(column)] for column in columns)
    if len(names) == 1:
        raise ConfigError(
            f"Give texts and their target: {source_name(data)} has one column only, {names[0]}."
        )
    raise ConfigError(
        f"{source_name(data)} has the columns {', '.join(names)}, and their names do not say which "
        "of them are the text and its target. Rename them, to text (or sentence1 and sentence2) "
        "and label, or name them in this order: columns=[text column, label column]."
    )


def plain_names(names: Iterable[str]) -> list[str]:
    """Names of columns in lower case, with underscores."""
    return [name.strip().lower().replace(" ", "_").replace("-", "_") for name in names]


def _usual_columns(names: Sequence[str]) -> tuple[str, ...]:
    """The columns of texts, then that of the target, by their plain names; () if these do not tell.

    Of two columns without a name of targets, the one with a name of texts comes first; two others,
    such as those of languages, stay in their order.
    """
    targets = [name for name in names if name in TARGETS]
    if {*targets} == {"label", "label_text"}:  # the same labels, as numbers and as texts
        targets, names = ["label_text"], [name for name in names if name != "label"]
    texts = next((columns for columns in TEXTS if {*columns} <= {*names}), ())
    if pair := next((columns for columns in SOURCES if {*columns} <= {*names}), None):
        return pair
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
        first = next(iter(rows(data)), ())
        count = len(first) if isinstance(first, Sequence) and not isinstance(first, str) else 0
        return tuple(index for index in range(count) if index not in excluded)
    rest = [name for name in names if name not in excluded]
    if texts := text_columns_among(rest):
        return texts
    raise ConfigError(
        f"{source_name(data)} has the columns {', '.join(names)}, and their names do not say which "
        "of them are texts. Rename one to text (or two to sentence1 and sentence2) or, in a "
        f"training, name them: columns={rest[:1]}."
    )


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
    if not names:
        raise ConfigError(f"Give texts: {source_name(data)} has no column of texts.")
    if not texts:
        raise ConfigError(
            f"Give texts: {source_name(data)} has the columns {', '.join(names)}, and their names "
            "do not say which of them are texts. Give one column: data['text']."
        )
    text_tuples = [tuple(row[name] for name in texts) for row in rows(data)]
    return text_tuples if len(texts) > 1 else [text for (text,) in text_tuples]


def is_table(data: Any) -> bool:
    """Whether this is a DataFrame or a dataset, which has columns by name."""
    return _library(data) in ("pandas", "polars", "datasets") and type(data).__name__ in _TABLES


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
    source = source or source_name(data)
    names, library = tuple(map(str, columns)), _library(data)
    lines = (
        _json_line(row, names, _Location(source, number, library))
        for number, row in enumerate(rows(data), 1)
    )
    return _write(lines, path, source, "row")


def write_lines(data: Any, path: Path, source: str = "") -> int:
    """Write texts as running text, each on its own line; returns their number.

    Args:
        data: a list or a Series of texts, or a table with one column.
        source: the name of the data in errors.

    Raises:
        DataError: a row is not a text; there are no rows.
        CheckpointError: the file cannot be written.
    """
    source = source or source_name(data)
    texts = data if type(data).__name__ == "Series" else rows(data)
    lines = (
        _text_of_row(row, source, number).rstrip("\n") + "\n" for number, row in enumerate(texts, 1)
    )
    return _write(lines, path, source, "text")


def write_documents(
    data: Any, path: Path, column: str | int | None = None, source: str = ""
) -> int:
    """Write texts as JSON lines, each a document with the field `text`; returns their number.

    Args:
        column: of tables: that with the text; None: there is one column.

    Raises:
        DataError, CheckpointError: as of `write_lines`; or there is no such column.
    """
    source = source or source_name(data)
    texts = data if type(data).__name__ == "Series" else rows(data)
    lines = (
        json.dumps({DOCUMENT: _text_of_row(row, source, number, column)}, ensure_ascii=False) + "\n"
        for number, row in enumerate(texts, 1)
    )
    return _write(lines, path, source, "text")


def _write(lines: Iterable[str], path: Path, source: str, unit: str) -> int:
    count = 0
    with replacing(path) as temporary:
        with temporary.open("w", encoding="utf-8", newline="\n") as file:
            for count, line in enumerate(lines, 1):
                try:
                    file.write(line)
                except UnicodeEncodeError:
                    problem = "has half of a surrogate pair, which is no character."
                    hint = "Repair the program that wrote it."
                    raise DataError(source, count, problem, hint) from None
        if not count:
            raise DataError(source, None, f"is empty: it has not one {unit}.")
        sync(temporary)
    return count


def _text_of_row(row: Any, source: str, number: int, column: str | int | None = None) -> str:
    if column is not None:
        try:
            row = [row[column]]
        except (KeyError, IndexError, TypeError):
            raise DataError(source, number, f"has no field {column!r}.") from None
    fields = list(row.values()) if isinstance(row, Mapping) else row
    if isinstance(fields, Sequence) and not isinstance(fields, str) and len(fields) == 1:
        fields = fields[0]
    if isinstance(fields, str):
        return fields
    hint = "Give one column, such as data['text']." if isinstance(row, Mapping) else ""
    raise DataError(source, number, f"must be a text, but is {shown(row)}.", hint)


@dataclass(frozen=True)
class _Location:
    """Where a value stands, for errors.

    source: the name of the data in errors.  row: from 1.
    library: the library of the data, such as "pandas", by which a hint is chosen.
    """

    source: str
    row: int
    library: str

    def error(self, problem: str, hint: str = "") -> DataError:
        """The error for this row."""
        return DataError(self.source, self.row, problem, hint)


def _json_line(row: Any, columns: Sequence[str], location: _Location) -> str:
    """The columns of a row as a line of JSON."""
    try:
        return _ENCODER.encode(_json_record(row, columns, location)) + "\n"
    except RecursionError:
        raise location.error("has lists in lists, too deep to be written.") from None


_ENCODER = json.JSONEncoder(ensure_ascii=False)


def _json_record(row: Any, columns: Sequence[str], location: _Location) -> dict[str, Any]:
    """These columns of a row as values of JSON; without `columns` all of them."""
    row = _as_mapping(row, columns, location)
    names = [name if name in row else name.partition(".")[0] for name in columns] or [*row]
    for name in names:
        if name not in row:
            close = get_close_matches(name, map(str, row), n=1)
            hint = f"It has: {', '.join(map(str, row))}."
            raise location.error(f"has no column {name!r}.", hint + _meant(close))
        if columns and _is_missing(row[name]):
            hint = _DROP_HINTS.get(location.library, "Leave such rows out.").format(name)
            raise location.error(f"has no value in column {name!r}.", hint)
    return {str(name): _json_value(row[name], name, location) for name in names}


def _meant(close: Sequence[str]) -> str:
    return f" Did you mean {close[0]!r}?" if close else ""


_DROP_HINTS = {
    "pandas": "Drop such rows first: data.dropna(subset=[{!r}]).",
    "polars": "Drop such rows first: data.drop_nulls([{0!r}]), or drop_nans([{0!r}]).",
    "datasets": "Drop such rows first: data.filter(lambda row: row[{!r}] is not None).",
}


def _as_mapping(row: Any, columns: Sequence[str], location: _Location) -> Mapping[Any, Any]:
    """A row as a mapping; the fields of a sequence have their indices as names.

    Raises:
        DataError: the row is a single value, or a sequence that lacks one of the columns.
    """
    row = row if type(row) in (dict, tuple, list) else _with_names(row)
    if isinstance(row, Mapping):
        return row
    if isinstance(row, str | bytes) or not isinstance(row, Sequence):
        raise location.error(f"must be a mapping or a sequence of fields, but is {shown(row)}.")
    if named := [name for name in columns if not name.isdecimal()]:
        problem = f"is a {type(row).__name__}, whose fields have no names."
        raise location.error(problem, f"The column {named[0]!r} is wanted: give mappings.")
    if columns and len(row) <= max(map(int, columns)):
        raise location.error(f"has {len(row)} fields, but {max(map(int, columns)) + 1} are wanted.")
    return {str(index): value for index, value in enumerate(row)}


def _is_missing(value: Any) -> bool:
    """None, NaN, pandas' NA and NaT."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float | np.floating) and bool(np.isnan(value))


def plain_scalar(value: Any) -> Any:
    """A number or a Boolean as a plain Python value; None if it is missing.

    True becomes "True", since labels are texts.
    """
    if type(value) is str:
        return value
    if _is_missing(value):
        return None
    if isinstance(value, bool | np.bool_):
        return str(bool(value))
    if _has_no_axis(value) or _is_numeric(value):
        plain = _as_list(value)
        return value if plain is value else plain_scalar(plain)
    return value


def list_as_json(value: Any) -> Any:
    """A list, an array or a set as the JSON text of its items; others as `plain_scalar` does.

    A list that JSON does not have, since it contains itself, stays a list.
    """
    value = _as_list(plain_scalar(value))
    if isinstance(value, Mapping | str | bytes | Tensor) or not isinstance(value, Iterable):
        return value
    try:
        items = sorted(value, key=str) if isinstance(value, set | frozenset) else value
        return json.dumps([plain_scalar(item) for item in items], default=shown)
    except (ValueError, RecursionError):
        return value


def _has_no_axis(value: Any) -> bool:
    """Whether this is a tensor or an array with one number, of shape ()."""
    return isinstance(value, Tensor | np.ndarray) and not value.ndim


def _as_list(value: Any) -> Any:
    """A tensor, an array or a scalar of NumPy as Python has it; what has no such form as it is."""
    if isinstance(value, Tensor | np.ndarray | np.generic):
        try:
            return value.tolist()
        except (RuntimeError, NotImplementedError):  # a sparse tensor, one without data
            return value
    return value


def _is_numeric(value: Any) -> bool:
    """Whether this is a NumPy scalar whose type Python also has (a time is not)."""
    in_python = isinstance(value, np.generic) and value.dtype.kind in "biufU"
    return in_python and value.dtype != np.longdouble


def _json_value(value: Any, name: str, location: _Location) -> Any:
    """A value of a column as a value of JSON."""
    value = plain_scalar(value)
    value = _as_list(value) if isinstance(value, Tensor) else value
    if isinstance(value, float) and not math.isfinite(value):
        raise location.error(f"has a number in column {name!r} that is not finite: {value}.")
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(key): _json_value(item, name, location) for key, item in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, bytes | np.generic | Tensor):
        return [_json_value(item, name, location) for item in value]
    problem = f"has a {type(value).__name__} in column {name!r}: {shown(value, 60)}."
    raise location.error(problem, "It must be text, a number or a list: convert it, as str() does.")
