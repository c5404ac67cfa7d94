"""Annotated sentences: tagged words in columns, and constituency trees in brackets.

Tagged words in columns, as in the CoNLL shared tasks: one word a line, its tag beside it.

Sentences end with a blank line. A line that begins with -DOCSTART- marks a document. One that
begins with `# ` before the words of a sentence, and has not as many columns, is a comment. Both are
counted in the report.

Constituency trees in brackets, as the Penn Treebank and its parsers write them.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from os import PathLike
from typing import Any, NamedTuple

from regard.data.datasets.records import Source, items_of, record_reader
from regard.data.files import ending, lines
from regard.data.readers import Location, Numbered, ReadReport, RowReader, field_value, text_of
from regard.errors import DataError
from regard.habit_names import TAGS, WORDS
from regard.text.trees import ConstituencyTree, TreeError, numbered_trees, read_trees, simplified

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
) -> RowReader:
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
    read = partial(_sentences, columns=(words, tags), header=header)
    return record_reader(data, read, "sentence")


def _sentences(
    source: Source, report: ReadReport, columns: tuple[int | None, int | None], header: bool | None
) -> Numbered:
    items = items_of(source)
    if items is None:
        usual = CONLLU_COLUMNS if ending(str(source)) == CONLLU else (0, -1)
        words, tags = (
            default if column is None else column
            for column, default in zip(columns, usual, strict=True)
        )
        sentences = _from_columns(str(source), report, (words, tags), header)
    else:
        sentences = (
            (number or 0, _tagged_sentence(item, (name, number))) for (name, number), item in items
        )
    for numbered_sentence in sentences:
        report.read += 1
        yield numbered_sentence


def _from_columns(
    path: str, report: ReadReport, columns: tuple[int, int], header: bool | None
) -> Numbered:
    begun, width = 0, 0
    separator, conllu = " ", ending(path) == CONLLU
    held: list[tuple[str, str]] = []
    for number, line in enumerate(lines(path), 1):
        kind = _DOCUMENT if line.startswith(_DOCUMENT) else ""
        if not held and line.startswith("#" if conllu else "# "):
            kind = "comment" if conllu or len(line.split(separator)) != width else ""
        if kind:
            report.note(f"{kind} line left out", number)
        if conllu and "\t" in line and not line.partition("\t")[0].isdecimal():
            continue  # several words (2-3), or one that is not in the text (3.1)
        if not kind and line.strip(" \t") and not (number == 1 and header):
            begun = begun if held else number
            separator = "\t" if not width and "\t" in line else separator
            # Only spaces separate: other white space, such as U+00A0, may be part of a word.
            fields = [part for part in line.split(separator) if part or separator == "\t"]
            width = width or len(fields)
            if len(fields) != width or not all(-width <= column < width for column in columns):
                problem = f"has {len(fields)} columns, but {width} are expected, of which "
                problem += f"{columns[0]} and {columns[1]} are read (the first is 0)."
                hint = "Each word has its line, with as many columns; a blank line ends a sentence."
                raise DataError(path, number, problem, hint)
            word, tag = (fields[column] for column in columns)
            if not word.strip() or not tag.strip() or width < 2:
                raise DataError(path, number, "must have a word and its tag.")
            held.append((word, tag))
        elif held:
            yield begun, TaggedSentence(*zip(*held, strict=True))
            held = []
    if held:
        yield begun, TaggedSentence(*zip(*held, strict=True))


def _tagged_sentence(item: object, location: Location) -> TaggedSentence:
    if isinstance(item, Mapping):
        mapping = item
        item = tuple(
            field_value(
                mapping, next((name for name in aliases if name in mapping), aliases[0]), location
            )
            for aliases in (WORDS, TAGS)
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


# ---------------------------------------------------------------------------------------- treebanks


def read_treebank(data: str | PathLike[str] | Iterable[Any]) -> RowReader:
    """The trees of a file in brackets, or of anything to loop over that gives trees.

    They are as parsers learn them: without traces, grammatical functions (NP-SBJ is NP) and
    brackets without a label, see `regard.text.trees.simplified`. A tree may take several lines. A
    tree without a word is left out and counted in the report.

    data: a file of brackets; a `.jsonl` file of objects {"tree": "(S ...)"}; or such mappings,
        brackets or trees to loop over

    Raises:
        DataError: when it is read, for malformed brackets.
    """
    return record_reader(data, _trees, "tree")


def _trees(source: Source, report: ReadReport) -> Numbered:
    items = items_of(source)
    numbered = (
        _from_brackets(str(source))
        if items is None
        else ((location[1] or 0, _tree_of_item(item, location)) for location, item in items)
    )
    for line, whole in numbered:
        report.read += 1
        tree = simplified(whole)
        if tree is None:
            report.note("tree without a word left out", line)
        else:
            yield line, tree


def _from_brackets(path: str) -> Numbered:
    try:
        yield from numbered_trees(lines(path))
    except TreeError as error:
        raise DataError(path, error.line, error.problem) from None


def _tree_of_item(item: object, location: Location) -> ConstituencyTree:
    if isinstance(item, dict):
        item = item.get("tree")
    if isinstance(item, ConstituencyTree):
        return item
    if not isinstance(item, str):
        raise DataError(*location, 'must be brackets, or an object {"tree": brackets}.')
    try:
        trees = read_trees(item)
    except TreeError as error:
        raise DataError(*location, error.problem) from None
    if len(trees) != 1:
        raise DataError(*location, f"must be one tree, but is {len(trees)}.")
    return trees[0]
