"""Readers: rows of text from files of every common kind, or from anything one can loop over.

All readers are alike: looping over one gives rows, tuples of strings, one string for each field
that was asked for; it can be looped over again; nothing but the current row is held in memory.

    read("train.txt")                                     lines: rows of one field
    read_parallel("train.de", "train.en.gz")              line i belongs to line i
    read("fra-eng.zip!fra.txt", (0, 1), format="tsv")     columns by number, from 0
    read("pairs.csv", ("german", "english"))              columns by name, from the header
    read("wmt.jsonl", ("translation.de", "translation.en"))
    read(dataset, ("translation.de", "translation.en"))   a `datasets` object, a list, a generator
    open_table("pairs.csv").records()                     rows as mappings from column to value
"""

from __future__ import annotations

import csv
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import chain, compress, islice
from os import PathLike
from pathlib import Path
from typing import Any, cast

import numpy as np

from regard.data.files import (
    ENDINGS,
    LONGEST_LINE,
    LONGEST_TEXT,
    check_file,
    ending,
    lines,
    open_bytes,
    whole_lines_of,
)
from regard.data.in_memory import list_as_json, plain, rows, source_name
from regard.errors import ConfigError, DataError, MissingExtra
from regard.schema import decode_json

Field = str | int
Row = tuple[str, ...]
Location = tuple[str | Path, int | None]  # what an error names: a file or a part of it, and a line
Record = dict[str, Any]  # the values of a row by column
TABLES = ("tsv", "csv", "jsonl", "parquet")
FORMATS = ("lines", "text", *TABLES)


class RowReader(ABC):
    """Rows of text that can be looped over as often as needed."""

    @abstractmethod
    def numbered(self) -> Iterator[tuple[int, Row]]:
        """Rows with the number, from 1, of the line on which each begins.

        Raises:
            DataError: the file cannot be read, has no rows, or a row is not as the reader expects.
        """

    @abstractmethod
    def file_of(self, field: int) -> str:
        """The name of the file that field number `field` of a row comes from."""

    @property
    def may_have_header(self) -> bool:
        """Whether the first row may hold the names of columns, since nothing says that it does, or
        that it does not.
        """
        return False

    def __iter__(self) -> Iterator[Row]:
        return (row for _, row in self.numbered())

    def texts(self) -> Iterator[str]:
        """All fields of all rows one after the other, for example to train a tokenizer."""
        return chain.from_iterable(self)

    def only(self, chosen: np.ndarray) -> RowReader:
        """The rows, counted from 0, where `chosen` (N,) is true."""
        return PartOfRows(self, lambda numbered: compress(numbered, chosen))

    def first(self, count: int) -> RowReader:
        """The first `count` rows; what follows them is not read."""
        return PartOfRows(self, lambda numbered: islice(numbered, count))


@dataclass(frozen=True, eq=False)
class PartOfRows(RowReader):
    """Those rows of a reader that `select` takes from all of them."""

    reader: RowReader
    select: Callable[[Iterator[tuple[int, Row]]], Iterator[tuple[int, Row]]]

    def file_of(self, field: int) -> str:
        return self.reader.file_of(field)

    def numbered(self) -> Iterator[tuple[int, Row]]:
        return self.select(self.reader.numbered())


@dataclass(frozen=True)
class LineReader(RowReader):
    """Plain text, one row a line of at most `longest` bytes."""

    path: str | Path
    longest: int = LONGEST_LINE

    def file_of(self, field: int) -> str:
        return str(self.path)

    def numbered(self) -> Iterator[tuple[int, Row]]:
        number = 0
        for number, line in enumerate(lines(self.path, self.longest), 1):
            yield number, (line,)
        if not number:
            raise _no_rows(self.path)


