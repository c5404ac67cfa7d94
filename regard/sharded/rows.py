"""The rows of the input, read so that a line that cannot be read costs nothing but itself."""

import os
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

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

TEXT = "text"  # the column of a file of lines
BATCH_ROWS, BATCH_BYTES = 1024, 1 << 20  # of a Parquet file, in memory together


@dataclass(frozen=True)
class InputFile:
    """A file of the input.

    format: one of `ENDINGS`' values, or "lines".  rows: how many it has.  delimiter: of CSV.
    header: whether the first line of a table names its columns; else the names are the numbers.
    """

    path: str
    format: str
    sha256: str
    rows: int = 0
    delimiter: str = ","
    header: bool = True


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


def input_files(
    paths: Sequence[Path], columns: Sequence[str] = (), delimiter: str | None = None
) -> list[InputFile]:
    """The files of the input, with their checksums and the numbers of their rows.

    columns: those of texts; numbers are those of a table without a header.

    Raises:
        ConfigError: the files have different formats, one is named twice, or a delimiter or columns
            are given for files without.
        DataError: a file cannot be read to its end, its first line is no header, or it lacks a
            column.
    """
    if not paths or len({os.path.realpath(path) for path in paths}) < len(paths):
        raise ConfigError("The input must be at least one file, and must not name one twice.")
    formats = {str(path): ENDINGS.get(ending(path), "lines") for path in paths}
    if len({*formats.values()}) > 1:
        named = ", ".join(f"{name} ({format})" for name, format in formats.items())
        raise ConfigError(f"The files of the input must have one format, but are {named}.")
    (format,) = {*formats.values()}
    if delimiter is not None and format != "csv":
        raise ConfigError(f"A delimiter is for CSV, but {paths[0]} is read as {format}.")
    if columns and format == "lines":
        raise ConfigError(f"{paths[0]} has lines and no columns, but {columns} are named.")
    header = not (columns and all(map(str.isdecimal, columns)))
    files = [
        InputFile(name, format, hash_of(name), 0, delimiter or ",", header) for name in formats
    ]
    for file in files:
        names = column_names(file)
        missing = [c for c in columns if names and not {c, c.partition(".")[0]} & {*names}]
        if missing:
            hint = f"It has: {', '.join(names)}."
            raise DataError(file.path, None, f"has no field {missing[0]!r}.", hint)
    return [replace(file, rows=sum(1 for _ in rows_of(file))) for file in files]


def column_names(file: InputFile) -> list[str]:
    """The names of the columns of a table; none for other formats.

    Raises:
        DataError: the first line is no header, or names a column twice.
    """
    names: list[str] = []
    if file.format == "parquet":
        with _parquet(file.path) as table:
            names = table.schema_arrow.names
    elif file.format in ("csv", "tsv"):
        _, fields = next(_table(file), (0, names))
        if isinstance(fields, DataError):
            raise fields
        names = fields if file.header else list(map(str, range(len(fields))))
    if twice := [name for name in names if names.count(name) > 1]:
        raise DataError(file.path, None, f"has more than one column {twice[0]!r}.", "Rename one.")
    return names


def rows_of(file: InputFile) -> Iterator[InputRow]:
    """The rows of a file, in order. Blank lines of tables and JSONL, and the header, are none.

    Raises:
        DataError: the file cannot be decompressed, a line is too long, or rows of a CSV file cannot
            be told apart.
    """
    if file.format == "parquet":
        with _parquet(file.path) as table:
            batches = (batch.to_pylist() for batch in table.iter_batches(BATCH_ROWS))
            records = (record for batch in batches for record in batch)
            yield from (InputRow(number, record) for number, record in enumerate(records, 1))
        return
    names = column_names(file)
    is_table = bool(names)
    read = islice(_table(file), int(file.header), None) if is_table else _lines(file)
    for number, content in read:
        try:
            yield InputRow(number, _record(file, names, number, content))
        except DataError as error:
            yield InputRow(number, error=error)


def _record(file: InputFile, names: Sequence[str], number: int, content: Any) -> dict[str, Any]:
    """The fields of a row, from its line or the fields of the table."""
    if isinstance(content, DataError):
        raise content
    if file.format == "lines":
        return {TEXT: content}
    if file.format == "jsonl":
        value = json_value(content, file.path, number)
        if not isinstance(value, dict):
            problem = f"must be a JSON object, but is a {type(value).__name__}."
            raise DataError(file.path, number, problem)
        return value
    if len(content) != len(names):
        hint = f"The columns: {', '.join(names)}."
        problem = f"has {len(content)} fields, but the first line has {len(names)}."
        raise DataError(file.path, number, problem, hint)
    return dict(zip(names, content, strict=True))


def _table(file: InputFile) -> Iterator[tuple[int, list[str] | DataError]]:
    """The fields of the lines of CSV or TSV, the header included."""
    if file.format == "csv":
        yield from csv_rows(file.path, file.delimiter)
        return
    for number, line in _lines(file):
        yield number, line if isinstance(line, DataError) else line.split("\t")


def _lines(file: InputFile) -> Iterator[tuple[int, str | DataError]]:
    """The lines that are rows, without their ends; an error for one that is not UTF-8."""
    with open_bytes(file.path) as stream:
        skip_byte_order_mark(stream, file.path)
        for number, line in enumerate(iter(partial(stream.readline, LONGEST_LINE + 1), b""), 1):
            if len(line) > LONGEST_LINE:
                problem = f"the line has more than {LONGEST_LINE:,} bytes."
                raise DataError(file.path, number, problem)
            mark = BOM_UTF8 if number == 1 else b""  # which was skipped, and is expected here
            try:
                (text,) = lines_of([mark + line], file.path, number - 1)  # type: ignore[arg-type]
            except DataError as error:
                yield number, error
                continue
            if file.format == "lines" or (text.strip() if file.format == "jsonl" else text):
                yield number, text


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
