"""The rows of a shard, as a worker reads them; a row that cannot be read has its error instead."""

from __future__ import annotations

import csv
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self

from regard.data.files import LONGEST_LINE, lines_of, open_bytes
from regard.data.readers import json_value
from regard.data.text_chunks import Chunk
from regard.errors import DataError
from regard.sharded.shards import CsvLines, InputFile, Shard, csv_rows, holds_row, read_header
from regard.tasks.predicted_tables import texts_of_row

if TYPE_CHECKING:
    from pyarrow import RecordBatch

TEXT = "text"  # the column of a file of lines
CHUNK_ROWS, CHUNK_CHARACTERS = 1024, 1 << 20  # at most computed together
PARQUET_BUFFER = 1 << 20  # bytes of each column; without, a whole row group would be in memory


@dataclass(frozen=True)
class InputRow:
    """A row of the input.

    line: on which it begins, from 1.  record: its fields by name.  error: why it cannot be read.
    """

    line: int
    record: dict[str, Any] = field(default_factory=dict)
    error: DataError | None = None

    def size(self) -> int:
        """Its characters, as an estimate: a value that is not text counts as 8."""
        return sum(len(value) if isinstance(value, str) else 8 for value in self.record.values())


@dataclass(frozen=True)
class RowChunk(Chunk):
    """The texts of rows, with the line of the file on which each begins."""

    lines: list[int]

    def line(self, index: int) -> int:
        return self.lines[index]

    def after(self, index: int) -> Self:
        return replace(super().after(index), lines=self.lines[index:])


class OpenFiles:
    """The files of the input. The file read last stays open, so that the next shard of it, if it
    follows, is read without decoding the file from its beginning.
    """

    def __init__(self, files: Sequence[InputFile]):
        self.files = files
        self._path = ""
        self._stack = ExitStack()
        self._stream: BinaryIO
        self._table: ParquetRows
        self._headers: dict[str, list[str]] = {}

    def rows(self, shard: Shard) -> Iterator[InputRow]:
        """The rows of a shard, each with its fields or an error.

        If the file cannot be read to the end of the shard, the remaining rows have that error.
        """
        file, count = self.files[shard.file], 0
        try:
            for row in self._rows(file, shard):
                count += 1
                yield row
        except DataError as error:  # the rest cannot be read
            self.close()
            for _ in range(shard.rows - count):
                yield InputRow(shard.line + count, error=error)

    def close(self) -> None:
        """Close the file that is open."""
        self._stack.close()
        self._path = ""

    def _rows(self, file: InputFile, shard: Shard) -> Iterator[InputRow]:
        if file.format == "parquet":
            return self._parquet_rows(file.path, shard)
        header = self._header(file)
        stream = self._stream_at(file.path, shard.start)
        if file.format == "csv":
            return _csv_rows(stream, file.path, shard, header)
        return _line_rows(stream, file, shard, header)

    def _stream_at(self, path: str, position: int) -> BinaryIO:
        if path != self._path:
            self.close()
            self._stream = self._stack.enter_context(open_bytes(path))
            self._path = path
        if self._stream.tell() != position:
            self._stream.seek(position)
        return self._stream

    def _header(self, file: InputFile) -> list[str]:
        """The names of the columns of a CSV or TSV file."""
        if file.format not in ("csv", "tsv"):
            return []
        if file.path not in self._headers:
            stream = self._stream_at(file.path, 0)
            self._headers[file.path], _ = read_header(stream, file)
        return self._headers[file.path]

    def _parquet_rows(self, path: str, shard: Shard) -> Iterator[InputRow]:
        import pyarrow
        from pyarrow import parquet

        number = shard.line
        try:
            if path != self._path:
                self.close()
                file = parquet.ParquetFile(path, buffer_size=PARQUET_BUFFER)
                self._table = ParquetRows(self._stack.enter_context(file))
                self._path = path
            for record in self._table.records(shard.start, shard.stop):
                if isinstance(record, Exception):
                    yield _unreadable(path, number, record)
                else:
                    yield InputRow(number, record)
                number += 1
        except (pyarrow.ArrowException, OSError) as error:
            raise DataError(path, number, f"cannot be read as Parquet: {error}.") from error


def _line_rows(
    stream: BinaryIO, file: InputFile, shard: Shard, header: Sequence[str]
) -> Iterator[InputRow]:
    """The rows of a file with one row a line."""
    position, number = shard.start, shard.line
    while position < shard.stop:
        line, length, is_long = _read_line(stream)
        if not length:
            raise DataError(file.path, number, "ends before this line, which it had before.")
        position += length
        if is_long or holds_row(line, file.format):  # as `shards` counts rows
            try:
                if length > LONGEST_LINE:
                    problem = f"the line has more than {LONGEST_LINE:,} bytes."
                    raise DataError(file.path, number, problem)
                text = _decoded(line, file.path, number)
                yield InputRow(number, _fields(text, file, number, header))
            except DataError as error:
                yield InputRow(number, error=error)
        number += 1


