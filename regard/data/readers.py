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

import csv
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any

from regard.data.files import (
    LONGEST_LINE,
    LONGEST_TEXT,
    check_file,
    ending,
    lines,
    open_bytes,
    whole_lines_of,
)
from regard.errors import ConfigError, DataError, MissingExtra
from regard.schema import decode_json

Field = str | int
Row = tuple[str, ...]


class RowReader(ABC):
    """What every reader is: rows that can be looped over as often as needed."""

    @abstractmethod
    def numbered(self) -> Iterator[tuple[int, Row]]:
        """Rows with the number, from 1, of the line on which each begins."""

    @abstractmethod
    def file_of(self, field: int) -> str:
        """The name of the file that field number `field` of a row comes from."""

    def __iter__(self) -> Iterator[Row]:
        return (row for _, row in self.numbered())

    def texts(self) -> Iterator[str]:
        """All fields of all rows one after the other, for example to train a tokenizer."""
        return chain.from_iterable(self)


@dataclass(frozen=True)
class _File(RowReader):
    path: str | Path

    def file_of(self, field: int) -> str:
        return str(self.path)

    def _not_empty(self, rows: Iterable[tuple[int, Any]], what: str = "line") -> Iterator[Any]:
        count = 0
        for count, row in enumerate(rows, 1):  # noqa: B007
            yield row
        if not count:
            raise DataError(self.path, None, f"is empty: it has not one {what}.")


@dataclass(frozen=True)
class LineReader(_File):
    """Plain text, one row a line."""

    def numbered(self) -> Iterator[tuple[int, Row]]:
        return self._not_empty((i, (line,)) for i, line in enumerate(lines(self.path), 1))


@dataclass(frozen=True)
class VerbatimReader(_File):
    """Plain text with its line breaks: the rows, joined, are the file (less a byte order mark).

    A row begins at a line break that follows a line with something on it, so that the tokenizers,
    which begin a token there too, give the same tokens for the rows as for the whole text.
    """

    def numbered(self) -> Iterator[tuple[int, Row]]:
        return self._not_empty(self._pieces())

    def _pieces(self) -> Iterator[tuple[int, Row]]:
        begun, held = 1, ""
        with open_bytes(self.path) as stream:
            text_lines = whole_lines_of(stream, self.path, most=LONGEST_TEXT)
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
            raise self._unequal(counts)

    def _unequal(self, counts: list[int]) -> DataError:
        said = " and ".join(
            f"{path} has {n:,} lines" for path, n in zip(self.paths, counts, strict=True)
        )
        hint = "Line i of one must be the translation of line i of the other; compare their ends."
        return DataError(self.paths[0], None, f"parallel files differ in length: {said}.", hint)


@dataclass(frozen=True)
class TsvReader(_File):
    """Columns between tabs, one row a line; quotes are characters like others.

    `header`: whether the first line names the columns; needed when `columns` are names. Under a
    header all rows must have as many fields as it has. Blank lines are passed over.
    """

    columns: tuple[Field, ...]
    header: bool

    def numbered(self) -> Iterator[tuple[int, Row]]:
        table = ((i, line.split("\t")) for i, line in enumerate(lines(self.path), 1) if line)
        return self._not_empty(_chosen(self.path, table, self.columns, self.header), "row")


@dataclass(frozen=True)
class CsvReader(_File):
    """Columns between commas (or another `delimiter`), quoted with `"` where needed.

    A quoted field may hold line breaks; a doubled quote inside stands for one. `header` as in Tsv.
    """

    columns: tuple[Field, ...]
    header: bool
    delimiter: str = ","

    def numbered(self) -> Iterator[tuple[int, Row]]:
        return self._not_empty(_chosen(self.path, self._table(), self.columns, self.header), "row")

    def _table(self) -> Iterator[tuple[int, list[str]]]:
        csv.field_size_limit(max(csv.field_size_limit(), LONGEST_LINE))
        begun = 1
        with open_bytes(self.path) as stream:
            text = _Bounded(self.path, whole_lines_of(stream, self.path))
            table = csv.reader(text, delimiter=self.delimiter, strict=True)
            try:
                for fields in table:
                    if fields:  # none: a blank line
                        yield begun, fields
                    begun = table.line_num + 1
                    text.begin_row(begun)
            except csv.Error as error:
                hint = 'Is a quote (") that opens on this line never closed, or not doubled inside?'
                problem = f"the row that begins here is not CSV: {error}."
                raise DataError(self.path, begun, problem, hint) from error


