"""Prediction for the rows of a table: a copy of the table with the predictions as columns.

formats         CSV, TSV, JSONL and Parquet, by the endings of the files
memory          that of a thousand rows
"""

from __future__ import annotations

import csv
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

from regard.cli.console import to_json
from regard.data.arrow_tables import UnfitValue, table_of
from regard.data.readers import open_table
from regard.data.text_chunks import MAX_TEXTS, Chunk, is_blank
from regard.errors import ConfigError, DataError, MissingExtra
from regard.file_writing import replacing, sync
from regard.tasks.predicted_tables import (
    Record,
    check_columns,
    infer_columns,
    prediction_columns,
    texts_of_row,
)

if TYPE_CHECKING:
    from regard.tasks.task import Task

Predict = Callable[[Chunk], tuple[list[Record], DataError | None]]  # as `LinePredictor.predict`
ROW_GROUP = 1 << 20  # bytes of the rows that are written to a Parquet file at once


def check_output(file: Path, out: Path | None) -> Path:
    """The path of the output file.

    Raises:
        ConfigError: no path is given, its ending is not supported, or it is the input file.
    """
    if out is None:
        raise ConfigError(
            f"--file needs a file for the answers, such as --out answers{_ending(file)}."
        )
    if out.suffix not in WRITERS:
        raise ConfigError(f"--out must end in {', '.join(WRITERS)}, but is {out}.")
    if out.exists() and file.exists() and out.samefile(file):
        raise ConfigError(f"--out names the file that is read, {file}. Name another file.")
    return out


def _ending(file: Path) -> str:
    return file.suffix if file.suffix in WRITERS else ".csv"


def predict_file(
    task: Task, predict: Predict, path: Path, columns: Sequence[str], out: Path
) -> int:
    """Write the rows of a table with their predictions, all or nothing; returns their number.

    Raises:
        ConfigError: the names do not tell which columns are texts, or the task reads fewer.
        DataError: the file cannot be read, or a row has no prediction; the message has its line.
        CheckpointError: the file cannot be written.
    """
    count = 0
    with replacing(out) as temporary:
        with WRITERS[out.suffix](temporary, path) as writer:
            for rows in _predicted_rows(task, predict, path, columns):
                writer.write(rows)
                count += len(rows)
        sync(temporary)
    return count


def _predicted_rows(
    task: Task, predict: Predict, path: Path, columns: Sequence[str]
) -> Iterator[list[Record]]:
    """The rows with their predictions. All of them have the same columns of predictions.

    The prediction of the first text names the columns. Chunks of rows before it, which have no
    text, are read again then, so that no more than a chunk is in memory.
    """
    passed, names = 0, list[str]()
    for chunk in chunks_of_table(path, columns, task):
        results, error = predict(chunk)
        if error is not None:
            raise error
        added = [
            {} if is_blank(text) else prediction_columns(result)
            for text, result in zip(chunk.texts, results, strict=True)
        ]
        if not names and (names := list(next(filter(None, added), {}))):
            _check_new_columns(chunk, names)
            yield from _without_text(islice(chunks_of_table(path, columns, task), passed), names)
        if names:
            rows = zip(chunk.records, added, strict=True)
            yield [{**record, **dict.fromkeys(names), **more} for record, more in rows]
        else:
            passed += 1
    if not names:
        yield from _without_text(chunks_of_table(path, columns, task), ["prediction"])


def _without_text(chunks: Iterable[TableChunk], names: Sequence[str]) -> Iterator[list[Record]]:
    """The rows of chunks, with nothing in the columns of predictions."""
    for chunk in chunks:
        yield [{**record, **dict.fromkeys(names)} for record in chunk.records]


@dataclass(frozen=True)
class TableChunk(Chunk):
    """Rows of a table, with the line of the file on which each begins."""

    lines: list[int]
    records: list[dict[str, Any]]

    def line(self, index: int) -> int:
        return self.lines[index]


def chunks_of_table(path: Path, columns: Sequence[str], task: Task) -> Iterator[TableChunk]:
    """The rows of a CSV, TSV, JSONL or Parquet file; the texts are tuples of these columns.

    columns: names, or numbers from 0 of a table without a header; (): as the names say. A value
        that is missing is an empty text.

    Raises:
        ConfigError: the names do not tell which columns are texts.
        DataError: the file cannot be read, or a value is not a text.
    """
    file = open_table(path, header=not (columns and all(map(str.isdecimal, columns))))
    numbered, first = file.records(), 0
    while rows := list(islice(numbered, MAX_TEXTS)):
        columns = columns or infer_columns(path, rows[0][1])
        check_columns(task, columns, path)
        texts = [texts_of_row(record, columns, (path, line)) for line, record in rows]
        lines, records = map(list, zip(*rows, strict=True))
        yield TableChunk(first, texts, str(path), lines, records)
        first += len(rows)
    if not first:
        raise DataError(path, None, "is empty: it has not one row.")


