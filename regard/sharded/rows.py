"""The rows of the input, read so that one that cannot be read costs nothing but itself.

for number, raw in raw_rows(file):        # quickly: what is skipped is not parsed
    row = row_of(file, names, number, raw)
"""

from __future__ import annotations

import os
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from regard.data.files import (
    ENDINGS,
    LONGEST_LINE,
    check_file,
    ending,
    hash_of,
    lines_of,
    open_bytes,
    skip_byte_order_mark,
)
from regard.data.readers import csv_rows, json_value
from regard.data.text_chunks import Chunk
from regard.errors import ConfigError, DataError, MissingExtra
from regard.tasks.predicted_tables import texts_of_row

if TYPE_CHECKING:
    from pyarrow import RecordBatch

TEXT = "text"  # the column of a file of lines
BATCH_ROWS, BATCH_BYTES = 1024, 1 << 20  # of a Parquet file, in memory together


@dataclass(frozen=True)
class InputFile:
    """A file of the input.

    format: one of `ENDINGS`' values, or "lines".  rows: how many it has.
    """

    path: str
    format: str
    sha256: str
    rows: int


@dataclass(frozen=True)
class InputRow:
    """A row of the input.

    line: on which it begins, from 1.  record: its fields by name.  error: why it cannot be read.
    """

    line: int
    record: dict[str, Any] = field(default_factory=dict)
    error: DataError | None = None


@dataclass(frozen=True)
class RowChunk(Chunk):
    """The texts of rows, with the line of the file on which each begins."""

    lines: list[int]

    def line(self, index: int) -> int:
        return self.lines[index]

    def after(self, index: int) -> Self:
        return replace(super().after(index), lines=self.lines[index:])


@dataclass(frozen=True)
class ParquetRow:
    """A row of a batch of a Parquet file."""

    batch: ParquetBatch
    index: int


class ParquetBatch:
    """Some rows of a Parquet file, which are converted when one of them is needed."""

    def __init__(self, batch: RecordBatch):
        self.batch = batch

    @cached_property
    def records(self) -> list[dict[str, Any] | Exception]:
        """The rows by column; the error for one that cannot be read."""
        try:
            return list(self.batch.to_pylist())
        except (ValueError, OverflowError):  # dates beyond Python's, text that is not UTF-8
            return [self._record(index) for index in range(len(self.batch))]

    def _record(self, index: int) -> dict[str, Any] | Exception:
        try:
            record: dict[str, Any] = self.batch.slice(index, 1).to_pylist()[0]
        except (ValueError, OverflowError) as error:
            return error
        return record


Raw = bytes | list[str] | ParquetRow  # a line, the fields of CSV, a row of Parquet


def input_files(paths: Sequence[str | Path]) -> list[InputFile]:
    """The files of the input, with their checksums and the numbers of their rows.

    Raises:
        ConfigError: the files have different formats, or one is named twice.
        DataError: a file cannot be read to its end, or its first line is no header.
    """
    names = [str(path) for path in paths]
    if not names:
        raise ConfigError("there is no input. Name at least one file.")
    formats = {name: ENDINGS.get(ending(name), "lines") for name in names}
    if other := next((name for name in names if formats[name] != formats[names[0]]), None):
        raise ConfigError(
            f"the files of the input must have one format, but {names[0]} is read as "
            f"{formats[names[0]]} and {other} as {formats[other]}."
        )
    known = set[str]()
    for name in names:
        if (path := os.path.realpath(name)) in known:
            raise ConfigError(f"the input names {name} twice.")
        known.add(path)
    found = []
    for name in names:
        file = InputFile(name, formats[name], hash_of(name), 0)
        column_names(file)  # raises its errors
        found.append(replace(file, rows=sum(1 for _ in raw_rows(file))))
    return found


def raw_rows(file: InputFile) -> Iterator[tuple[int, Raw]]:
    """The rows of a file before they are parsed, with the line on which each begins, from 1. Blank
    lines of tables and JSONL, and the header, are none.

    Raises:
        DataError: the file cannot be decompressed, a line is too long, or rows of a CSV file cannot
            be told apart.
    """
    if file.format == "parquet":
        yield from _parquet_rows(file.path)
    elif file.format == "csv":
        yield from islice(csv_rows(file.path, ","), 1, None)
    else:
        yield from islice(_lines(file), file.format == "tsv", None)


