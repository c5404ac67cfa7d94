"""Tagged words in columns, as in the shared tasks of CoNLL: one word a line, one tag beside it.

Sentences end with a blank line. A line that begins with -DOCSTART- marks a document; it is no word,
and is counted in the report.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from os import PathLike
from typing import Any, NamedTuple

from regard.data.datasets.records import RecordReader, Source
from regard.data.files import ending, lines
from regard.data.readers import ItemReader, JsonLinesReader, found, text_of
from regard.data.token_arrays import ReadReport
from regard.errors import DataError

_DOCUMENT = "-DOCSTART-"


class TaggedSentence(NamedTuple):
    """Words and as many tags."""

    words: tuple[str, ...]
    tags: tuple[str, ...]


def read_conll(
    data: str | PathLike[str] | Iterable[Any], *, words: int = 0, tags: int = -1
) -> RecordReader[TaggedSentence]:
    """The sentences of a file of columns, or of anything to loop over that gives pairs.

    `words` and `tags` are columns, from 0, or from the end below 0: in CoNLL-2003 the last column
    holds entities, 1 parts of speech, 2 chunks. Columns are separated by tabs if the first line
    with a word has one, otherwise by spaces, and every line has as many as that one. Tags come out
    as they stand. Lines of a `.jsonl` file are objects {"words": […], "tags": […]}; items of other
    data are such mappings, or pairs (words, tags).
    """
    return RecordReader(data, partial(_sentences, columns=(words, tags)), "sentence", unit="line")


def _sentences(
    source: Source, report: ReadReport, columns: tuple[int, int]
) -> Iterator[tuple[int, TaggedSentence]]:
    if isinstance(source, ItemReader):
        passing = _given(source.file_of(0), source.whole())
    elif ending(source) in (".jsonl", ".ndjson"):
        passing = _given(source, JsonLinesReader(source, ()).records())
    else:
        passing = _grouped(source, report, columns)
    for number, sentence in passing:
        report.read += 1
        yield number, sentence


def _grouped(
    path: str, report: ReadReport, columns: tuple[int, int]
) -> Iterator[tuple[int, TaggedSentence]]:
    table, begun = _Columns(path, columns), 0
    held: list[tuple[str, str]] = []
    for number, line in enumerate(lines(path), 1):
        document = line.startswith(_DOCUMENT)
        if document:
            report.note(f"{_DOCUMENT} line left out", number)
        if not document and line.strip(" \t"):
            begun = begun if held else number
            held.append(table.cells(number, line))
        elif held:
            yield begun, _sentence(held)
            held = []
    if held:
        yield begun, _sentence(held)


def _sentence(cells: list[tuple[str, str]]) -> TaggedSentence:
    words, tags = zip(*cells, strict=True)
    return TaggedSentence(words, tags)


class _Columns:
    """Lines cut into columns, of which the first line decides the separator and the number."""

    def __init__(self, path: str, wanted: tuple[int, int]):
        self.path, self.wanted = path, wanted
        self.tab, self.width, self.first = False, 0, 0

    def cells(self, number: int, line: str) -> tuple[str, str]:
        """The word and the tag of a line."""
        if not self.width:
            self.tab = "\t" in line
        # Only spaces separate: other white space, such as U+00A0, may stand inside a word.
        fields = line.split("\t") if self.tab else [part for part in line.split(" ") if part]
        if not self.width:
            self._decide(number, len(fields))
        if len(fields) != self.width:
            problem = f"has {_columns(len(fields))}, but line {self.first} has {self.width}."
            hint = "Each word has its line, with as many columns; a blank line ends a sentence."
            raise DataError(self.path, number, problem, hint)
        word, tag = (fields[place] for place in self.wanted)
        if not word.strip() or not tag.strip():
            raise DataError(self.path, number, f"its {'tag' if word.strip() else 'word'} is empty.")
        return word, tag

    def _decide(self, number: int, width: int) -> None:
        if width < 2:
            problem = "has one column, but a word and its tag are needed."
            raise DataError(self.path, number, problem)
        for place in self.wanted:
            if not -width <= place < width:
                problem = f"has {_columns(width)}, but column {place} is wanted (the first is 0)."
                raise DataError(self.path, number, problem)
        self.width, self.first = width, number


def _columns(count: int) -> str:
    return f"{count} column{'s' if count != 1 else ''}"


def _given(name: str, items: Iterable[tuple[int, Any]]) -> Iterator[tuple[int, TaggedSentence]]:
    for number, item in items:
        if isinstance(item, Mapping):
            item = tuple(found(item, key, name, number) for key in ("words", "tags"))
        if not isinstance(item, Sequence) or isinstance(item, str) or len(item) != 2:
            raise DataError(name, number, "must be a pair: a list of words and a list of tags.")
        if any(isinstance(part, str) or not isinstance(part, Sequence) for part in item):
            raise DataError(name, number, "words and tags must each be a list.")
        words, tags = (tuple(text_of(name, number, i, v) for i, v in enumerate(p)) for p in item)
        if not words or len(words) != len(tags):
            problem = f"has {len(words)} words and {len(tags)} tags; each word needs one."
            raise DataError(name, number, problem)
        yield number, TaggedSentence(words, tags)
