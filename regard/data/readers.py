"""Readers: rows of text from files of every common kind, or from anything one can loop over.

All readers are alike: looping over one gives rows, tuples with a text, or a list, for each field
that was asked for; it can be looped over again; nothing but the current row is held in memory.

    read("train.txt")                                     lines: rows of one field
    read_parallel("train.de", "train.en.gz")              line i belongs to line i
    read("fra-eng.zip!fra.txt", (0, 1), format="tsv")     columns by number, from 0
    read("pairs.csv", ("german", "english"))              columns by name, from the header
    read("wmt.jsonl", ("translation.de", "translation.en"))
    read(dataset, ("translation.de", "translation.en"))   a `datasets` object, a list, a generator
    open_table("pairs.csv").records()                     rows as mappings from column to value

The first line of a CSV file is its header; that of a TSV file is one where columns are given by
name. `header = true` or `false` in [data] says otherwise.
"""

from __future__ import annotations

import csv
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import chain, compress, islice
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from regard.data.files import (
    ENDINGS,
    LONGEST_LINE,
    LONGEST_TEXT,
    check_file,
    delimiter_hint,
    ending,
    lines,
    lines_or_errors,
    open_bytes,
    whole_lines_of,
    without_end,
)
from regard.data.in_memory import (
    infer_columns,
    plain,
    plain_list,
    plain_names,
    rows,
    source_name,
    text_columns_among,
)
from regard.errors import ConfigError, DataError, MissingExtra
from regard.habit_names import COLUMNS
from regard.schema import data_error, parse_json

T = TypeVar("T")
Field = str | int
Row = tuple[Any, ...]  # texts, and lists in the fields that may hold them
Location = tuple[str | Path, int | None]  # what an error names: a file or a part of it, and a line
Record = dict[str, Any]  # the values of a row by column
TABLES = tuple(dict.fromkeys(ENDINGS.values()))
FORMATS = ("lines", "text", *TABLES)
TEXT = "text"  # the field of a row of a file of lines
BATCH_ROWS, BATCH_BYTES = 1024, 1 << 20  # of a Parquet file, in memory together


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
        texts = lines(self.path, self.longest)
        return _not_empty(self.path, ((number, (line,)) for number, line in enumerate(texts, 1)))


class VerbatimReader(LineReader):
    """Plain text with its line breaks: the rows, joined, are the file (less a byte order mark).

    A row begins at a line break after a line that is not blank. Tokenizers begin a token there,
    too, so that the rows have the same tokens as the whole text.
    """

    def numbered(self) -> Iterator[tuple[int, Row]]:
        with open_bytes(self.path) as stream:
            whole_lines = whole_lines_of(stream, self.path, longest=LONGEST_TEXT)
            yield from _not_empty(self.path, _at_line_breaks(whole_lines))


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


def _not_empty(path: str | Path, items: Iterator[T]) -> Iterator[T]:
    for first in items:
        yield first
        yield from items
        return
    raise DataError(path, None, "is empty: it has not one row.")


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
            raise DataError(self.paths[0], None, f"parallel files have {listed}.", hint)


# ------------------------------------------------------------------------------------- tables