class VerbatimReader(LineReader):
    """Plain text with its line breaks: the rows, joined, are the file (less a byte order mark).

    A row begins at a line break after a line that is not blank. Tokenizers begin a token there,
    too, so that the rows have the same tokens as the whole text.
    """

    def numbered(self) -> Iterator[tuple[int, Row]]:
        number = 0
        with open_bytes(self.path) as stream:
            whole_lines = whole_lines_of(stream, self.path, longest=LONGEST_TEXT)
            for number, row in _at_line_breaks(whole_lines):
                yield number, row
        if not number:
            raise _no_rows(self.path)


def _at_line_breaks(text_lines: Iterable[str]) -> Iterator[tuple[int, Row]]:
    """The rows of `VerbatimReader` from lines with their ends."""
    begun, held = 1, ""
    for number, line in enumerate(text_lines, 1):
        text = line.rstrip("\r\n")
        if not text or text[-1].isspace():
            held += line
            continue
        yield begun, (held + text,)
        begun, held = number, line[len(text) :]
    if held:
        yield begun, (held,)


def _no_rows(path: str | Path) -> DataError:
    return DataError(path, None, "is empty: it has not one row.")


@dataclass(frozen=True)
class ParallelReader(RowReader):
    """Several files of lines where line i of each belongs together. Unequal length is an error."""

    paths: tuple[str | Path, ...]

    def file_of(self, field: int) -> str:
        return str(self.paths[field])

    def numbered(self) -> Iterator[tuple[int, Row]]:
        streams = [LineReader(path).numbered() for path in self.paths]
        number = 0
        while True:
            heads = [next(stream, None) for stream in streams]
            if None in heads:
                break
            number += 1
            yield number, tuple(head[1][0] for head in heads if head)
        counts = [
            number + (head is not None) + sum(1 for _ in stream)
            for head, stream in zip(heads, streams, strict=True)
        ]
        if len(set(counts)) > 1:
            sizes = zip(self.paths, counts, strict=True)
            listed = " and ".join(f"{path} has {count:,} lines" for path, count in sizes)
            hint = "Line i of one must translate line i of the other; compare their ends."
            raise DataError(
                self.paths[0], None, f"parallel files differ in length: {listed}.", hint
            )


# ------------------------------------------------------------------------------------- tables


@dataclass(frozen=True)
class TableFile:
    """A file whose rows have fields by name.

    format: one of `TABLES`
    header: whether the first line of CSV and TSV holds the names; without, they are "0", "1", ...
    delimiter: the character between the fields of CSV
    """

    path: str | Path
    format: str
    header: bool = True
    delimiter: str = ","

    def records(self, fields: Sequence[Field] = ()) -> Iterator[tuple[int, Record]]:
        """The rows by column, each with the number, from 1, of the line it begins on.

        fields: the columns that are needed, whose names must be unique; (): all.

        Raises:
            DataError: the file cannot be read or has no rows, or a row has another number of fields
                than the first.
        """
        number = 0
        if self.format == "parquet":
            records = _parquet_records(self.path, fields)
        elif self.format == "jsonl":
            records = _json_records(self.path)
        else:
            records = self._named(fields)
        for number, record in records:
            yield number, record
        if not number:
            raise _no_rows(self.path)

    def _named(self, columns: Sequence[Field]) -> Iterator[tuple[int, Record]]:
        """The rows of CSV and TSV, by the names in the header or by number."""
        table: Iterator[tuple[int, list[str]]]
        if self.format == "tsv":  # quotes are characters like others
            table = ((i, line.split("\t")) for i, line in enumerate(lines(self.path), 1) if line)
        else:
            table = csv_rows(self.path, self.delimiter)
        if (first := next(table, None)) is None:
            return
        names = list(map(str, range(len(first[1]))))
        if self.header:
            names = first[1]
            check_unique(self.path, [name for name in names if not columns or name in columns])
        for number, fields in table if self.header else chain([first], table):
            if len(fields) != len(names):
                problem = f"has {len(fields)} fields, but line {first[0]} has {len(names)}."
                hint = f"The first has: {', '.join(first[1])}." if self.header else ""
                raise DataError(self.path, number, problem, hint)
            yield number, dict(zip(names, fields, strict=True))


