"""Which rows each shard of the input has: ranges of bytes that end between two rows.

    files, shards = plan_shards(["a.csv.gz", "b.csv.gz"], shard_bytes=None)

Shards depend on the input and on their size alone. Bytes are those of the decompressed file. A
Parquet file is divided between its row groups.
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

MIN_BYTES, MAX_BYTES = 1 << 17, 1 << 21  # of a shard, where its size is not given
TARGET_SHARDS = 1000  # the number of shards, if their size is then within these limits
MAX_ROWS = 1 << 14  # of a shard: their vectors are in memory together


@dataclass(frozen=True)
class InputFile:
    """A file of the input.

    format: one of `ENDINGS`' values, or "lines".
    damage: why only its beginning can be read; "" where all can.
    """

    path: str
    format: str
    bytes: int
    sha256: str
    damage: str = ""


@dataclass(frozen=True)
class Shard:
    """Consecutive rows of a file, whose results are one part.

    file: the index of the file, from 0.
    start, stop: a range of bytes of the decompressed file, or of row groups of a Parquet file.
    line: the line on which its first row begins, from 1; in a Parquet file the number of that row.
    """

    file: int
    start: int
    stop: int
    line: int
    rows: int


# The bytes and lines read so far, and whether what was read last is a row (not an empty line).
RowEnd: TypeAlias = tuple[int, int, bool]


def plan_shards(
    paths: Sequence[str | Path], shard_bytes: int | None
) -> tuple[list[InputFile], list[Shard]]:
    """The files with their checksums, and their shards.

    shard_bytes: the least bytes of a shard, unless it has `MAX_ROWS` rows or the file ends; None:
        so many that there are about a thousand shards.

    Raises:
        ConfigError: the files have different formats, or one is named twice.
        DataError: a file cannot be read.
    """
    files = input_files(paths)
    min_bytes = shard_bytes or min(
        max(sum(one.bytes for one in files) // TARGET_SHARDS, MIN_BYTES), MAX_BYTES
    )
    shards: list[Shard] = []
    for number, file in enumerate(files):
        if file.format == "parquet":
            shards += _parquet_shards(number, file.path, min_bytes)
            continue
        try:
            for shard in _shards_between(number, _row_ends(file), min_bytes):
                shards.append(shard)  # one at a time: those before an error are kept
        except DataError as error:
            files[number] = replace(file, damage=error.problem)
    return files, shards


def input_files(paths: Sequence[str | Path]) -> list[InputFile]:
    """The files of the input, with their checksums.

    Raises:
        ConfigError: the files have different formats, or one is named twice.
        DataError: a file cannot be read.
    """
    names = [str(path) for path in paths]
    if not names:
        raise ConfigError("there is no input. Name at least one file.")
    if duplicate := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"the input names {duplicate} twice.")
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


def _shards_between(number: int, ends: Iterable[RowEnd], min_bytes: int) -> Iterator[Shard]:
    """The shards of file `number`, from the ends of its rows; the first end is that of its header.

    The rows before an error are a shard, too.
    """
    ends = iter(ends)
    (start, lines, _), rows = next(ends), 0
    lines_before, stop = lines, start
    try:
        for stop, lines, is_row in ends:
            rows += is_row
            if stop - start >= min_bytes or rows == MAX_ROWS:
                yield Shard(number, start, stop, lines_before + 1, rows)
                start, lines_before, rows = stop, lines, 0
    except DataError:
        if rows:
            yield Shard(number, start, stop, lines_before + 1, rows)
        raise
    if rows:
        yield Shard(number, start, stop, lines_before + 1, rows)


def _row_ends(file: InputFile) -> Iterator[RowEnd]:
    with open_bytes(file.path) as stream:
        yield from _csv_ends(stream) if file.format == "csv" else _line_ends(stream, file.format)


def _line_ends(stream: BinaryIO, format: str) -> Iterator[RowEnd]:
    """Where the header of a TSV file (else the empty beginning) and each line end."""
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
    """The lines of a CSV file for the `csv` module; counts the bytes, lines and quotes read so far.

    Bytes that are not UTF-8 become lone surrogates.

    stop: bytes after which no further line is read.
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


def _csv_ends(stream: BinaryIO) -> Iterator[RowEnd]:
    """Where the header and each row of a CSV file end, also a row that is not valid CSV."""
    lines = CsvLines(stream)
    rows = csv_rows(lines)
    next(rows, None)
    yield lines.bytes, lines.lines, False
    for fields in rows:
        yield lines.bytes, lines.lines, isinstance(fields, csv.Error) or bool(fields)


def csv_rows(lines: CsvLines) -> Iterator[list[str] | csv.Error]:
    """The rows of a CSV file; instead of a row that is not valid CSV the error.

    Reading continues after the line with the error; after a field that is too long, where the
    quotes of the row are closed, since lines inside them are no rows.
    """
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_LINE))
    reader = csv.reader(lines, strict=True)
    while True:
        quotes_before = lines.quotes
        try:
            yield next(reader)
        except csv.Error as error:
            if "field larger than" in str(error):
                while (lines.quotes - quotes_before) % 2 and next(lines, ""):
                    pass
            yield error
        except StopIteration:
            return


def _parquet_shards(number: int, path: str, min_bytes: int) -> Iterator[Shard]:
    """The shards of a Parquet file: whole row groups with at least `min_bytes` bytes together."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtra("pyarrow", "data", "Reading Parquet") from error
    try:
        metadata = parquet.read_metadata(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(path, None, f"cannot be read as Parquet: {error}.") from error
    start = size = rows = rows_before = 0
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        size, rows = size + group.total_byte_size, rows + group.num_rows
        if size >= min_bytes or rows >= MAX_ROWS or index == metadata.num_row_groups - 1:
            if rows:
                yield Shard(number, start, index + 1, rows_before + 1, rows)
            start, size, rows_before, rows = index + 1, 0, rows_before + rows, 0
