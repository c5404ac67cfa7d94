"""Readers: rows of text from files of every common kind, or from anything one can loop over.

All readers are alike: looping over one gives rows, tuples of strings, one string for each field
that was asked for; it can be looped over again; nothing but the current row is held in memory.

    read("train.txt")                                     lines: rows of one field
    read_parallel("train.de", "train.en.gz")              line i belongs to line i
    read("fra-eng.zip!fra.txt", (0, 1), format="tsv")     columns by number, from 0
    read("pairs.csv", ("german", "english"))              columns by name, from the header
    read("wmt.jsonl", ("translation.de", "translation.en"))
    read(dataset, ("translation.de", "translation.en"))   a `datasets` object, a list, a generator
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import fields as dataclass_fields
from difflib import get_close_matches
from itertools import chain, compress, islice
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from regard.data.csv_rows import csv_rows
from regard.data.files import (
    ENDINGS,
    LONGEST_TEXT,
    check_file,
    ending,
    lines,
    open_bytes,
    whole_lines_of,
)
from regard.data.in_memory import list_as_json, plain_scalar, rows, source_name
from regard.errors import ConfigError, DataError, MissingExtra
from regard.schema import json_line

if TYPE_CHECKING:
    from pyarrow import RecordBatch

Field = str | int
Row = tuple[str, ...]
Location = tuple[str | Path, int | None]  # what an error names: a file or a part of it, and a line


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
        return SelectedRows(self, chosen)

    def first(self, count: int) -> RowReader:
        """The first `count` rows; what follows them is not read."""
        return FirstRows(self, count)


@dataclass(frozen=True, eq=False)
class SelectedRows(RowReader):
    """Some rows of a reader."""

    reader: RowReader
    chosen: np.ndarray

    def file_of(self, field: int) -> str:
        return self.reader.file_of(field)

    def numbered(self) -> Iterator[tuple[int, Row]]:
        return compress(self.reader.numbered(), self.chosen)


@dataclass(frozen=True, eq=False)
class FirstRows(RowReader):
    """So many rows of a reader, from the first one on."""

    reader: RowReader
    count: int

    def file_of(self, field: int) -> str:
        return self.reader.file_of(field)

    def numbered(self) -> Iterator[tuple[int, Row]]:
        return islice(self.reader.numbered(), self.count)


@dataclass(frozen=True)
class _FileReader(RowReader):
    path: str | Path
    unit: ClassVar[str] = "row"

    def file_of(self, field: int) -> str:
        return str(self.path)

    def numbered(self) -> Iterator[tuple[int, Row]]:
        empty = True
        for numbered_row in self._rows():
            empty = False
            yield numbered_row
        if empty:
            raise DataError(self.path, None, f"is empty: it has not one {self.unit}.")

    @abstractmethod
    def _rows(self) -> Iterator[tuple[int, Row]]:
        """The rows of the file, none if it is empty."""


@dataclass(frozen=True)
class LineReader(_FileReader):
    """Plain text, one row a line."""

    unit = "line"

    def _rows(self) -> Iterator[tuple[int, Row]]:
        return ((i, (line,)) for i, line in enumerate(lines(self.path), 1))


@dataclass(frozen=True)
class VerbatimReader(_FileReader):
    """Plain text with its line breaks: the rows, joined, are the file (less a byte order mark).

    A row begins at a line break after a line that is not blank. Tokenizers begin a token there,
    too, so that the rows have the same tokens as the whole text.
    """

    unit = "line"

    def _rows(self) -> Iterator[tuple[int, Row]]:
        with open_bytes(self.path) as stream:
            yield from _at_line_breaks(whole_lines_of(stream, self.path, most=LONGEST_TEXT))


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
            listed = zip(self.paths, counts, strict=True)
            said = " and ".join(f"{path} has {count:,} lines" for path, count in listed)
            hint = "Line i of one must translate line i of the other; compare their ends."
            raise DataError(self.paths[0], None, f"parallel files differ in length: {said}.", hint)


class RecordFile(_FileReader):
    """A file whose rows have fields by name."""

    @abstractmethod
    def selecting(self, fields: Sequence[Field], lists: Sequence[Field]) -> RecordFile:
        """A reader of these fields of the same file; `lists` may hold lists."""

    @abstractmethod
    def records(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """All fields of each row by name, with the number, from 1, of the line it begins on."""


@dataclass(frozen=True)
class _TableReader(RecordFile):
    """A table, of which `columns` are read, by name or by number from 0.

    Every row has as many fields as the first one, or it is an error.

    header: whether the first line names the columns; None: it does if a column is given by name
    """

    columns: tuple[Field, ...] = ()
    header: bool | None = None

    def selecting(self, fields: Sequence[Field], lists: Sequence[Field]) -> RecordFile:
        return replace(self, columns=tuple(fields))

    @property
    def may_have_header(self) -> bool:
        return self.header is None and not any(isinstance(column, str) for column in self.columns)

    @abstractmethod
    def _table(self) -> Iterator[tuple[int, list[str]]]:
        """All fields of all rows, the header included, each with the number of its line."""

    def _rows(self) -> Iterator[tuple[int, Row]]:
        table = self._table()
        first = next(table, None)
        if first is None:
            return
        by_name = any(isinstance(column, str) for column in self.columns)
        names = first[1] if (by_name if self.header is None else self.header) else None
        if not self.columns:
            present = ", ".join(names) if names else f"0 to {len(first[1]) - 1}"
            problem = "is a table, and no column was chosen."
            raise DataError(self.path, None, problem, f"It has: {present}.")
        hint = self.hint(first[1])
        numbers = [_column_number(self.path, column, names, hint) for column in self.columns]
        if max(numbers) >= len(first[1]):
            problem = f"has {_count(first[1])}, but column {max(numbers)} is wanted (the first is"
            raise DataError(self.path, first[0], f"{problem} column 0).", hint)
        for number, fields in self._even(first, table, below_header=bool(names)):
            yield number, tuple(fields[column] for column in numbers)

    def hint(self, first: Sequence[str]) -> str:
        """What to do where the fields of the first row show that the file is read wrongly."""
        return ""

    def _even(
        self,
        first: tuple[int, list[str]],
        table: Iterator[tuple[int, list[str]]],
        below_header: bool,
    ) -> Iterator[tuple[int, list[str]]]:
        """The rows, checked to have as many fields as the first one."""
        for number, fields in table if below_header else chain([first], table):
            if len(fields) != len(first[1]):
                problem = f"has {_count(fields)}, but line {first[0]} has {len(first[1])}."
                names = f"The header: {', '.join(first[1])}." if below_header else self.hint(fields)
                raise DataError(self.path, number, problem, names)
            yield number, fields

    def records(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """All fields of each row; without a header the names are the numbers from 0."""
        table = self._table()
        first = next(table, None)
        if first is None:
            return
        names = list(map(str, range(len(first[1])))) if self.header is False else first[1]
        _check_unique(self.path, names)
        for number, fields in self._even(first, table, below_header=self.header is not False):
            yield number, dict(zip(names, fields, strict=True))


@dataclass(frozen=True)
class TsvReader(_TableReader):
    """Columns between tabs, one row a line; quotes are characters like others.

    Blank lines are skipped.
    """

    def _table(self) -> Iterator[tuple[int, list[str]]]:
        return ((i, line.split("\t")) for i, line in enumerate(lines(self.path), 1) if line)


@dataclass(frozen=True)
class CsvReader(_TableReader):
    """Columns between commas (or another `delimiter`), quoted with `"` where needed.

    A quoted field may contain line breaks; a doubled quote in it stands for one.
    """

    delimiter: str = ","

    def _table(self) -> Iterator[tuple[int, list[str]]]:
        return csv_rows(self.path, self.delimiter)

    def hint(self, first: Sequence[str]) -> str:
        other = next((sign for sign in ";\t|" if sign in first[0]), "")
        if len(first) > 1 or not other:
            return ""
        return f"Is {other!r} the delimiter? Then say delimiter = {other!r} (or --delimiter)."


@dataclass(frozen=True)
class JsonLinesReader(RecordFile):
    """One JSON object a line; a field of a nested object is written `outer.inner`.

    lists: the fields whose values may be lists, which become JSON text.
    """

    fields: tuple[Field, ...] = ()
    lists: tuple[Field, ...] = ()
    unit = "record"

    def selecting(self, fields: Sequence[Field], lists: Sequence[Field]) -> RecordFile:
        return replace(self, fields=tuple(fields), lists=tuple(lists))

    def _rows(self) -> Iterator[tuple[int, Row]]:
        for number, record in self.records():
            yield number, texts_of(record, self.fields, (self.path, number), lists=self.lists)

    def records(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """The objects of the file, each with the number of its line."""
        for number, line in enumerate(lines(self.path), 1):
            if not line.strip():
                continue
            record = json_value(line, self.path, number)
            if not isinstance(record, dict):
                problem = f"must be a JSON object, but is a {type(record).__name__}."
                hint = 'Write {"name": "value", …} on each line.'
                raise DataError(self.path, number, problem, hint)
            yield number, record


@dataclass(frozen=True)
class ParquetReader(RecordFile):
    """A Parquet file, read in batches of rows; needs pyarrow (`pip install 'regard[data]'`).

    lists: the fields whose values may be lists, which become JSON text.
    """

    fields: tuple[Field, ...] = ()
    lists: tuple[Field, ...] = ()

    def selecting(self, fields: Sequence[Field], lists: Sequence[Field]) -> RecordFile:
        return replace(self, fields=tuple(fields), lists=tuple(lists))

    def _rows(self) -> Iterator[tuple[int, Row]]:
        for number, record in self._numbered_records(self._names):
            yield number, texts_of(record, self.fields, (self.path, number), lists=self.lists)

    def records(self) -> Iterator[tuple[int, dict[str, Any]]]:
        return self._numbered_records(lambda present: present)

    def _numbered_records(
        self, choose: Callable[[list[str]], list[str]]
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """The rows, of which `choose` names the columns that are read, with numbers from 1."""
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise MissingExtra("pyarrow", "data", "Reading Parquet") from error
        check_file(Path(self.path))
        try:
            with pyarrow.parquet.ParquetFile(self.path) as file:
                present = file.schema_arrow.names
                _check_unique(self.path, present)
                columns = choose(present)
                if not columns:
                    problem, hint = "no column was chosen.", f"It has: {', '.join(present)}."
                    raise DataError(self.path, None, f"is a table, and {problem}", hint)
                batches = file.iter_batches(batch_size=1024, columns=columns)
                yield from enumerate(chain.from_iterable(map(self._listed, batches)), 1)
        except (pyarrow.ArrowException, OSError) as error:
            raise DataError(self.path, None, f"cannot be read as Parquet: {error}.") from error

    def _names(self, present: list[str]) -> list[str]:
        """The columns that hold `fields`."""
        columns = {f if f in present else str(f).split(".")[0] for f in self.fields}
        for name in sorted(columns - set(present)):
            raise _unknown((self.path, None), name, present)
        return sorted(columns)

    def _listed(self, batch: RecordBatch) -> list[dict[str, Any]]:
        try:
            return batch.to_pylist()
        except (ValueError, OverflowError) as error:  # dates beyond Python's, text that is no UTF-8
            problem = f"has a value that cannot be read: {error}."
            raise DataError(self.path, None, problem) from error


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
        if isinstance(item, Mapping):
            return texts_of(item, self.fields, location, plain_scalar, self.lists)
        if isinstance(item, str) and not self.fields:
            return (text_of(0, item, location),)
        if isinstance(item, Sequence) and not isinstance(item, bytes | str):
            texts = [
                text_of(i, (list_as_json if i in self.lists else plain_scalar)(value), location)
                for i, value in enumerate(item)
            ]
            fields = self.fields or range(len(item))
            numbers = [_column_number(location[0], field, None) for field in fields]
            return _select(location, texts, numbers)
        expected = "a tuple or a mapping" if self.fields else "a string, a tuple or a mapping"
        raise DataError(*location, f"must be {expected}, but is a {type(item).__name__}.")


class VerbatimLines(ItemReader):
    """The text of lines in memory, as `VerbatimReader` reads it from a file of these lines."""

    def numbered(self) -> Iterator[tuple[int, Row]]:
        lines = (row[0] for _, row in super().numbered())
        return _at_line_breaks(line if line.endswith("\n") else f"{line}\n" for line in lines)


FORMATS: dict[str, type[_FileReader]] = {
    "lines": LineReader,
    "text": VerbatimReader,
    "tsv": TsvReader,
    "csv": CsvReader,
    "jsonl": JsonLinesReader,
    "parquet": ParquetReader,
}


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

    data: also a reader of `read_records`
    fields: the columns wanted, by name or by number from 0
    format: one of FORMATS; None: what the file's ending says (also before .gz, .bz2, .xz, .zst),
        and lines for any other ending
    header: whether a table's first line holds names; None: if a field is given by name
    delimiter: the character between the fields of CSV, a comma without it
    lists: those of `fields` whose values may be lists, which become JSON text

    Raises:
        ConfigError: the format is unknown, or is not CSV and has a delimiter.
        DataError: columns or a header of plain text are asked for.
    """
    if isinstance(data, RecordFile):
        return data.selecting(fields, lists)
    if not isinstance(data, str | PathLike):
        return ItemReader(data, fields, lists)
    kind = _kind_of(str(data), format, delimiter)
    if issubclass(kind, RecordFile):
        options = {"header": header, "delimiter": delimiter}
        return _record_file(kind, str(data), options).selecting(fields, lists)
    if fields or header:
        problem = "is read as plain text, which has no columns and no header."
        hint = "If it is a table, say so: format = 'tsv' or 'csv'."
        raise DataError(str(data), None, problem, hint)
    return kind(str(data))