@dataclass(frozen=True)
class TableRows(RowReader):
    """These fields of a table as text; `lists` may hold lists, which become JSON text."""

    table: TableFile
    fields: tuple[Field, ...]
    lists: tuple[Field, ...] = ()
    may_have_header: bool = False  # type: ignore[override]

    def file_of(self, field: int) -> str:
        return str(self.table.path)

    def numbered(self) -> Iterator[tuple[int, Row]]:
        fields = self.fields
        if not self.table.header:
            fields = tuple(map(str, fields))
        elif self.table.format in ("csv", "tsv") and any(isinstance(f, int) for f in fields):
            names = list(next(self.table.records())[1])
            fields = tuple(names[f] if isinstance(f, int) and f < len(names) else f for f in fields)
        for number, record in self.table.records(fields):
            location = self.table.path, number
            yield number, texts_of(record, fields, location, lists=self.lists)


def csv_rows(path: str | Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """The rows of a CSV file that are not blank, each with the number of the line it begins on.

    A quoted field may contain line breaks; a doubled quote in it stands for one.

    Raises:
        DataError: a row is not CSV or too long.
    """
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_LINE))
    begun = 1
    with open_bytes(path) as stream:
        table = csv.reader(whole_lines_of(stream, path), delimiter=delimiter, strict=True)
        try:
            for fields in table:
                if fields:  # none: a blank line
                    yield begun, fields
                begun = table.line_num + 1
        except csv.Error as error:
            problem = f"the row that begins here is not CSV: {error}."
            hint = 'Is a quote (") never closed, or not doubled inside? Is another sign than '
            raise DataError(
                path, begun, problem, f"{hint}{delimiter!r} the `delimiter`?"
            ) from error


def _json_records(path: str | Path) -> Iterator[tuple[int, Record]]:
    """The objects of a file of JSON lines; blank lines are skipped."""
    for number, line in enumerate(lines(path), 1):
        if not line.strip():
            continue
        record = json_value(line, path, number)
        if not isinstance(record, dict):
            problem = f"must be a JSON object, but is a {type(record).__name__}."
            raise DataError(path, number, problem, 'Write {"name": "value", …} on each line.')
        yield number, record