def _check_new_columns(chunk: TableChunk, names: Sequence[str]) -> None:
    """Check that no column of the input has the name of a column that is added."""
    if both := {*names} & chunk.records[0].keys():
        problem = f"has a column {min(both)!r}, which is the name of a column of the predictions."
        raise DataError(chunk.origin, None, problem, "Rename it.")


class TableWriter(ABC):
    """Writes rows to a file. The first rows determine the columns."""

    def __init__(self, path: Path, source: Path):
        self.path, self.source = path, source

    @abstractmethod
    def write(self, rows: Sequence[Record]) -> None: ...

    @abstractmethod
    def __enter__(self) -> Self: ...

    @abstractmethod
    def __exit__(self, *error: object) -> None: ...


class TextTableWriter(TableWriter):
    """A file of text. Half of a surrogate pair, which UTF-8 does not have, becomes an escape."""

    file: IO[str]

    def __enter__(self) -> Self:
        self.file = self.path.open("w", encoding="utf-8", errors="backslashreplace", newline="")
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()


class JsonLinesWriter(TextTableWriter):
    """JSON Lines: an object in each line."""

    def write(self, rows: Sequence[Record]) -> None:
        self.file.writelines(to_json(row) + "\n" for row in rows)


class CsvWriter(TextTableWriter):
    """Columns between commas, after a header; lists and objects are JSON."""

    names: list[str] | None = None

    def write(self, rows: Sequence[Record]) -> None:
        if self.names is None:
            self.names = list(rows[0])
            self._write_lines([self.names])
        for row in rows:
            if extra := row.keys() - set(self.names):
                problem = f"has rows with the field {min(extra)!r}, which the first does not have."
                raise DataError(self.source, None, problem, "Write --out answers.jsonl instead.")
        self._write_lines([_cell(row.get(name)) for name in self.names] for row in rows)

    def _write_lines(self, lines: Any) -> None:
        csv.writer(self.file, lineterminator="\n").writerows(lines)


class TsvWriter(CsvWriter):
    """Columns between tabs, after a header; a tab or line break in a field becomes a space."""

    def _write_lines(self, lines: Any) -> None:
        for line in lines:
            fields = (" ".join(cell.replace("\t", " ").splitlines()) for cell in line)
            self.file.write("\t".join(fields) + "\n")


def _cell(value: Any) -> str:
    """A value as text; nothing is "", and what is neither text nor a date is JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else to_json(value).strip('"')


class ParquetWriter(TableWriter):
    """Parquet; columns have the types of a Parquet input, or of the first rows.

    Rows wait in Arrow tables until they are a row group of `ROW_GROUP` bytes: the file's footer,
    which is in memory until the end, describes every group.
    """

    writer: Any = None

    def __enter__(self) -> Self:
        try:
            import pyarrow.parquet
        except ImportError as error:
            raise MissingExtra("pyarrow", "data", "Writing Parquet") from error
        self.pyarrow = pyarrow
        self.path.touch()
        self.waiting: list[Any] = []
        return self

    def write(self, rows: Sequence[Record]) -> None:
        try:
            if self.writer is None:
                self.schema = self._schema(rows)
                self.writer = self.pyarrow.parquet.ParquetWriter(self.path, self.schema)
            self.waiting.append(table_of(rows, self.schema))
            if sum(table.nbytes for table in self.waiting) >= ROW_GROUP:
                self._write_waiting()
        except UnfitValue as error:
            raise DataError(self.source, None, str(error), "Write --out answers.jsonl.") from None
        except (self.pyarrow.ArrowException, TypeError, OverflowError) as error:
            problem = f"has values whose type differs from that of the first rows: {error}."
            raise DataError(self.source, None, problem, "Write --out answers.jsonl.") from None

    def _write_waiting(self) -> None:
        self.writer.write_table(self.pyarrow.concat_tables(self.waiting).combine_chunks())
        self.waiting = []

    def _schema(self, rows: Sequence[Record]) -> Any:
        pyarrow = self.pyarrow
        names = list(dict.fromkeys(name for row in rows for name in row))
        columns = {name: pyarrow.array([row.get(name) for row in rows]).type for name in names}
        kinds = {n: pyarrow.string() if k == pyarrow.null() else k for n, k in columns.items()}
        if self.source.suffix.lower() == ".parquet":
            read = pyarrow.parquet.read_schema(self.source)
            kinds |= {field.name: field.type for field in read}
        return pyarrow.schema(list(kinds.items()))

    def __exit__(self, *error: object) -> None:
        if self.writer is not None:
            if self.waiting and error[0] is None:
                self._write_waiting()
            self.writer.close()


WRITERS: dict[str, type[TableWriter]] = {
    ".csv": CsvWriter,
    ".tsv": TsvWriter,
    ".jsonl": JsonLinesWriter,
    ".parquet": ParquetWriter,
}