class _Bounded:
    """The lines of a table, of which several may be one row; too long a row is an error."""

    def __init__(self, path: str | Path, lines: Iterator[str]):
        self.path, self.lines, self.begun, self.length = path, lines, 1, 0

    def __iter__(self) -> _Bounded:
        return self

    def __next__(self) -> str:
        line = next(self.lines)
        self.length += len(line)
        if self.length > LONGEST_LINE:
            problem = f"the row that begins here has more than {LONGEST_LINE:,} characters."
            raise DataError(self.path, self.begun, problem, 'Is a quote (") never closed?')
        return line

    def begin_row(self, number: int) -> None:
        """The next row begins on this line."""
        self.begun, self.length = number, 0


@dataclass(frozen=True)
class JsonLinesReader(_File):
    """One JSON object a line; a field of a nested object is written `outer.inner`."""

    fields: tuple[str, ...]

    def numbered(self) -> Iterator[tuple[int, Row]]:
        return self._not_empty(self._rows(), "record")

    def _rows(self) -> Iterator[tuple[int, Row]]:
        for number, record in self.records():
            yield number, picked(record, self.fields, self.path, number)

    def records(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """The objects as they stand in the file, each with the number of its line."""
        for number, line in enumerate(lines(self.path), 1):
            if line.strip():
                yield number, self._parsed(number, line)

    def _parsed(self, number: int, line: str) -> Any:
        record = json_value(line, self.path, number)
        if not isinstance(record, dict):
            problem = f"must be a JSON object, but is a {type(record).__name__}."
            raise DataError(self.path, number, problem, 'Write {"name": "value", …} on each line.')
        return record


@dataclass(frozen=True)
class ParquetReader(_File):
    """A Parquet file, read in batches of rows; needs pyarrow (`pip install 'regard[data]'`)."""

    fields: tuple[str, ...]

    def numbered(self) -> Iterator[tuple[int, Row]]:
        return self._not_empty(self._rows(), "row")

    def _rows(self) -> Iterator[tuple[int, Row]]:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise MissingExtra("pyarrow", "data", "Reading Parquet") from error
        check_file(Path(self.path))
        try:
            with pyarrow.parquet.ParquetFile(self.path) as file:
                number = 0
                for batch in self._batches(file):
                    for record in self._listed(batch):
                        number += 1
                        yield number, picked(record, self.fields, self.path, number)
        except (pyarrow.ArrowException, OSError) as error:
            raise DataError(self.path, None, f"cannot be read as Parquet: {error}.") from error

    def _listed(self, batch: Any) -> list[dict[str, Any]]:
        try:
            return batch.to_pylist()
        except (ValueError, OverflowError) as error:  # dates beyond Python's, text that is no UTF-8
            problem = f"holds a value that cannot be read: {error}."
            raise DataError(self.path, None, problem) from error

    def _batches(self, file: Any) -> Iterator[Any]:
        present = file.schema_arrow.names
        wanted = {f if f in present else f.split(".")[0] for f in self.fields}
        for name in sorted(wanted - set(present)):
            raise _unknown(self.path, None, name, present)
        return file.iter_batches(batch_size=1024, columns=sorted(wanted))


class ItemReader(RowReader):
    """Rows from anything one can loop over: strings, tuples or lists, or mappings by name.

    An iterator gives its items once; a second pass over it is refused, since it would be empty.
    """

    def __init__(self, items: Iterable[Any], fields: Sequence[Field] = ()):
        self.items, self.fields = items, tuple(fields)
        self._spent = False

    def file_of(self, field: int) -> str:
        return f"<{type(self.items).__name__}>"

    def numbered(self) -> Iterator[tuple[int, Row]]:
        return ((i, self._row(i, item)) for i, item in self.whole())

    def whole(self) -> Iterator[tuple[int, Any]]:
        """The items as they were given, with their numbers from 1."""
        try:
            once = iter(self.items)
        except TypeError:
            problem = f"must be something to loop over, but is {self.items!r:.80}."
            raise DataError(self.file_of(0), None, problem, "Give a list of rows.") from None
        if self._spent:
            problem = "can be read only once, and has been read."
            hint = "Give a list, or an object whose `__iter__` begins anew."
            raise DataError(self.file_of(0), None, problem, hint)
        self._spent = once is self.items
        return enumerate(once, 1)

    def _row(self, number: int, item: Any) -> Row:
        name = self.file_of(0)
        if isinstance(item, Mapping):
            return picked(item, self.fields, name, number)
        if isinstance(item, str) and not self.fields:
            return (text_of(name, number, 0, item),)
        if isinstance(item, Sequence) and not isinstance(item, bytes | str):
            texts = [text_of(name, number, i, value) for i, value in enumerate(item)]
            return _taken(name, number, texts, _places(name, None, self.fields or range(len(item))))
        wanted = "a tuple or a mapping" if self.fields else "a string, a tuple or a mapping"
        raise DataError(name, number, f"must be {wanted}, but is a {type(item).__name__}.")


def read(
    data: str | PathLike[str] | Iterable[Any],
    fields: Sequence[Field] = (),
    *,
    format: str | None = None,
    header: bool | None = None,
) -> RowReader:
    """The rows of one file, or of anything one can loop over.

    `fields`: the columns wanted, by name or by number from 0. `format`: one of FORMATS; by default
    what the ending says (also before .gz, .bz2, .xz), and lines for any other ending. `header`:
    whether a table's first line holds names; by default it does when a field is given by name.
    """
    if not isinstance(data, str | PathLike):
        return ItemReader(data, fields)
    path, chosen = str(data), format or _ENDINGS.get(ending(str(data)), "lines")
    if chosen not in FORMATS:
        known = ", ".join(FORMATS)
        raise ConfigError(f"`format` must be one of {known}, but is {chosen!r}.")
    return FORMATS[chosen](path, tuple(fields), header)


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
        return decode_json(text, "JSON", wrong, surrogates=True)  # `text_of` names the field
    except json.JSONDecodeError as error:
        problem = f"is not JSON: {error.msg} at character {error.colno}."
        hint = "A JSONL file holds one whole object on each line." if line else ""
        raise DataError(path, line or error.lineno, problem, hint) from None


def picked(record: Any, fields: Sequence[Field], path: str | Path, line: int | None) -> Row:
    """The strings under these names of a mapping: `a.b` is `record["a"]["b"]`, 3 becomes "3"."""
    if not fields:
        problem = "has fields by name, but none was chosen."
        raise DataError(path, line, problem, f"Name some of: {', '.join(map(str, record))}.")
    return tuple(text_of(path, line, name, found(record, name, path, line)) for name in fields)


def found(record: Any, name: Field, path: str | Path, line: int | None) -> Any:
    """The value under a name of a mapping: `a.b` is `record["a"]["b"]`."""
    if name in record or not isinstance(name, str):
        parts: list[Any] = [name]
    else:
        parts = name.split(".")
    for part in parts:
        if not isinstance(record, Mapping) or part not in record:
            raise _unknown(path, line, name, record if isinstance(record, Mapping) else ())
        record = record[part]
    return record


def text_of(path: str | Path, line: int | None, name: Field, value: Any) -> str:
    """A value as text that can be written as UTF-8; a number as its digits."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        kind = "missing (null)" if value is None else f"a {type(value).__name__}"
        raise DataError(path, line, f"field {name!r} must be text, but is {kind}.")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        problem = f"field {name!r} holds half of a surrogate pair at character {error.start + 1}."
        raise DataError(path, line, problem, "Mend the program that wrote it.") from error
    return value


def _chosen(
    path: str | Path, table: Iterator[tuple[int, list[str]]], columns: Sequence[Field], header: bool
) -> Iterator[tuple[int, Row]]:
    """The wanted columns of a table whose first row may hold names."""
    first = next(table, None)
    if first is None:
        return
    names = first[1] if header else None
    places = _places(path, names, columns, width=len(first[1]))
    for number, fields in table if header else chain([first], table):
        if names and len(fields) != len(names):
            problem = f"has {len(fields)} fields, but the header has {len(names)}."
            raise DataError(path, number, problem, f"The header: {', '.join(names)}.")
        yield number, _taken(path, number, fields, places)


def _places(
    path: str | Path, names: list[str] | None, columns: Sequence[Field], width: int = 0
) -> list[int]:
    if not columns:
        present = ", ".join(names) if names else f"0 to {width - 1}"
        raise DataError(path, None, "is a table, and no column was chosen.", f"It has: {present}.")
    places = []
    for column in columns:
        if isinstance(column, int) and column >= 0:
            places.append(column)
        elif names and column in names:
            places.append(names.index(str(column)))
        elif names:
            raise _unknown(path, 1, column, names)
        else:
            hint = "Number it from 0, or say that the first line is a header."
            raise DataError(path, None, f"has no column {column!r}: it has no header.", hint)
    return places


def _taken(path: str | Path, line: int, fields: Sequence[str], places: Sequence[int]) -> Row:
    for place in places:
        if place >= len(fields):
            problem = f"has {len(fields)} field{'s' if len(fields) != 1 else ''}, "
            problem += f"but column {place} is wanted (the first is column 0)."
            raise DataError(path, line, problem)
    return tuple(fields[place] for place in places)


def _unknown(path: str | Path, line: int | None, name: Field, present: Iterable[str]) -> DataError:
    listed = [str(other) for other in present]
    close = get_close_matches(str(name), listed, n=1, cutoff=0.5)
    hint = f"It has: {', '.join(listed) or 'none'}."
    hint += f" Did you mean {close[0]!r}?" if close else ""
    return DataError(path, line, f"has no field {name!r}.", hint)


def _named(columns: Sequence[Field], header: bool | None) -> bool:
    by_name = any(isinstance(column, str) for column in columns)
    return by_name if header is None else header


def _without_columns(path: str, columns: Sequence[Field], header: bool | None) -> None:
    if columns or header:
        problem = "is read as plain text, which has no columns and no header."
        raise DataError(path, None, problem, "If it is a table, say so: format = 'tsv' or 'csv'.")


def _lines(path: str, columns: Sequence[Field], header: bool | None) -> RowReader:
    _without_columns(path, columns, header)
    return LineReader(path)


def _verbatim(path: str, columns: Sequence[Field], header: bool | None) -> RowReader:
    _without_columns(path, columns, header)
    return VerbatimReader(path)


Make = Callable[[str, tuple[Any, ...], bool | None], RowReader]
FORMATS: dict[str, Make] = {
    "lines": _lines,
    "text": _verbatim,
    "tsv": lambda path, fields, header: TsvReader(path, fields, _named(fields, header)),
    "csv": lambda path, fields, header: CsvReader(path, fields, _named(fields, header)),
    "jsonl": lambda path, fields, header: JsonLinesReader(path, fields),
    "parquet": lambda path, fields, header: ParquetReader(path, fields),
}
_ENDINGS = {
    ".tsv": "tsv",
    ".csv": "csv",
    ".json": "jsonl",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}
