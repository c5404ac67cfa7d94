"""Documents: texts with a beginning and an end, in files of any size.

A document is a row of a file (a line, or a field of a JSONL, CSV or Parquet row), the lines between
two blank lines, or a whole file. It is read in passages, so that no document is in memory as a
whole: a passage begins at a line break, where tokenizers begin a token, too.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from regard.data.files import ENDINGS, LONGEST_TEXT, ending, split_member
from regard.data.readers import LineReader, Row, RowReader, VerbatimReader, read
from regard.errors import ConfigError, DataError

Separator = Literal["rows", "blank-lines", "files"]


class DocumentPassage(NamedTuple):
    """A part of a document that begins at a line break.

    line: of the file, from 1.  first, last: whether a document begins and ends with it.
    """

    text: str
    file: str
    line: int
    first: bool
    last: bool


@dataclass(frozen=True)
class Documents:
    """The documents of several readers, one reader after the other; it can be looped over again.

    separator: what a document is: each of the "rows"; what is between "blank-lines"; or all of a
        reader ("files").
    files: those that are read, for checksums and progress; () where the data are no files.
    """

    readers: tuple[RowReader, ...]
    separator: Separator = "rows"
    files: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[DocumentPassage]:
        """The passages of all documents.

        Raises:
            DataError: a file cannot be read, or has no document.
        """
        for reader in self.readers:
            rows, file = reader.numbered(), reader.file_of(0)
            if self.separator == "rows":
                for line, row in rows:
                    yield DocumentPassage(_single_field(row, file, line), file, line, True, True)
            elif self.separator == "files":
                yield from _document((line, row[0], file) for line, row in rows)
            else:
                yield from _between_blank_lines(rows, file)

    def texts(self) -> Iterator[str]:
        """All passages one after the other, for example to train a tokenizer."""
        return (passage.text for passage in self)


def read_documents(
    files: str | PathLike[str] | Iterable[str | PathLike[str]],
    documents: Separator | None = None,
    *,
    field: str | int | None = None,
) -> Documents:
    """The documents of files, or of all files in folders, in the order of their names.

    documents: what a document is: one of the "rows", what is between "blank-lines", or one of the
        "files". None: rows of tables (JSONL, CSV, TSV, Parquet), for other files what is between
        blank lines.
    field: of tables: the column with the text, by name or by number from 0.

    Raises:
        ConfigError: there are no files, or `documents` is something else.
        DataError: a folder has no files, a table is not read by rows, or `field` is that of plain
            text.
    """
    if documents is not None and documents not in get_args(Separator):
        separators = ", ".join(get_args(Separator))
        raise ConfigError(f"`documents` must be one of {separators}, but is {documents!r}.")
    sources = [files] if isinstance(files, str | PathLike) else list(files)
    if not sources:
        raise ConfigError("`files` must name at least one file or folder, but is empty.")
    paths = [path for source in sources for path in _files_in(str(source))]
    tables = [path for path in paths if ending(path) in ENDINGS]
    separator = documents or ("rows" if len(tables) == len(paths) else "blank-lines")
    if tables and separator != "rows":
        problem = "is a table, each row of which is a document."
        hint = "Read it separately from plain text, with documents = 'rows'."
        raise DataError(tables[0], None, problem, hint)
    if field is not None and not tables:
        raise DataError(paths[0], None, f"is plain text, which has no field {field!r}.")
    columns = () if field is None else (field,)
    readers = [
        read(path, columns if path in tables else ())
        if separator == "rows"
        else LineReader(path, LONGEST_TEXT)
        if separator == "blank-lines"
        else VerbatimReader(path)
        for path in paths
    ]
    return Documents(tuple(readers), separator, tuple(paths))


def _files_in(path: str) -> Sequence[str]:
    """The path, or the files of the folder that it is."""
    if split_member(path)[1] or not Path(path).is_dir():
        return [path]
    names = [file.relative_to(path) for file in sorted(Path(path).rglob("*")) if file.is_file()]
    paths = [str(Path(path) / n) for n in names if not any(p.startswith(".") for p in n.parts)]
    if not paths:
        raise DataError(path, None, "is a folder without files.")
    return paths


def _single_field(row: Row, file: str, line: int) -> str:
    """The one field of a row."""
    if len(row) != 1:
        problem = f"has {len(row)} fields, but a document is one text."
        raise DataError(file, line, problem, "Choose one: field = 'text'.")
    return row[0]


def _document(passages: Iterator[tuple[int, str, str]]) -> Iterator[DocumentPassage]:
    """One document: (line, text, file) of each of its passages."""
    held = next(passages, None)
    first = True
    while held is not None:
        line, text, file = held
        held = next(passages, None)
        yield DocumentPassage(text, file, line, first, held is None)
        first = False


def _between_blank_lines(rows: Iterator[tuple[int, Row]], file: str) -> Iterator[DocumentPassage]:
    """The lines between blank lines; each but the first of a document with the break before it."""
    held: DocumentPassage | None = None
    empty = True
    for line, (text,) in rows:
        if not text or text.isspace():
            if held is not None:
                yield held._replace(last=True)
            held = None
            continue
        empty = False
        if held is None:
            held = DocumentPassage(text, file, line, True, False)
        else:
            yield held
            held = DocumentPassage("\n" + text, file, line, False, False)
    if held is not None:
        yield held._replace(last=True)
    if empty:
        raise DataError(file, None, "has no document: it is empty, or all its lines are blank.")