def _parquet_records(path: str | Path, fields: Sequence[Field]) -> Iterator[tuple[int, Record]]:
    """The rows of a Parquet file, read in batches; of the columns those that hold `fields`."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra("pyarrow", "data", "Reading Parquet") from error
    check_file(Path(path))
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            present = file.schema_arrow.names
            check_unique(path, present)
            columns = {f if f in present else str(f).split(".")[0] for f in fields}
            for name in sorted(columns - set(present)):
                raise _unknown((path, None), name, present)
            batches = file.iter_batches(batch_size=1024, columns=sorted(columns) or None)
            yield from enumerate(chain.from_iterable(b.to_pylist() for b in batches), 1)
    except (pyarrow.ArrowException, ValueError, OverflowError, OSError) as error:
        raise DataError(path, None, f"cannot be read as Parquet: {error}.") from error


# ------------------------------------------------------------------------------------- memory


class ItemReader(RowReader):
    """Rows from anything one can loop over: strings, tuples or lists, or mappings by name.

    An iterator gives its items once; a second pass over it raises an error.

    fields: which fields of each item, by name or number; none: all fields of a tuple or list
    lists: the fields whose values may be lists, which become JSON text
    """

    def __init__(
        self, items: Iterable[Any], fields: Sequence[Field] = (), lists: Sequence[Field] = ()
    ):
        self.items, self.fields, self.lists = items, tuple(fields), tuple(lists)
        self._spent = False

    def file_of(self, field: int) -> str:
        return source_name(self.items)

    def numbered(self) -> Iterator[tuple[int, Row]]:
        return ((i, self._row((self.file_of(0), i), item)) for i, item in self.whole())

    def whole(self) -> Iterator[tuple[int, Any]]:
        """The items as they were given, with their numbers from 1."""
        once = rows(self.items)
        if self._spent:
            problem = "can be read only once, and has been read."
            hint = "Give a list, or an object whose `__iter__` starts again."
            raise DataError(self.file_of(0), None, problem, hint)
        self._spent = once is self.items
        return enumerate(once, 1)

    def _row(self, location: Location, item: object) -> Row:
        if isinstance(item, str) and not self.fields:
            return (text_of(0, item, location),)
        if isinstance(item, Mapping):
            return texts_of(item, self.fields, location, self.lists)
        if isinstance(item, Sequence) and not isinstance(item, bytes | str):
            fields = self.fields or tuple(range(len(item)))
            return texts_of(dict(enumerate(item)), fields, location, self.lists)
        problem = f"must be a tuple or a mapping, but is a {type(item).__name__}."
        raise DataError(*location, problem)


class VerbatimLines(ItemReader):
    """The text of lines in memory, as `VerbatimReader` reads it from a file of these lines."""

    def numbered(self) -> Iterator[tuple[int, Row]]:
        lines = (row[0] for _, row in super().numbered())
        return _at_line_breaks(line if line.endswith("\n") else f"{line}\n" for line in lines)


# ------------------------------------------------------------------------------------- reading


def read(
    data: str | PathLike[str] | Iterable[Any],
    fields: Sequence[Field] = (),
    *,
    format: str | None = None,
    header: bool | None = None,
    delimiter: str | None = None,
    lists: Sequence[Field] = (),
) -> RowReader:
    """The rows of one file, or of anything one can loop over.

    data: also a `TableFile`
    fields: the columns wanted, by name or by number from 0
    format: one of FORMATS; None: what the file's ending says (also before .gz, .bz2, .xz),
        and lines for any other ending
    header: whether a table's first line holds names; None: if a field is given by name
    delimiter: the character between the fields of CSV, a comma without it
    lists: those of `fields` whose values may be lists, which become JSON text

    Raises:
        ConfigError: the format is unknown, or is not CSV and has a delimiter.
        DataError: columns or a header of plain text are asked for.
    """
    by_name = any(isinstance(field, str) for field in fields)
    if isinstance(data, TableFile):
        return TableRows(replace(data, header=by_name), tuple(fields), tuple(lists))
    if not isinstance(data, str | PathLike):
        return ItemReader(data, fields, lists)
    path, kind = str(data), _format_of(str(data), format, delimiter)
    if kind not in TABLES:
        if fields or header:
            problem = "is read as plain text, which has no columns and no header."
            raise DataError(path, None, problem, "If it is a table: format = 'tsv' or 'csv'.")
        return VerbatimReader(path) if kind == "text" else LineReader(path)
    table = TableFile(path, kind, by_name if header is None else header, delimiter or ",")
    undecided = header is None and not by_name and kind in ("csv", "tsv")
    return TableRows(table, tuple(fields), tuple(lists), undecided)


def open_table(
    path: str | PathLike[str],
    *,
    header: bool = True,
    format: str | None = None,
    delimiter: str | None = None,
) -> TableFile:
    """A file whose rows have fields by name: CSV, TSV, JSONL or Parquet.

    header: whether the first line of CSV and TSV holds the names; without, they are "0", "1", ...
    format, delimiter: as of `read`.

    Raises:
        DataError: its ending is another.
        ConfigError: as `read`.
    """
    kind = _format_of(str(path), format, delimiter)
    if kind in TABLES:
        return TableFile(str(path), kind, header, delimiter or ",")
    problem = f"must end in one of {', '.join(ENDINGS)}, which say how it is read."
    raise DataError(str(path), None, problem)


def _format_of(path: str, format: str | None, delimiter: str | None) -> str:
    chosen = format or ("csv" if delimiter else ENDINGS.get(ending(path), "lines"))
    if chosen not in FORMATS:
        formats = ", ".join(FORMATS)
        raise ConfigError(f"`format` must be one of {formats}, but is {chosen!r}.")
    if delimiter and (chosen != "csv" or len(delimiter) != 1 or delimiter in '"\r\n'):
        raise ConfigError(f"`delimiter` must be a character of CSV files, but is {delimiter!r}.")
    return chosen


def read_parallel(*paths: str | PathLike[str]) -> ParallelReader:
    """Rows of as many fields as there are files of lines: line i of each."""
    return ParallelReader(tuple(str(path) for path in paths))


# ------------------------------------------------------------------------------------- values


def json_value(text: str, path: str | Path, line: int | None = None) -> Any:
    """The value of a JSON text: of one line of a file, or of a whole file (`line` is None).

    Raises:
        DataError: it is not JSON, names a key twice, or has numbers that are not finite or larger
            than 64 bits.
    """

    def wrong(message: str) -> DataError:
        return DataError(path, line, message.removeprefix("JSON: "))

    try:
        # `text_of` names fields with half a surrogate pair.
        return decode_json(text, "JSON", wrong, surrogates=True)
    except json.JSONDecodeError as error:
        problem = f"is not JSON: {error.msg} at character {error.colno}."
        hint = "A JSONL file holds one whole object on each line." if line else ""
        raise DataError(path, line or error.lineno, problem, hint) from None


def texts_of(
    record: Mapping[Any, Any],
    fields: Sequence[Field],
    location: Location,
    lists: Sequence[Field] = (),
) -> Row:
    """The strings of these fields: `a.b` is `record["a"]["b"]`, the number 3 becomes "3".

    lists: the fields whose values may be lists.

    Raises:
        DataError: a field is missing or no text, or `fields` is empty.
    """
    if not fields:
        problem = f"has the fields {', '.join(map(str, record))}, and no column was chosen."
        hint = "Name them with `columns`, in the order that the task reads them."
        raise DataError(*location, problem, hint)
    values = tuple(map(record.get, fields))
    if all(type(value) is str and value.isascii() for value in values):  # the usual case, quickly
        return cast(Row, values)
    values = tuple(field_value(record, name, location) for name in fields)
    return tuple(
        text_of(name, list_as_json(value) if name in lists else value, location)
        for name, value in zip(fields, values, strict=True)
    )


def field_value(record: Mapping[Any, Any], name: Field, location: Location) -> Any:
    """The value of a field: `a.b` is `record["a"]["b"]`.

    Raises:
        DataError: it is missing; the message names those that are there.
    """
    value: Any = record
    whole = name in record or not isinstance(name, str)
    for part in [name] if whole else str(name).split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise _unknown(location, name, value if isinstance(value, Mapping) else ())
        value = value[part]
    return value


def text_of(name: Field, value: object, location: Location) -> str:
    """The value of field `name` as text that can be written as UTF-8; a number as its digits.

    Raises:
        DataError: it is something else, or has half of a surrogate pair.
    """
    value = value if isinstance(value, str) else plain(value)
    if isinstance(value, int | float):
        return str(value)
    if not isinstance(value, str):
        kind = "missing (null)" if value is None else f"a {type(value).__name__}"
        raise DataError(*location, f"field {name!r} must be text, but is {kind}.")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        problem = f"field {name!r} holds half of a surrogate pair at character {error.start + 1}."
        raise DataError(*location, problem, "Repair the program that wrote it.") from error
    return value


def check_unique(path: str | Path, names: Sequence[str]) -> None:
    """Raise a DataError where a name of a column occurs twice."""
    for name in {*names}:
        if names.count(name) > 1:
            raise DataError(path, None, f"has more than one column {name!r}.", "Rename one.")


def _unknown(location: Location, name: Field, present: Iterable[Field]) -> DataError:
    listed = [str(field) for field in present]
    close = get_close_matches(str(name), listed, n=1, cutoff=0.5)
    hint = f"It has: {', '.join(listed) or 'none'}."
    hint += f" Did you mean {close[0]!r}?" if close else ""
    return DataError(*location, f"has no field {name!r}.", hint)
