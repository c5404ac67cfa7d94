"""Tagged words in columns, as in the CoNLL shared tasks: one word a line, its tag beside it.

Sentences end with a blank line. A line that begins with -DOCSTART- marks a document. One that
begins with `# ` before the words of a sentence is a comment; but `# NN` is a word with its tag if
`NN` has been a tag before. Both are counted in the report.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from os import PathLike
from typing import Any, NamedTuple

from regard.data.datasets.records import RecordReader, Source, items_of
from regard.data.files import ending, lines
from regard.data.readers import Location, field_value, text_of
from regard.data.token_arrays import ReadReport
from regard.errors import DataError
from regard.habit_names import TAGS, WORDS

_DOCUMENT = "-DOCSTART-"
CONLLU = ".conllu"
CONLLU_COLUMNS = (1, 3)  # FORM and UPOS


class TaggedSentence(NamedTuple):
    """Words and as many tags."""

    words: tuple[str, ...]
    tags: tuple[str, ...]


def read_conll(
    data: str | PathLike[str] | Iterable[Any],
    *,
    words: int | None = None,
    tags: int | None = None,
    header: bool | None = None,
) -> RecordReader[TaggedSentence]:
    """The sentences of a file of columns, or of anything to loop over that gives pairs.

    Columns are separated by tabs if the first line with a word has one, otherwise by spaces, and
    every line has as many as that one. In CoNLL-2003 the last column holds entities, 1 parts of
    speech, 2 chunks. Tags are not changed.

    data: a file of columns; a `.jsonl` file of objects {"words": […], "tags": […]}; or such
        mappings or pairs (words, tags) to loop over. In a mapping the words may be called tokens,
        and the tags ner_tags and so on (`regard.habit_names`)
    words, tags: the columns of both, from 0, or from the end below 0; None: the first and the last
        one, or in a file that ends in .conllu the forms and the universal parts of speech
    header: whether the first line of a file of columns holds their names, and no word; None: it
        does not

    Raises:
        DataError: when it is read, for a malformed line or item.
    """
    return RecordReader(
        data, partial(_sentences, columns=(words, tags), header=header), "sentence", unit="line"
    )


def default_columns(path: str) -> tuple[int, int]:
    """The columns of words and tags of a file, where none are named."""
    return CONLLU_COLUMNS if ending(path) == CONLLU else (0, -1)


def _sentences(
    source: Source, report: ReadReport, columns: tuple[int | None, int | None], header: bool | None
) -> Iterator[tuple[int, TaggedSentence]]:
    items = items_of(source)
    if items is None:
        words, tags = (
            default if column is None else column
            for column, default in zip(columns, default_columns(str(source)), strict=True)
        )
        table = _Columns(str(source), (words, tags), header)
        sentences = _from_columns(str(source), report, table)
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
        kind = _DOCUMENT if line.startswith(_DOCUMENT) else ""
        kind = "comment" if not held and table.is_comment(line) else kind
        if kind:
            report.note(f"{kind} line left out", number)
        if table.joins_words(line):
            continue
        if not kind and line.strip(" \t") and not table.is_header(number):
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
        self.conllu, self.tags = ending(path) == CONLLU, set[str]()

    def is_header(self, number: int) -> bool:
        """Whether a line is the header."""
        return number == 1 and self.header is True

    def is_comment(self, line: str) -> bool:
        """Whether a line before the words of a sentence is a comment."""
        if self.conllu or not line.startswith("# "):
            return self.conllu and line.startswith("#")
        fields = self._fields(line)
        return len(fields) != self.width or fields[self.chosen[1]] not in self.tags

    def joins_words(self, line: str) -> bool:
        """Whether a line of CoNLL-U is of several words (2-3), or of one that is not in the text
        (3.1).
        """
        return self.conllu and not line.partition("\t")[0].isdecimal() and "\t" in line

    def _fields(self, line: str) -> list[str]:
        # Only spaces separate: other white space, such as U+00A0, may be part of a word.
        return [part for part in line.split(self.separator) if part or self.separator == "\t"]

    def cells(self, number: int, line: str) -> tuple[str, str]:
        """The word and the tag of a line."""
        if not self.width and "\t" in line:
            self.separator = "\t"
        fields = self._fields(line)
        if not self.width:
            self._decide(number, len(fields))
        if len(fields) != self.width:
            problem = f"has {_columns(len(fields))}, but line {self.first} has {self.width}."
            hint = "Each word has its line, with as many columns; a blank line ends a sentence."
            raise DataError(self.path, number, problem, hint)
        word, tag = (fields[column] for column in self.chosen)
        if not word.strip() or not tag.strip():
            raise DataError(self.path, number, f"its {'tag' if word.strip() else 'word'} is empty.")
        self.tags.add(tag)
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
    if not all(map(str.strip, tags)):
        raise DataError(*location, "a tag is empty.")
    return TaggedSentence(words, tags)