@dataclass(frozen=True)
class TableFile:
    """A file whose rows have fields by name.

    format: one of `TABLES`; or "lines", each of which is the field `text` of a row
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
        for number, record in _not_empty(self.path, self.rows(fields)):
            if isinstance(record, DataError):
                raise record
            yield number, record

    def rows(self, fields: Sequence[Field] = ()) -> Iterator[tuple[int, Record | DataError]]:
        """As `records`, but a row that cannot be read is its error, and a file may have no row.

        Raises:
            DataError: the file cannot be read, or its rows cannot be told apart.
        """
        if self.format == "parquet":
            yield from _parquet_records(self.path, fields)
            return
        contents = self._contents()
        make: Callable[[int, Any], Record] = self._record
        if self.format in ("csv", "tsv"):
            if (first := next(contents, None)) is None:
                return
            make = self._named(*first, fields)
            contents = contents if self.header else chain([first], contents)
        for number, content in contents:
            try:
                row = content if isinstance(content, DataError) else make(number, content)
            except DataError as error:
                row = error
            yield number, row

    def _contents(self) -> Iterator[tuple[int, Any]]:
        """The lines that are rows, or the fields of each; an error for a line that is not UTF-8."""
        if self.format == "csv":
            yield from csv_rows(self.path, self.delimiter)
            return
        with open_bytes(self.path) as stream:
            for number, line in enumerate(lines_or_errors(stream, self.path), 1):
                if isinstance(line, DataError):
                    yield number, line
                elif self.format == "tsv":  # quotes are characters like others
                    if text := without_end(line):
                        yield number, text.split("\t")
                elif self.format == "lines" or line.strip():
                    yield number, without_end(line)

    def _record(self, number: int, line: str) -> Record:
        """The row of a line: the object of a line of JSON, or the line."""
        if self.format == "lines":
            return {TEXT: line}
        record = json_value(line, self.path, number)
        if not isinstance(record, dict):
            problem = f"must be a JSON object, but is a {type(record).__name__}."
            raise DataError(self.path, number, problem, 'Write {"name": "value", …} on each line.')
        return record

    def _named(
        self, line: int, first: list[str] | DataError, columns: Sequence[Field]
    ) -> Callable[[int, list[str]], Record]:
        """What names the fields of a row: by the header, the first line, or by number."""
        if isinstance(first, DataError):
            raise first
        names = first if self.header else list(map(str, range(len(first))))
        check_unique(self.path, [name for name in names if not columns or name in columns])

        def record(number: int, fields: list[str]) -> Record:
            if len(fields) != len(names):
                counts = f"has {len(fields)} fields, but line {line} has {len(names)}."
                hint = f"The first has: {', '.join(first)}." if self.header else ""
                raise DataError(self.path, number, delimiter_hint(first) + counts, hint)
            return dict(zip(names, fields, strict=True))

        return record


@dataclass(frozen=True)
class TableRows(RowReader):
    """These fields of a table as text; `lists` may hold lists.

    undecided: whether nothing says that the first line is a header or that it is none; it is an
        example then, unless all its fields are usual names of columns, which is an error
    """

    table: TableFile
    fields: tuple[Field, ...]
    lists: tuple[Field, ...] = ()
    undecided: bool = False

    def file_of(self, field: int) -> str:
        return str(self.table.path)

    def numbered(self) -> Iterator[tuple[int, Row]]:
        fields = self.fields
        if not self.table.header:
            fields = tuple(map(str, fields))
        elif self.table.format in ("csv", "tsv") and any(isinstance(f, int) for f in fields):
            names = list(next(self.table.records())[1])
            fields = tuple(names[f] if isinstance(f, int) and f < len(names) else f for f in fields)
        undecided = self.undecided
        for number, record in self.table.records(fields):
            location = self.table.path, number
            row = texts_of(record, fields, location, lists=self.lists)
            if undecided and 1 < len(row) == len({*row}) and COLUMNS.issuperset(plain_names(row)):
                problem = f"may hold the names of the columns: {', '.join(row)}."
                hint = (
                    "Give `columns` by these names, or write header = true in [data]; "
                    "header = false, if the line is an example."
                )
                raise DataError(*location, problem, hint)
            undecided = False
            yield number, row


def csv_rows(path: str | Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """The rows of a CSV file that are not blank, each with the number of the line it begins on.

    A quoted field may contain line breaks; a doubled quote in it stands for one.

    Raises:
        DataError: a row is not CSV or too long.
    """
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_LINE))
    begun = 1
    with open_bytes(path) as stream:
        spaced: list[str] = []  # lines of the current row with a quote behind a space

        def read_lines() -> Iterator[str]:
            for line in whole_lines_of(stream, path):
                if ' "' in line:
                    spaced.append(line)
                yield line

        table = csv.reader(read_lines(), delimiter=delimiter, strict=True)
        try:
            for fields in table:
                if spaced:  # a field in quotes has its own quotes twice
                    for field in fields:
                        if field[:2] == ' "' and not any('" ""' in line for line in spaced):
                            raise csv.Error("a space stands before a quote")
                    spaced.clear()
                if fields:  # none: a blank line
                    yield begun, fields
                begun = table.line_num + 1
        except csv.Error as error:
            problem = f"the row that begins here is not CSV: {error}."
            hint = 'Is a quote (") never closed, or not doubled inside? Is another sign than '
            hint += f"{delimiter!r} the `delimiter`?"
            raise DataError(path, begun, problem, hint) from error


def _parquet_records(path: str | Path, fields: Sequence[Field]) -> Iterator[tuple[int, Record]]:
    """The rows of a Parquet file, read in batches; of the columns those that hold `fields`."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra("pyarrow", "data", "Reading Parquet") from error
    check_file(Path(path))
    try:
        # Without a buffer size, a whole row group would be in memory.
        with pyarrow.parquet.ParquetFile(path, buffer_size=BATCH_BYTES) as file:
            present = file.schema_arrow.names
            check_unique(path, present)
            columns = {f if f in present else str(f).split(".")[0] for f in fields}
            for name in sorted(columns - set(present)):
                raise _unknown((path, None), name, present)
            batches = file.iter_batches(BATCH_ROWS, columns=sorted(columns) or None)
            yield from enumerate(chain.from_iterable(b.to_pylist() for b in batches), 1)
    except (pyarrow.ArrowException, ValueError, OverflowError, OSError) as error:
        raise DataError(path, None, f"cannot be read as Parquet: {error}.") from error


