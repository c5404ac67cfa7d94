"""Which rows each shard of the input has: ranges of bytes that end between two rows.

    files, shards = plan_shards(["a.csv.gz", "b.csv.gz"], shard_bytes=None)

Shards depend on the input and on their size alone. Bytes are those of the decompressed file; in a
Parquet file, where rows have no positions, they are estimated from the sizes of its row groups.
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, TypeAlias

from regard.data.csv_rows import csv_hint
from regard.data.files import (
    ENDINGS,
    LONGEST_LINE,
    LONGEST_TEXT,
    DamagedFile,
    check_file,
    ending,
    hash_of,
    lines_of,
    open_bytes,
    skip_byte_order_mark,
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
    start, stop: a range of bytes of the decompressed file, or of rows of a Parquet file, from 0.
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
        DataError: a file cannot be read, or its first line is no header. A damaged file raises
            nothing: it is noted.
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
        except DamagedFile as error:
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
    _check_different(names)
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


def _check_different(names: Sequence[str]) -> None:
    """Raises ConfigError where two names are those of one file."""
    known: dict[str, str] = {}
    for name in names:
        file = os.path.realpath(name)
        if file in known:
            same = "" if known[file] == name else f", also as {known[file]}"
            raise ConfigError(f"the input names {name} twice{same}.")
        known[file] = name


def _shards_between(number: int, ends: Iterable[RowEnd], min_bytes: int) -> Iterator[Shard]:
    """The shards of file `number`, from the ends of its rows; the first end is that of its header.

    The rows before the damage of a file are a shard, too.
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
    except DamagedFile:
        if rows:
            yield Shard(number, start, stop, lines_before + 1, rows)
        raise
    if rows:
        yield Shard(number, start, stop, lines_before + 1, rows)


def _row_ends(file: InputFile) -> Iterator[RowEnd]:
    """Where the header of a CSV or TSV file (else the empty beginning) and each row end."""
    with open_bytes(file.path) as stream:
        _, lines = read_header(stream, file)
        position = stream.tell()
        yield position, lines, False
        of_format = _csv_ends if file.format == "csv" else _line_ends
        yield from of_format(stream, file.format, position, lines)


def read_header(stream: BinaryIO, file: InputFile) -> tuple[list[str], int]:
    """Read a stream from its beginning to its first row: the names of the columns of CSV or TSV,
    and the number of lines. A byte order mark, and empty lines before the header, are skipped.

    Raises:
        DataError: it is no header, or the file is no text.
    """
    skip_byte_order_mark(stream, file.path)
    if file.format not in ("csv", "tsv"):
        return [], 0
    names, begun, lines = _csv_header(stream) if file.format == "csv" else _tsv_header(stream, file)
    if isinstance(names, csv.Error):
        raise DataError(file.path, begun, f"the header is not CSV: {names}.", csv_hint(names))
    duplicates = [name for name in names if names.count(name) > 1]
    if duplicates:
        problem = f"has more than one column {duplicates[0]!r}."
        raise DataError(file.path, begun, problem, "Rename one.")
    return names, lines


def check_columns(file: InputFile, columns: Sequence[str]) -> None:
    """Check that a table has these columns; the rows of JSONL may each have others.

    Raises:
        DataError: it lacks one.
    """
    names: Sequence[str] = ()
    if file.format == "parquet":
        from pyarrow import parquet

        names = parquet.read_schema(file.path).names
    elif not file.damage:
        with open_bytes(file.path) as stream:
            names, _ = read_header(stream, file)
    for column in columns if names else ():
        if not {column, column.partition(".")[0]} & {*names}:
            hint = f"It has: {', '.join(names)}."
            raise DataError(file.path, None, f"has no field {column!r}.", hint)


def _csv_header(stream: BinaryIO) -> tuple[list[str] | csv.Error, int, int]:
    """The header or the error, the line on which it begins, and the number of lines read."""
    lines, begun = CsvLines(stream), 1
    for fields in csv_rows(lines):
        if fields:
            return fields, begun, lines.lines
        begun = lines.lines + 1
    return [], 1, lines.lines


def _tsv_header(stream: BinaryIO, file: InputFile) -> tuple[list[str], int, int]:
    number = stream.seek(0)  # `lines_of` drops the byte order mark itself
    for number, line in enumerate(lines_of(stream, file.path), 1):
        if line:
            return line.split("\t"), number, number
    return [], 1, number


def holds_row(line: bytes, format: str) -> bool:
    """Whether a line is a row, by the format of its file; in a file of lines an empty one is."""
    if format == "jsonl" and not b" " < line.lstrip()[:1] < b"\x7f":
        return bool(line.decode("utf-8", "replace").strip())
    return format in ("jsonl", "lines") or line not in (b"\n", b"\r\n")


def _line_ends(stream: BinaryIO, format: str, position: int, lines: int) -> Iterator[RowEnd]:
    """Where each line ends after the position; so many lines are before it."""
    unfinished = False
    for raw in iter(partial(stream.readline, LONGEST_LINE), b""):
        position += len(raw)
        is_row = unfinished or holds_row(raw, format)
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


def _csv_ends(stream: BinaryIO, format: str, position: int, lines_before: int) -> Iterator[RowEnd]:
    """Where each row ends after the position, also a row that is not valid CSV."""
    lines = CsvLines(stream)
    for fields in csv_rows(lines):
        is_row = isinstance(fields, csv.Error) or bool(fields)
        yield position + lines.bytes, lines_before + lines.lines, is_row


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
    """The shards of a Parquet file: rows with at least `min_bytes` bytes together."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtra("pyarrow", "data", "Reading Parquet") from error
    try:
        metadata = parquet.read_metadata(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(path, None, f"cannot be read as Parquet: {error}.") from error
    start, stop, size = 0, 0, 0.0
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        left, row_bytes = group.num_rows, group.total_byte_size / max(1, group.num_rows)
        while left:
            missing = math.ceil((min_bytes - size) / row_bytes) if row_bytes else left
            count = min(left, max(1, missing), start + MAX_ROWS - stop)
            left, stop, size = left - count, stop + count, size + count * row_bytes
            if size >= min_bytes or stop == start + MAX_ROWS:
                yield Shard(number, start, stop, start + 1, stop - start)
                start, size = stop, 0.0
    if stop > start:
        yield Shard(number, start, stop, start + 1, stop - start)