def _read_line(stream: BinaryIO) -> tuple[bytes, int, bool]:
    """At most `LONGEST_LINE` bytes of a line, how many it has, and whether no end is among them."""
    raw = line = stream.readline(LONGEST_LINE)
    length = len(line)
    while len(raw) == LONGEST_LINE and not raw.endswith(b"\n"):
        raw = stream.readline(LONGEST_LINE)
        length += len(raw)
    return line, length, len(line) == LONGEST_LINE and not line.endswith(b"\n")


def _decoded(line: bytes, path: str, number: int) -> str:
    """The text of a line, without its end."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        (text,) = lines_of([line], path, number - 1)  # type: ignore[arg-type]  # raises the error
    return text[:-2] if text.endswith("\r\n") else text.removesuffix("\n")


def _fields(text: str, file: InputFile, number: int, header: Sequence[str]) -> dict[str, Any]:
    if file.format == "lines":
        return {TEXT: text}
    if file.format == "tsv":
        return _record(text.split("\t"), header, file.path, number)
    record = json_value(text, file.path, number)
    if not isinstance(record, dict):
        problem = f"must be a JSON object, but is a {type(record).__name__}."
        raise DataError(file.path, number, problem)
    return record


def _record(fields: Sequence[str], header: Sequence[str], path: str, number: int) -> dict[str, str]:
    if len(fields) != len(header):
        problem = f"has {len(fields)} fields, but the header has {len(header)}."
        raise DataError(path, number, problem)
    return dict(zip(header, fields, strict=True))


def _csv_rows(
    stream: BinaryIO, path: str, shard: Shard, header: Sequence[str]
) -> Iterator[InputRow]:
    lines = CsvLines(stream, shard.stop - shard.start)
    number = shard.line
    for fields in csv_rows(lines):
        if isinstance(fields, csv.Error):
            problem = f"the row that begins here is not CSV: {fields}."
            yield InputRow(number, error=DataError(path, number, problem))
        elif fields:
            try:
                record = _record(fields, header, path, number)
                _check_utf8(record, path, number)
                yield InputRow(number, record)
            except DataError as error:
                yield InputRow(number, error=error)
        number = shard.line + lines.lines


def _check_utf8(record: dict[str, str], path: str, number: int) -> None:
    """Raises DataError where a field has lone surrogates: `CsvLines` makes them of other bytes."""
    for name, value in record.items():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise DataError(path, number, f"field {name!r} has bytes that are not UTF-8.") from None


class ParquetRows:
    """The rows of an open Parquet file, in any order; fastest forwards.

    file: a `pyarrow.parquet.ParquetFile`.
    """

    def __init__(self, file: Any):
        self.file = file
        groups = range(file.metadata.num_row_groups)
        self._ends = [*accumulate(file.metadata.row_group(index).num_rows for index in groups)]
        self._position = 0  # of the row that is decoded next
        self._batches: Iterator[RecordBatch] = iter(())
        self._batch: RecordBatch | None = None  # what is decoded and not read
        self._is_open = False  # whether `_batches` begin somewhere

    def records(self, start: int, stop: int) -> Iterator[dict[str, Any] | Exception]:
        """The rows of a range, counted from 0, by column; the error for one that cannot be read."""
        self._go_to(start)
        while self._position < stop:
            batch = self._next(stop - self._position)
            try:
                yield from batch.to_pylist()
            except (ValueError, OverflowError):  # dates beyond Python's, text that is not UTF-8
                yield from (_record_or_error(batch.slice(row, 1)) for row in range(len(batch)))

    def _go_to(self, start: int) -> None:
        group = bisect_right(self._ends, start)
        first = self._ends[group - 1] if group else 0
        if not (self._is_open and first <= self._position <= start):
            groups = [*range(group, len(self._ends))]
            self._batches = self.file.iter_batches(CHUNK_ROWS, row_groups=groups)
            self._position, self._batch, self._is_open = first, None, True
        while self._position < start:
            self._next(start - self._position)

    def _next(self, most: int) -> RecordBatch:
        """The next rows, so many at most."""
        if not self._batch:
            self._batch = next(self._batches, None)
            if self._batch is None:
                raise OSError("it ends before this row, which it had before")
        batch, self._batch = self._batch.slice(0, most), self._batch.slice(most)
        self._position += len(batch)
        return batch


def _record_or_error(row: RecordBatch) -> dict[str, Any] | Exception:
    try:
        (record,) = row.to_pylist()
    except (ValueError, OverflowError) as error:
        return error
    found: dict[str, Any] = record
    return found


def _unreadable(path: str, number: int, error: Exception) -> InputRow:
    problem = f"has a value that cannot be read: {error}."
    return InputRow(number, error=DataError(path, number, problem))


def chunks(rows: Iterator[InputRow]) -> Iterator[list[InputRow]]:
    """Lists of rows, of `CHUNK_ROWS` rows or about `CHUNK_CHARACTERS` characters at most."""
    chunk, size = list[InputRow](), 0
    for row in rows:
        chunk.append(row)
        size += row.size()
        if len(chunk) == CHUNK_ROWS or size >= CHUNK_CHARACTERS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


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