def read_records(
    path: str | PathLike[str],
    *,
    header: bool | None = True,
    format: str | None = None,
    delimiter: str | None = None,
) -> RecordFile:
    """A file whose rows have fields by name: CSV, TSV, JSONL or Parquet.

    format, delimiter: as of `read`.
    header: whether the first line of CSV and TSV holds the names; without, they are "0", "1", ...

    Raises:
        DataError: its ending is another.
        ConfigError: as `read`.
    """
    kind = _kind_of(str(path), format, delimiter)
    if issubclass(kind, RecordFile):
        return _record_file(kind, str(path), {"header": header, "delimiter": delimiter})
    problem = f"must end in one of {', '.join(ENDINGS)}, which say how it is read."
    raise DataError(str(path), None, problem)


def _kind_of(path: str, format: str | None, delimiter: str | None) -> type[_FileReader]:
    """The reader of a file."""
    chosen = format or ("csv" if delimiter else ENDINGS.get(ending(path), "lines"))
    if chosen not in FORMATS:
        formats = ", ".join(FORMATS)
        raise ConfigError(f"`format` must be one of {formats}, but is {chosen!r}.")
    if delimiter and (chosen != "csv" or len(delimiter) != 1 or delimiter in '"\r\n'):
        raise ConfigError(f"`delimiter` must be a character of CSV files, but is {delimiter!r}.")
    return FORMATS[chosen]


