"""Tagged words in columns, as in the CoNLL shared tasks: one word a line, its tag beside it.

Sentences end with a blank line. A line that begins with -DOCSTART- marks a document; it is no word,
and is counted in the report.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from os import PathLike
from typing import Any, NamedTuple

from regard.data.datasets.records import RecordReader, Source, items_of
from regard.data.files import lines
from regard.data.readers import Location, field_value, text_of
from regard.data.token_arrays import ReadReport
from regard.errors import DataError
from regard.habit_names import TAGS, WORDS

_DOCUMENT = "-DOCSTART-"


class TaggedSentence(NamedTuple):
    """Words and as many tags."""

    words: tuple[str, ...]
    tags: tuple[str, ...]


def read_conll(
    data: str | PathLike[str] | Iterable[Any],
    *,
    words: int = 0,
    tags: int = -1,
    header: bool | None = None,
) -> RecordReader[TaggedSentence]:
    """The sentences of a file of columns, or of anything to loop over that gives pairs.

    Columns are separated by tabs if the first line with a word has one, otherwise by spaces, and
    every line has as many as that one. In CoNLL-2003 the last column holds entities, 1 parts of
    speech, 2 chunks. Tags are not changed.

    data: a file of columns; a `.jsonl` file of objects {"words": […], "tags": […]}; or such
        mappings or pairs (words, tags) to loop over. In a mapping the words may be called tokens,
        and the tags ner_tags and so on (`regard.habit_names`)
    words, tags: the columns of both, from 0, or from the end below 0
    header: whether the first line of a file of columns holds their names, and no word; None: it
        does not

    Raises:
        DataError: when it is read, for a malformed line or item.
    """
    return RecordReader(
        data, partial(_sentences, columns=(words, tags), header=header), "sentence", unit="line"
    )


def _sentences(
    source: Source, report: ReadReport, columns: tuple[int, int], header: bool | None
) -> Iterator[tuple[int, TaggedSentence]]:
    items = items_of(source)
    if items is None:
        sentences = _from_columns(str(source), report, _Columns(str(source), columns, header))
    else:
        sentences = (
            (number or 0, _from_item(item, (name, number))) for (name, number), item in items
        )
    for numbered_sentence in sentences:
        report.read += 1
        yield numbered_sentence


def _from_columns(
    path: str, report: ReadReport, table: _Columns
) -> Iterator[tuple[int, TaggedSentence]]:
    begun = 0
    held: list[tuple[str, str]] = []
    for number, line in enumerate(lines(path), 1):
        document = line.startswith(_DOCUMENT)
        if document:
            report.note(f"{_DOCUMENT} line left out", number)
        if not document and line.strip(" \t") and not table.skips(number):
            begun = begun if held else number
            held.append(table.cells(number, line))
        elif held:
            yield begun, TaggedSentence(*zip(*held, strict=True))
            held = []
    if held:
        yield begun, TaggedSentence(*zip(*held, strict=True))


class _Columns:
    """Lines cut into columns; the first line decides the separator and the number."""

    def __init__(self, path: str, chosen: tuple[int, int], header: bool | None):
        self.path, self.chosen, self.header = path, chosen, header
        self.separator, self.width, self.first = " ", 0, 0

    def skips(self, number: int) -> bool:
        """Whether a line is the header."""
        return number == 1 and self.header is True

    def cells(self, number: int, line: str) -> tuple[str, str]:
        """The word and the tag of a line."""
        if not self.width and "\t" in line:
            self.separator = "\t"
        # Only spaces separate: other white space, such as U+00A0, may be part of a word.
        fields = [part for part in line.split(self.separator) if part or self.separator == "\t"]
        if not self.width:
            self._decide(number, len(fields))
        if len(fields) != self.width:
            problem = f"has {_columns(len(fields))}, but line {self.first} has {self.width}."
            hint = "Each word has its line, with as many columns; a blank line ends a sentence."
            raise DataError(self.path, number, problem, hint)
        word, tag = (fields[column] for column in self.chosen)
        if not word.strip() or not tag.strip():
            raise DataError(self.path, number, f"its {'tag' if word.strip() else 'word'} is empty.")
        return word, tag

    def _decide(self, number: int, width: int) -> None:
        if width < 2:
            problem = "has one column, but a word and its tag are needed."
            raise DataError(self.path, number, problem)
        for column in self.chosen:
            if not -width <= column < width:
                problem = f"has {_columns(width)}, but column {column} is wanted (the first is 0)."
                raise DataError(self.path, number, problem)
        self.width, self.first = width, number


def _columns(count: int) -> str:
    return f"{count} column{'s' if count != 1 else ''}"


def _from_item(item: object, location: Location) -> TaggedSentence:
    if isinstance(item, Mapping):
        mapping = item
        item = tuple(
            field_value(
                mapping, next((name for name in known if name in mapping), known[0]), location
            )
            for known in (WORDS, TAGS)
        )
    if not isinstance(item, Sequence) or isinstance(item, str) or len(item) != 2:
        raise DataError(*location, "must be a pair: a list of words and a list of tags.")
    if any(isinstance(part, str) or not isinstance(part, Sequence) for part in item):
        raise DataError(*location, "words and tags must each be a list.")
    words, tags = (tuple(text_of(i, v, location) for i, v in enumerate(part)) for part in item)
    if not words or len(words) != len(tags):
        problem = f"has {len(words)} words and {len(tags)} tags; each word needs one."
        raise DataError(*location, problem)
    return TaggedSentence(words, tags)