def column_names(file: InputFile) -> list[str]:
    """The names of the columns of a table; none for other formats.

    Raises:
        DataError: the first line is no header, or names a column twice.
    """
    names: list[str] = []
    if file.format == "parquet":
        with _parquet(file.path) as table:
            names = table.schema_arrow.names
    elif file.format == "csv":
        _, names = next(csv_rows(file.path, ","), (0, names))
    elif file.format == "tsv":
        for number, line in islice(_lines(file), 1):
            names = _text(line, file.path, number).split("\t")
    if twice := [name for name in names if names.count(name) > 1]:
        raise DataError(file.path, None, f"has more than one column {twice[0]!r}.", "Rename one.")
    return names


def check_columns(file: InputFile, columns: Sequence[str]) -> None:
    """Check that a table has these columns; the rows of JSONL may each have others.

    Raises:
        DataError: it lacks one.
    """
    names = column_names(file)
    for column in columns if names else ():
        if not {column, column.partition(".")[0]} & {*names}:
            hint = f"It has: {', '.join(names)}."
            raise DataError(file.path, None, f"has no field {column!r}.", hint)


def row_of(file: InputFile, names: Sequence[str], number: int, raw: Raw) -> InputRow:
    """A row from what `raw_rows` gives of it.

    names: of the columns of a table.
    """
    try:
        return InputRow(number, _fields(file, names, number, raw))
    except DataError as error:
        return InputRow(number, error=error)


def _fields(file: InputFile, names: Sequence[str], number: int, raw: Raw) -> dict[str, Any]:
    if isinstance(raw, ParquetRow):
        record = raw.batch.records[raw.index]
        if isinstance(record, Exception):
            raise DataError(file.path, number, f"has a value that cannot be read: {record}.")
        return record
    if isinstance(raw, list):
        return _record(raw, names, file.path, number)
    text = _text(raw, file.path, number)
    if file.format == "lines":
        return {TEXT: text}
    if file.format == "tsv":
        return _record(text.split("\t"), names, file.path, number)
    value = json_value(text, file.path, number)
    if not isinstance(value, dict):
        problem = f"must be a JSON object, but is a {type(value).__name__}."
        raise DataError(file.path, number, problem)
    return value


def _record(fields: Sequence[str], names: Sequence[str], path: str, number: int) -> dict[str, str]:
    if len(fields) != len(names):
        problem = f"has {len(fields)} fields, but the header has {len(names)}."
        raise DataError(path, number, problem)
    return dict(zip(names, fields, strict=True))


def _text(line: bytes, path: str, number: int) -> str:
    """The text of a line, without its end."""
    mark = BOM_UTF8 if number == 1 else b""  # of the file, which is skipped, and expected here
    (text,) = lines_of([mark + line], path, number - 1)  # type: ignore[arg-type]
    return text


def _lines(file: InputFile) -> Iterator[tuple[int, bytes]]:
    """The lines that are rows, with their ends."""
    with open_bytes(file.path) as stream:
        skip_byte_order_mark(stream, file.path)
        for number, line in enumerate(iter(partial(stream.readline, LONGEST_LINE + 1), b""), 1):
            if len(line) > LONGEST_LINE:
                problem = f"the line has more than {LONGEST_LINE:,} bytes."
                raise DataError(file.path, number, problem)
            if _is_row(line, file.format):
                yield number, line


def _is_row(line: bytes, format: str) -> bool:
    """Whether a line is a row, by the format of its file; in a file of lines a blank one is."""
    if format == "jsonl" and not b" " < line.lstrip()[:1] < b"\x7f":
        return bool(line.decode("utf-8", "replace").strip())
    return format in ("jsonl", "lines") or line not in (b"\n", b"\r\n")


def _parquet_rows(path: str) -> Iterator[tuple[int, ParquetRow]]:
    with _parquet(path) as table:
        batches = map(ParquetBatch, table.iter_batches(BATCH_ROWS))
        rows = ([ParquetRow(b, index) for index in range(len(b.batch))] for b in batches)
        yield from enumerate(chain.from_iterable(rows), 1)


def _parquet(path: str) -> closing[Any]:
    """An open `pyarrow.parquet.ParquetFile`."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtra("pyarrow", "data", "Reading Parquet") from error
    check_file(Path(path))
    try:
        # Without a buffer size, a whole row group would be in memory.
        return closing(parquet.ParquetFile(path, buffer_size=BATCH_BYTES))
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(path, None, f"cannot be read as Parquet: {error}.") from error


def texts_of(row: InputRow, columns: Sequence[str], path: str | Path) -> str | tuple[str, ...]:
    """What a model reads of a row: the line of text, or the texts of the columns as a tuple.

    Raises:
        DataError: the row could not be read, lacks a column, or a column has no text.
    """
    if row.error is not None:
        raise row.error
    if not columns:
        line: str = row.record[TEXT]
        return line
    return texts_of_row(row.record, columns, (path, row.line))