# ------------------------------------------------------------------------------------- memory


class ItemReader(RowReader):
    """Rows from anything one can loop over: strings, tuples or lists, or mappings by name.

    An iterator gives its items once; a second pass over it raises an error.

    fields: which fields of each item, by name or number; none: all fields of a tuple or list
    lists: the fields whose values may be lists
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
    header: whether a table's first line holds names; None: that of CSV does, that of TSV if a field
        is given by name
    delimiter: the character between the fields of CSV, a comma without it
    lists: those of `fields` whose values may be lists

    Raises:
        ConfigError: the format is unknown, or is not CSV and has a delimiter.
        DataError: columns or a header of plain text are asked for.
    """
    by_name = any(isinstance(field, str) for field in fields)
    if isinstance(data, TableFile):
        named = by_name or data.format == "csv"
        return TableRows(replace(data, header=named), tuple(fields), tuple(lists))
    if not isinstance(data, str | PathLike):
        return ItemReader(data, fields, lists)
    path, kind = str(data), _format_of(str(data), format, delimiter)
    if kind not in TABLES:
        if fields or header:
            problem = "is read as plain text, which has no columns and no header."
            raise DataError(path, None, problem, "If it is a table: format = 'tsv' or 'csv'.")
        return VerbatimReader(path) if kind == "text" else LineReader(path)
    undecided = header is None and not by_name and kind == "tsv"
    named = by_name or kind == "csv" if header is None else header
    table = TableFile(path, kind, named, delimiter or ",")
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
        DataError: it is not JSON.
    """

    def wrong(message: str) -> DataError:
        hint = "A JSONL file holds one whole object on each line."
        return DataError(path, line, message.removeprefix("JSON: "), hint)

    if line is None:
        return parse_json(text, str(path), data_error(Path(path)))
    return parse_json(text, "JSON", wrong)


def texts_of(
    record: Mapping[Any, Any],
    fields: Sequence[Field],
    location: Location,
    lists: Sequence[Field] = (),
) -> Row:
    """The texts of these fields: `a.b` is `record["a"]["b"]`, the number 3 becomes "3".

    lists: the fields whose values may be lists, which stay lists.

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
    row: list[Any] = []
    for name in fields:
        value = field_value(record, name, location)
        items = plain_list(value) if name in lists else None
        row.append(text_of(name, value, location) if items is None else items)
    return tuple(row)


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
            hint = "Rename one, or write header = false in [data] if the first line is an example."
            raise DataError(path, None, f"has more than one column {name!r}.", hint)


