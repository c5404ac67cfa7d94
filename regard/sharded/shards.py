"""Which rows each shard of the input has: ranges of bytes that end between two rows.

    files, shards = plan(["a.csv.gz", "b.csv.gz"], shard_bytes=None)

Shards depend on the input and on their size alone. A file that is compressed is divided by its
decompressed bytes, a Parquet file by its row groups.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, TypeAlias

from regard.data.files import (
    ENDINGS,
    LONGEST_LINE,
    LONGEST_TEXT,
    check_file,
    ending,
    hash_of,
    open_bytes,
    split_member,
)
from regard.errors import ConfigError, DataError, MissingExtra

SMALLEST, LARGEST = 1 << 17, 1 << 21  # bytes of a shard, where they are not given
SHARDS = 1000  # about so many, between these sizes
MOST_ROWS = 1 << 14  # of a shard: their vectors are in memory together


@dataclass(frozen=True)
class InputFile:
    """A file of the input.

    format: one of `ENDINGS`' values, or "lines".
    damage: why its end cannot be read; "" where it can.
    """

    path: str
    format: str
    bytes: int
    sha256: str
    damage: str = ""


@dataclass(frozen=True)
class Shard:
    """Rows of a file that are computed together.

    file: its number, from 0.
    start, stop: in bytes of the decompressed file; of a Parquet file its row groups.
    line: on which it begins, from 1; of a Parquet file the number of its first row.
    """

    file: int
    start: int
    stop: int
    line: int
    rows: int


RowEnd: TypeAlias = tuple[int, int, bool]  # bytes and lines read so far; whether it was a row


def plan(
    paths: Sequence[str | Path], shard_bytes: int | None
) -> tuple[list[InputFile], list[Shard]]:
    """The files with their checksums, and their shards.

    shard_bytes: the least bytes of a shard, unless it has `MOST_ROWS` rows or the file ends; None:
        what makes about a thousand shards.

    Raises:
        ConfigError: the files have different formats, or one is named twice.
        DataError: a file cannot be read.
    """
    files = inputs(paths)
    least = shard_bytes or min(max(sum(one.bytes for one in files) // SHARDS, SMALLEST), LARGEST)
    shards: list[Shard] = []
    for number, file in enumerate(files):
        if file.format == "parquet":
            shards += _parquet_shards(number, file.path, least)
            continue
        try:
            for shard in _merged(number, _ends(file), least):
                shards.append(shard)  # those before an error, too
        except DataError as error:
            files[number] = replace(file, damage=error.problem)
    return files, shards


def inputs(paths: Sequence[str | Path]) -> list[InputFile]:
    """The files of the input, with their checksums.

    Raises:
        ConfigError: the files have different formats, or one is named twice.
        DataError: a file cannot be read.
    """
    names = [str(path) for path in paths]
    if not names:
        raise ConfigError("there is no input. Name at least one file.")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"the input names {twice} twice.")
    formats = {name: ENDINGS.get(ending(name), "lines") for name in names}
    if other := next((name for name in names if formats[name] != formats[names[0]]), None):
        raise ConfigError(
            f"the files of the input must have one format, but {names[0]} is read as "
            f"{formats[names[0]]} and {other} as {formats[other]}."
        )
    for name in names:
        check_file(split_member(name)[0])
    return [
        InputFile(name, formats[name], split_member(name)[0].stat().st_size, hash_of(name))
        for name in names
    ]


def _merged(number: int, ends: Iterable[RowEnd], least: int) -> Iterator[Shard]:
    """Shards of rows, from the bytes and lines after each row; the first pair is where rows begin.

    What was read before an error is a shard, too.
    """
    ends = iter(ends)
    (start, lines, _), rows = next(ends), 0
    begun, stop = lines, start
    try:
        for stop, lines, is_row in ends:
            rows += is_row
            if stop - start >= least or rows == MOST_ROWS:
                yield Shard(number, start, stop, begun + 1, rows)
                start, begun, rows = stop, lines, 0
    except DataError:
        if rows:
            yield Shard(number, start, stop, begun + 1, rows)
        raise
    if rows:
        yield Shard(number, start, stop, begun + 1, rows)


def _ends(file: InputFile) -> Iterator[RowEnd]:
    with open_bytes(file.path) as stream:
        yield from _table_ends(stream) if file.format == "csv" else _line_ends(stream, file.format)


def _line_ends(stream: BinaryIO, format: str) -> Iterator[RowEnd]:
    """Where each line ends. The header of a TSV file is before the first row."""
    position, lines, unfinished = 0, 0, False
    if format == "tsv":
        position, lines = len(stream.readline()), 1
    yield position, lines, False
    for raw in iter(partial(stream.readline, LONGEST_LINE), b""):
        position += len(raw)
        is_row = unfinished or format == "lines" or bool(raw.strip())
        unfinished = len(raw) == LONGEST_LINE and not raw.endswith(b"\n")
        if not unfinished:
            lines += 1
            yield position, lines, is_row
    if unfinished:
        yield position, lines + 1, True


class CsvLines:
    """The lines of a table as the csv module reads them; how many bytes, lines and quotes it has
    read.

    Bytes that are not UTF-8 become lone surrogates.
    """

    def __init__(self, stream: BinaryIO, stop: int | None = None):
        self.stream, self.stop = stream, stop
        self.bytes = self.lines = self.quotes = 0

    def __iter__(self) -> CsvLines:
        return self

    def __next__(self) -> str:
        raw = b""
        if self.stop is None or self.bytes < self.stop:
            raw = self.stream.readline(LONGEST_TEXT)
        if not raw:
            raise StopIteration
        self.bytes += len(raw)
        self.lines += 1
        self.quotes += raw.count(b'"')
        return raw.decode("utf-8", "surrogateescape")


def _table_ends(stream: BinaryIO) -> Iterator[RowEnd]:
    """Where each row of a CSV file ends after its header, also a row that is not CSV."""
    lines = CsvLines(stream)
    table = csv_rows(lines)
    next(table, None)
    yield lines.bytes, lines.lines, False
    for fields in table:
        yield lines.bytes, lines.lines, isinstance(fields, csv.Error) or bool(fields)


def csv_rows(lines: CsvLines) -> Iterator[list[str] | csv.Error]:
    """The rows of a table; of one that is not CSV the error, and reading goes on after its line.

    After a field that is too long, it goes on where the quotes of the row are closed: lines inside
    them are no rows.
    """
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_LINE))
    table = csv.reader(lines, strict=True)
    while True:
        before = lines.quotes
        try:
            yield next(table)
        except csv.Error as error:
            if "field larger than" in str(error):
                while (lines.quotes - before) % 2 and next(lines, ""):
                    pass
            yield error
        except StopIteration:
            return


def _parquet_shards(number: int, path: str, least: int) -> Iterator[Shard]:
    """Shards of whole row groups, of at least so many bytes."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtra("pyarrow", "data", "Reading Parquet") from error
    try:
        facts = parquet.read_metadata(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(path, None, f"cannot be read as Parquet: {error}.") from error
    start = size = rows = done = 0
    for group in range(facts.num_row_groups):
        one = facts.row_group(group)
        size, rows = size + one.total_byte_size, rows + one.num_rows
        if size >= least or rows >= MOST_ROWS or group == facts.num_row_groups - 1:
            if rows:
                yield Shard(number, start, group + 1, done + 1, rows)
            start, size, done, rows = group + 1, 0, done + rows, 0