def _record_file(kind: type[RecordFile], path: str, options: Mapping[str, Any]) -> RecordFile:
    """A reader with those of the options that are set and that its class has."""
    known = {option.name for option in dataclass_fields(cast(Any, kind))}
    return kind(path, **{name: v for name, v in options.items() if v is not None and name in known})


def read_parallel(*paths: str | PathLike[str]) -> ParallelReader:
    """Rows of as many fields as there are files of lines: line i of each."""
    return ParallelReader(tuple(str(path) for path in paths))


def json_value(text: str, path: str | Path, line: int | None = None) -> Any:
    """The value of a JSON text: of one line of a file, or of a whole file (`line` is None).

    Raises:
        DataError: it is not JSON, names a key twice, or has numbers that are not finite or larger
            than 64 bits.
    """

    def wrong(message: str) -> DataError:
        return DataError(path, line, message.removeprefix("JSON: "))

    try:
        return json_line(text, "JSON", wrong)  # `text_of` names fields with half a surrogate pair
    except json.JSONDecodeError as error:
        problem = f"is not JSON: {error.msg} at character {error.colno}."
        hint = "A JSONL file holds one whole object on each line." if line else ""
        raise DataError(path, line or error.lineno, problem, hint) from None


def texts_of(
    record: Mapping[Any, Any],
    fields: Sequence[Field],
    location: Location,
    plain: Callable[[Any], Any] = lambda value: value,
    lists: Sequence[Field] = (),
) -> Row:
    """The strings of these fields: `a.b` is `record["a"]["b"]`, the number 3 becomes "3".

    plain: is applied to each value before.  lists: the fields whose values may be lists.

    Raises:
        DataError: a field is missing or no text, or `fields` is empty.
    """
    if not fields:
        names = ", ".join(map(str, record))
        problem = f"has the fields {names}, but it is not said which are read."
        hint = "Name them with `columns`, in the order that the task reads them."
        raise DataError(*location, problem, hint)
    values = tuple(map(record.get, fields))
    if all(type(value) is str and value.isascii() for value in values):  # the usual case, quickly
        return cast(Row, values)
    return tuple(
        text_of(
            name,
            (list_as_json if name in lists else plain)(field_value(record, name, location)),
            location,
        )
        for name in fields
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
    if isinstance(value, int | float) and not isinstance(value, bool):
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


def _column_number(path: str | Path, column: Field, names: list[str] | None, hint: str = "") -> int:
    """The number of a column, from 0, in a table whose header holds `names`, if it has one.

    hint: for the error where the header does not have the column.

    Raises:
        DataError: there is no such column, or several have its name.
    """
    if isinstance(column, int) and column >= 0:
        return column
    if names is None:
        remedy = "Number it from 0, or say that the first line is a header."
        raise DataError(path, None, f"has no column {column!r}: it has no header.", remedy)
    if column not in names:
        raise _unknown((path, 1), column, names, hint)
    _check_unique(path, [name for name in names if name == column])
    return names.index(str(column))


def _select(location: Location, fields: Sequence[str], numbers: Sequence[int]) -> Row:
    for number in numbers:
        if number >= len(fields):
            problem = (
                f"has {_count(fields)}, but column {number} is wanted (the first is column 0)."
            )
            raise DataError(*location, problem)
    return tuple(fields[number] for number in numbers)


def _check_unique(path: str | Path, names: Sequence[str]) -> None:
    """Raise a DataError where a name of a column occurs twice."""
    for name, count in Counter(names).items():
        if count > 1:
            raise DataError(path, None, f"has more than one column {name!r}.", "Rename one.")


def _count(fields: Sequence[str]) -> str:
    return f"{len(fields)} field{'s' if len(fields) != 1 else ''}"


def _unknown(location: Location, name: Field, present: Iterable[str], hint: str = "") -> DataError:
    listed = [str(field) for field in present]
    close = get_close_matches(str(name), listed, n=1, cutoff=0.5)
    names = f"It has: {', '.join(listed) or 'none'}."
    hint = hint or (f"Did you mean {close[0]!r}?" if close else "")
    return DataError(*location, f"has no field {name!r}.", f"{names} {hint}".rstrip())