def _unknown(location: Location, name: Field, present: Iterable[Field]) -> DataError:
    listed = [str(field) for field in present]
    close = get_close_matches(str(name), listed, n=1, cutoff=0.5)
    hint = f"It has: {', '.join(listed) or 'none'}."
    hint += f" Did you mean {close[0]!r}?" if close else ""
    return DataError(*location, f"{delimiter_hint(listed)}has no field {name!r}.", hint)


# ------------------------------------------------------------------------------------------ headers


def columns_in_header(
    path: str | Path, format: str | None, delimiter: str | None, header: bool | None
) -> tuple[str, ...]:
    """The columns that a table names: of texts, then of the target.

    (): a TSV file of which `header` does not say that it has one; the file is no table, or it
    cannot be read.

    Raises:
        ConfigError: the names do not tell which columns they are.
    """
    kind = format or ("csv" if delimiter else ENDINGS.get(ending(path)))
    if kind not in TABLES or header is False or kind == "tsv" and not header:
        return ()
    try:
        table = open_table(path, header=False, format=format, delimiter=delimiter)
        first = next(table.records())[1]
        written = list(first.values() if kind in ("csv", "tsv") else first)
    except DataError:  # is raised again where the rows are read
        return ()
    if len({*plain_names(written)}) == len(written):
        with suppress(ConfigError):
            return tuple(map(str, infer_columns([dict.fromkeys(written, "")])))
    listed = ", ".join(name[:40] for name in written)
    raise ConfigError(
        f"{path}: {delimiter_hint(written)}the first line has the columns {listed}, and their "
        "names do not say which hold texts and which the target. Name them in [data], in this "
        "order: columns = [text column, label column]; or write header = false if this line is an "
        "example."
    )


# ----------------------------------------------------------------------------------- labelled texts


def read_labelled(path: Path, labels: str | None, most: int) -> tuple[list[str], list[str]]:
    """The texts of a file that are not blank, and as many labels, or none.

    Args:
        path: a CSV, TSV, JSONL or Parquet file, whose column of texts is found by its name; any
            other file has a text a line.
        labels: the column of the labels.
        most: texts that there may be.

    Raises:
        DataError: the file cannot be read, has no text, or too many; a table has no column of
            texts, or not this one of labels; lines have no labels.
    """
    columns: tuple[Field, ...] = ()
    if ending(path) in ENDINGS:
        first = next(open_table(path).records())[1]
        texts = text_columns_among([name for name in first if name != labels])
        if len(texts) != 1:
            problem = f"has the columns {', '.join(first)}; their names do not say which is a text."
            raise DataError(path, None, problem, "Rename it to text.")
        columns = (*texts,) if labels is None else (*texts, labels)
    elif labels is not None:
        hint = "Give a CSV, TSV, JSONL or Parquet file with this column."
        raise DataError(path, None, f"is read as lines, which have no column {labels!r}.", hint)
    rows = [row for row in read(str(path), columns) if row[0].strip()]
    if not rows:
        raise DataError(path, None, "has no text: every row is blank.", "Give one text a line.")
    if len(rows) > most:
        hint = f"Give some of them: shuf -n {most} {path}"
        raise DataError(path, None, f"has {len(rows):,} texts; at most {most:,} are taken.", hint)
    return [row[0] for row in rows], [row[1] for row in rows if labels is not None]
