"""Rows of tables and texts: of files of every common kind, and of data in memory.

`open_table` is the one way in. A row is a dict of Python values by column, from here to the batch:
a number stays a number, a list a list, and a value that is missing is None. A reader can be looped
over again; nothing but the current row is held in memory.

    open_table("train.txt")                               lines: {"text": ...}
    open_table("pairs.csv", ("german", "english"))        columns by name, from the header
    open_table("fra.tsv", {"source": 0, "target": 1})     by number, from 0, and under other names
    open_table("wmt.jsonl", {"source": "translation.de", "target": "translation.en"})
    open_table(dataframe, ("text", "label"))              data in memory: `regard.data.in_memory`
    read_parallel(source="train.de", target="train.en")   line i belongs to line i

The first line of a CSV file is its header; that of a TSV file is one where columns are given by
name, or none are. `header = true` or `false` in [data] says otherwise.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from itertools import chain, compress, islice
from operator import itemgetter
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from regard.data import in_memory
from regard.data.files import (
    ENDINGS,
    LONGEST_LINE,
    LONGEST_TEXT,
    blocks_of_file,
    check_file,
    delimiter_hint,
    ending,
    lines,
    open_bytes,
    without_ends,
)
from regard.errors import ConfigError, DataError, MissingExtra, check_choice
from regard.habit_names import COLUMNS
from regard.schema import data_error, parse_json

Column = str | int
Record = dict[str, Any]  # the values of a row by column
Numbered = Iterator[tuple[int, Any]]  # rows with the line, from 1, on which each begins
Location = tuple[str | Path, int | None]  # what an error names: a file or a part of it, and a line
TABLES = tuple(dict.fromkeys(ENDINGS.values()))
FORMATS = ("lines", "text", *TABLES)
TEXT = "text"  # the column of lines
BATCH_ROWS, BATCH_BYTES = 1024, 1 << 20  # of a Parquet file, in memory together


@dataclass
class ReadReport:
    """How many examples were read and kept, and what was left out or changed.

    events: what happened ("source: empty, example left out") -> how often, and where first
    unit: what the numbers of `first_line` count: lines, or questions in a file without lines
    """

    files: tuple[str, ...]
    read: int = 0
    kept: int = 0
    events: dict[str, dict[str, int]] = field(default_factory=dict)
    unit: str = "line"

    def clear(self) -> None:
        """Begin again, for another pass."""
        self.read, self.kept, self.events = 0, 0, {}

    def note(self, event: str, line: int) -> None:
        """Count an event at this line."""
        self.events.setdefault(event, {"count": 0, "first_line": line})["count"] += 1

    def __str__(self) -> str:
        parts = [f"{' and '.join(self.files)}: {self.read:,} examples read, {self.kept:,} kept"]
        for event, seen in self.events.items():
            parts.append(f"{event}: {seen['count']:,} (first at {self.unit} {seen['first_line']})")
        return "; ".join(parts)


@dataclass(frozen=True, eq=False)
class RowReader:
    """Rows that can be looped over as often as needed, each a dict by column; or records, such as
    questions with their answers.

    name: the file, or the kind of the object in memory, for errors.
    read: makes a pass over the rows, each with the number, from 1, of the line on which it begins;
        there may be none.
    columns: what the source calls the columns of the rows, for errors.
    files: of columns that come from files of their own; or all files, by any names.
    what: the name of a row.
    report: the `ReadReport` of records: what the last pass left out or changed; None: of rows.
    """

    name: str
    read: Callable[[], Numbered]
    columns: Mapping[str, Column] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    what: str = "row"
    report: Any = None

    def numbered(self) -> Iterator[tuple[int, Any]]:
        """Rows with the number, from 1, of the line on which each begins; records with that of what
        the report counts.

        Raises:
            DataError: the file cannot be read, has no rows, or a row is not as the reader expects.
        """
        numbered_rows = self.read() if self.report is None else self._counted()
        if (first := next(numbered_rows, None)) is None:
            hint = f"{self.report}." if self.report is not None and self.report.events else ""
            raise DataError(self.name, None, f"is empty: it has not one {self.what}.", hint)
        return chain([first], numbered_rows)

    def _counted(self) -> Numbered:
        self.report.clear()
        for numbered_record in self.read():
            self.report.kept += 1
            yield numbered_record

    def __iter__(self) -> Iterator[Any]:
        return map(itemgetter(1), self.numbered())

    def file_of(self, column: str) -> str:
        """The name of the file that this column comes from."""
        return self.files.get(column, self.name)

    def text(self, row: Record, column: str, line: int) -> str:
        """The text in a column of a row; a number as its digits, and "" where it is missing.

        Raises:
            DataError: it is no text; names file, line, and the column of the file.
        """
        value = row[column]
        if type(value) is str and value.isascii():  # the usual case, quickly
            return value
        if value is None:
            return ""
        return text_of(self.columns.get(column, column), value, (self.file_of(column), line))

    def texts(self) -> Iterator[str]:
        """All columns of all rows one after the other, for example to train a tokenizer."""
        for line, row in self.numbered():
            for column, value in row.items():
                yield (
                    value
                    if type(value) is str and value.isascii()
                    else self.text(row, column, line)
                )

    def mapped(self, change: Callable[[Numbered], Numbered], **columns: Column) -> RowReader:
        """The reader of what `change` makes of the numbered rows, which has these columns, too."""
        read = self.read
        return replace(self, read=lambda: change(read()), columns={**self.columns, **columns})

    def only(self, chosen: np.ndarray) -> RowReader:
        """The rows, counted from 0, where `chosen` (N,) is true."""
        return self.mapped(lambda numbered: compress(numbered, chosen))

    def first(self, count: int) -> RowReader:
        """The first `count` rows; what follows them is not read."""
        return self.mapped(lambda numbered: islice(numbered, count))


def _watched_blocks(
    blocks: Iterator[list[str]], delimiter: str, spaced: list[str]
) -> Iterator[Iterable[str]]:
    """The blocks of lines; lines of one in which a field may begin with a space and a quote are
    also put into `spaced`.
    """
    sign, before = f'{delimiter} "', list[str]()
    for block in blocks:
        text = "".join(block)
        doubled = (f'{sign}"{delimiter}', f'{sign}"\n', f'{sign}"\r', f'{sign}""', '\n "')
        if ' "' in text and (
            text.startswith(' "')
            or text.count(sign) != text.count(f'{sign}"')
            or any(part in text for part in doubled)
        ):
            spaced += before  # a row may have begun there
            yield _noted(block, spaced)
        else:
            yield block
        before = block


def _noted(block: list[str], spaced: list[str]) -> Iterator[str]:
    for line in block:
        spaced.append(line)
        yield line


# ------------------------------------------------------------------------------------- opening


_copied: ContextVar[Mapping[str, Any] | None] = ContextVar("copied", default=None)


@contextmanager
def reading_memory(copied: Mapping[str, Any]) -> Iterator[None]:
    """Inside, files that are copies of data in memory are not read, but the data are.

    copied: the data by the paths of their copies.
    """
    token = _copied.set(copied)
    try:
        yield
    finally:
        _copied.reset(token)


def open_table(
    source: Any,
    columns: Mapping[str, Column] | Sequence[Column] = (),
    *,
    format: str | None = None,
    header: bool | None = None,
    delimiter: str | None = None,
    keep_errors: bool = False,
    longest: int = LONGEST_LINE,
) -> RowReader:
    """The rows of a file, or of data in memory.

    source: the path of a file; or a DataFrame, a dataset, an Arrow table, a mapping from column to
        values, or anything that one can loop over and that gives mappings, sequences or texts. An
        iterator gives its rows once.
    columns: those of the rows, by name or by number from 0; or what each is called in the rows, and
        its name or number. (): all. `a.b` is field b of an object in column a.
    format: one of FORMATS; None: what the file's ending says (also before .gz, .bz2, .xz),
        and lines for any other ending.
    header: whether a table's first line holds names; None: that of CSV does, that of TSV if a
        column is given by name or none is. Without, the names are "0", "1", ...
    delimiter: the character between the fields of CSV, a comma without it.
    keep_errors: whether a row that cannot be read is its `DataError`, and is not raised.
    longest: the most bytes of a line of plain text.

    Raises:
        ConfigError: the format is unknown, or is not CSV and has a delimiter.
        DataError: columns or a header of plain text are asked for.
    """
    if isinstance(source, RowReader):
        return source
    if not isinstance(columns, Mapping):
        columns = {str(column): column for column in columns}
    if in_memory.is_path(source):
        path = str(source)
        source = (_copied.get() or {}).get(path, source)
    if not in_memory.is_path(source):
        items = source if isinstance(source, in_memory.Items) else in_memory.Items(source)
        read = lambda: _of_memory(items, columns)  # noqa: E731
        if format == "text":  # as a file of these lines is read
            read = lambda: _at_line_breaks(  # noqa: E731
                f"{row[TEXT].removesuffix(chr(10))}\n" for _, row in _of_memory(items, {})
            )
        return RowReader(items.name, read, columns)
    kind = _format_of(path, format, delimiter)
    if kind not in TABLES:
        if columns or header:
            problem = "is read as plain text, which has no columns and no header."
            raise DataError(path, None, problem, "If it is a table: format = 'tsv' or 'csv'.")
        if kind == "text":
            return RowReader(path, partial(_verbatim, path))
        return RowReader(path, partial(_of_lines, path, keep_errors, longest))
    fields = [*columns.values()]
    named = kind == "csv" or not fields or any(isinstance(field, str) for field in fields)
    undecided = header is None and not named and kind == "tsv"
    table = _Table(path, columns, named if header is None else header, undecided, keep_errors)
    of_table = {"csv": table.csv, "tsv": table.tsv, "jsonl": table.jsonl, "parquet": table.parquet}
    return RowReader(path, lambda: of_table[kind](delimiter or ","), columns)


def _format_of(path: str, format: str | None, delimiter: str | None) -> str:
    chosen = format or ("csv" if delimiter else ENDINGS.get(ending(path), "lines"))
    check_choice("format", chosen, FORMATS)
    if delimiter and (chosen != "csv" or len(delimiter) != 1 or delimiter in '"\r\n'):
        raise ConfigError(f"`delimiter` must be a character of CSV files, but is {delimiter!r}.")
    return chosen


def read_parallel(**paths: str | PathLike[str]) -> RowReader:
    """Rows with a column for each of these files of lines: line i of each. Unequal length is an
    error when they are read.
    """
    files = {column: str(path) for column, path in paths.items()}
    return RowReader(next(iter(files.values())), lambda: _side_by_side(files), files=files)


def _side_by_side(files: Mapping[str, str]) -> Numbered:
    streams, number = [lines(path) for path in files.values()], 0
    while True:
        heads = [next(stream, None) for stream in streams]
        if None in heads:
            break
        number += 1
        yield number, dict(zip(files, heads, strict=True))
    counts = [
        number + (head is not None) + sum(1 for _ in stream)
        for head, stream in zip(heads, streams, strict=True)
    ]
    paths = [*files.values()]
    if 0 in counts:
        raise DataError(paths[counts.index(0)], None, "is empty: it has not one row.")
    if len(set(counts)) > 1:
        sizes = zip(paths, counts, strict=True)
        listed = " and ".join(f"{path} has {count:,} lines" for path, count in sizes)
        hint = "Line i of one must translate line i of the other; compare their ends."
        raise DataError(paths[0], None, f"parallel files have {listed}.", hint)


# ------------------------------------------------------------------------------------- plain text


def _of_lines(path: str, keep_errors: bool, longest: int) -> Numbered:
    blocks = blocks_of_file(path, longest, keep_errors)
    for number, line in enumerate(chain.from_iterable(map(without_ends, blocks)), 1):
        yield number, line if isinstance(line, DataError) else {TEXT: line}


def _verbatim(path: str) -> Numbered:
    """Plain text with its line breaks: the rows, joined, are the file (less a byte order mark).

    A row begins at a line break after a line that is not blank. Tokenizers begin a token there,
    too, so that the rows have the same tokens as the whole text.
    """
    return _at_line_breaks(chain.from_iterable(blocks_of_file(path, LONGEST_TEXT)))


def _at_line_breaks(text_lines: Iterable[str]) -> Numbered:
    """The rows of `_verbatim` from lines with their ends."""
    begun, held = 1, ""
    for number, line in enumerate(text_lines, 1):
        text = line.rstrip("\r\n")
        if not text or text[-1].isspace():
            held += line
            continue
        yield begun, {TEXT: held + text}
        begun, held = number, line[len(text) :]
    if held:
        yield begun, {TEXT: held}


# ------------------------------------------------------------------------------------- tables


@dataclass(frozen=True)
class _Table:
    """A file whose rows have columns; see `open_table`.

    undecided: whether nothing says that the first line is a header or that it is none; it is an
        example then, unless all its fields are usual names of columns, which is an error.
    """

    path: str
    columns: Mapping[str, Column]
    header: bool
    undecided: bool
    keep_errors: bool

    def jsonl(self, delimiter: str) -> Numbered:
        """The objects of lines that are not blank; or the items of a list, the whole file."""
        with open_bytes(self.path) as stream:
            is_list = stream.read(1) == b"["
        if is_list:
            value = json_value("".join(lines(self.path, LONGEST_TEXT)), self.path)
            yield from _of_memory(in_memory.Items(value, self.path), self.columns)
            return
        blocks = blocks_of_file(self.path, keep_errors=self.keep_errors)
        for number, line in enumerate(chain.from_iterable(blocks), 1):
            try:
                if isinstance(line, DataError):
                    raise line
                if line.strip():
                    record = self._object(line, number)
                    yield number, chosen_values(record, self.columns, (self.path, number))
            except DataError as error:
                if not self.keep_errors:
                    raise
                yield number, error

    def _object(self, line: str, number: int) -> Record:
        record = json_value(line.rstrip("\r\n"), self.path, number)
        if not isinstance(record, dict):
            problem = f"must be a JSON object, but is a {type(record).__name__}."
            raise DataError(self.path, number, problem, 'Write {"name": "value", …} on each line.')
        return record

    def parquet(self, delimiter: str) -> Numbered:
        """The rows, read in batches; of the columns those that are chosen."""
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise MissingExtra("pyarrow", "data", "Reading Parquet") from error
        check_file(Path(self.path))
        try:
            # Without a buffer size, a whole row group would be in memory.
            with pyarrow.parquet.ParquetFile(self.path, buffer_size=BATCH_BYTES) as file:
                present, wanted = file.schema_arrow.names, self.columns.values()
                check_unique(self.path, present)
                names = {f if f in present else str(f).split(".")[0] for f in wanted}
                for name in sorted(names - set(present)):
                    raise unknown_column((self.path, None), name, present)
                batches = file.iter_batches(BATCH_ROWS, columns=sorted(names) or None)
                records = chain.from_iterable(batch.to_pylist() for batch in batches)
                for number, record in enumerate(records, 1):
                    yield number, chosen_values(record, self.columns, (self.path, number))
        except (pyarrow.ArrowException, ValueError, OverflowError, OSError) as error:
            raise DataError(self.path, None, f"cannot be read as Parquet: {error}.") from error

    def tsv(self, delimiter: str) -> Numbered:
        """The rows of a TSV file that are not blank; quotes are characters like others."""
        blocks = blocks_of_file(self.path, keep_errors=self.keep_errors)
        return self._named(
            (number, line if isinstance(line, DataError) else line.split("\t"))
            for number, line in enumerate(chain.from_iterable(map(without_ends, blocks)), 1)
            if line
        )

    def csv(self, delimiter: str) -> Numbered:
        """The rows of a CSV file that are not blank."""
        return self._named(csv_rows(self.path, delimiter))

    def _named(self, rows: Iterator[tuple[int, Any]]) -> Numbered:
        """The fields of rows by column; the header, the first line, names them, or their number.

        Raises:
            DataError: also if a row has another number of fields than the first.
        """
        if (head := next(rows, None)) is None:
            return
        first_line, first = head
        if isinstance(first, DataError):
            raise first
        width, names = len(first), first if self.header else list(map(str, range(len(first))))
        rows = rows if self.header else chain([head], rows)
        columns, pick = [*(self.columns or names)], None
        wanted = self.columns.values()
        check_unique(self.path, [name for name in names if not wanted or name in wanted])
        for number, fields in rows:
            if type(fields) is not list or len(fields) != width:
                error = fields
                if type(fields) is list:
                    counts = f"has {len(fields)} fields, but line {first_line} has {width}."
                    hint = f"The first has: {', '.join(first)}." if self.header else ""
                    error = DataError(self.path, number, delimiter_hint(first) + counts, hint)
                if not self.keep_errors:
                    raise error
                yield number, error
                continue
            if pick is None:
                pick = itemgetter(*self._indices(names, number), 0)  # one more: a tuple in any case
                self._check_header(pick(fields)[:-1], number)
            yield number, dict(zip(columns, pick(fields)))  # noqa: B905

    def _indices(self, names: Sequence[str], line: int) -> Iterator[int]:
        """The numbers of the columns among the fields of a row."""
        for column in self.columns.values() if self.columns else names:
            if isinstance(column, int) and self.header and 0 <= column < len(names):
                yield column
                continue
            name = column if self.header else str(column)
            if name not in names:
                raise unknown_column((self.path, line), name, names)
            yield names.index(str(name))

    def _check_header(self, first: Sequence[str], line: int) -> None:
        """Check that the first row of an undecided table is probably no header."""
        usual = COLUMNS.issuperset(in_memory.plain_names(first))
        if self.undecided and 1 < len(first) == len({*first}) and usual:
            problem = f"may hold the names of the columns: {', '.join(first)}."
            hint = (
                "Give `columns` by these names, or write header = true in [data]; "
                "header = false, if the line is an example."
            )
            raise DataError(self.path, line, problem, hint)


def csv_rows(path: str | Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """The rows of a CSV file that are not blank, each with the number of the line it begins on.

    A quoted field may contain line breaks; a doubled quote in it stands for one.

    Raises:
        DataError: a row is not CSV or too long.
    """
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_LINE))
    begun, spaced = 1, list[str]()  # lines of the current row, where a quote may be behind a space
    blocks = _watched_blocks(blocks_of_file(path), delimiter, spaced)
    table = csv.reader(chain.from_iterable(blocks), delimiter=delimiter, strict=True)
    try:
        for fields in table:
            if spaced:  # a field in quotes has its own quotes twice
                for text in fields:
                    if text[:2] == ' "' and not any('" ""' in line for line in spaced):
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


# ------------------------------------------------------------------------------------- memory


def _of_memory(items: in_memory.Items, columns: Mapping[str, Column]) -> Numbered:
    """The items as rows, with plain values."""
    by_number = bool(columns) and all(isinstance(field, int) for field in columns.values())
    width: int | None = None
    for number, item in items():
        location = items.name, number
        if type(item) in (list, tuple):
            width = len(item) if width is None else width
            if len(item) != width:
                raise DataError(*location, f"has {len(item)} fields, but row 1 has {width}.")
        record = item if type(item) is dict else in_memory.record_of(item, location, by_number)
        values = chosen_values(record, columns, location).items()
        yield number, {name: v if type(v) is str else in_memory.plain(v) for name, v in values}


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


def chosen_values(
    record: Mapping[Any, Any], columns: Mapping[str, Column], location: Location
) -> Record:
    """The values of these columns under their names in rows; without columns the record itself.

    Raises:
        DataError: the record lacks one.
    """
    if not columns:
        return record if isinstance(record, dict) else dict(record)
    try:
        return {name: record[field] for name, field in columns.items()}
    except KeyError:
        return {name: field_value(record, field, location) for name, field in columns.items()}


def field_value(record: Mapping[Any, Any], name: Column, location: Location) -> Any:
    """The value of a field: `a.b` is `record["a"]["b"]`.

    Raises:
        DataError: it is missing; the message names those that are there.
    """
    value: Any = record
    whole = name in record or not isinstance(name, str)
    for part in [name] if whole else str(name).split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise unknown_column(location, name, value if isinstance(value, Mapping) else ())
        value = value[part]
    return value


def text_of(name: Column, value: object, location: Location) -> str:
    """The value of field `name` as text that can be written as UTF-8; a number as its digits.

    Raises:
        DataError: it is something else, or has half of a surrogate pair.
    """
    value = value if isinstance(value, str) else in_memory.plain(value)
    if isinstance(value, int | float):
        return str(value)
    if not isinstance(value, str):
        kind = "missing (null)" if value is None else f"a {type(value).__name__}"
        hint = "Leave such rows out." if value is None else ""
        raise DataError(*location, f"field {name!r} must be text, but is {kind}.", hint)
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


def unknown_column(location: Location, name: Column, present: Iterable[Column]) -> DataError:
    """The error for a column that is not there, with those that are."""
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
        first = next(iter(table))
        written = list(first.values() if kind in ("csv", "tsv") else first)
    except DataError:  # is raised again where the rows are read
        return ()
    if len({*in_memory.plain_names(written)}) == len(written):
        with suppress(ConfigError):
            return tuple(map(str, in_memory.infer_columns([dict.fromkeys(written, "")])))
    listed = ", ".join(name[:40] for name in written)
    raise ConfigError(
        f"{path}: {delimiter_hint(written)}the columns are {listed}, and their names do not say "
        "which hold texts and which the target. Name them in [data], in this order: columns = "
        "[text column, label column]; or, if the first line of a CSV or TSV file is an example, "
        "write header = false."
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
    columns: dict[str, Column] = {} if labels is None else {"label": labels}
    if ending(path) in ENDINGS:
        names = [*next(iter(open_table(path)))]
        texts = in_memory.text_columns_among([name for name in names if name != labels])
        if len(texts) != 1:
            problem = f"has the columns {', '.join(names)}; their names do not say which is a text."
            raise DataError(path, None, problem, "Rename it to text.")
        columns[TEXT] = texts[0]
    reader = open_table(path, columns)
    rows = [
        {column: reader.text(row, column, line) for column in row}
        for line, row in reader.numbered()
    ]
    rows = [row for row in rows if row[TEXT].strip()]
    if not rows:
        raise DataError(path, None, "has no text: every row is blank.", "Give one text a line.")
    if len(rows) > most:
        hint = f"Give some of them: shuf -n {most} {path}"
        raise DataError(path, None, f"has {len(rows):,} texts; at most {most:,} are taken.", hint)
    return [row[TEXT] for row in rows], [row["label"] for row in rows if labels is not None]
