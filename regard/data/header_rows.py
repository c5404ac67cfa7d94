"""First lines of tables that name the columns, though the columns were given by their numbers.

Such a line would be taken for an example: a text "text" of the class "label". An error says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from operator import contains

from regard.data.files import ENDINGS, ending
from regard.data.readers import Row, RowReader
from regard.errors import DataError
from regard.habit_names import TARGETS, TEXTS

# What columns of texts, of targets, and of words with their tags are often called.
OF_TEXTS = {name for names in TEXTS for name in names} | {
    *"body comment content context document headline hypothesis message phrase post query".split(),
    *"review sentence_a sentence_b text_a text_b title tweet utterance".split(),
}
OF_TARGETS = {
    *TARGETS,
    *"category classes emotion gold_label intent polarity rating sentiment similarity".split(),
    *"stars targets topic y".split(),
}
OF_SOURCES = {
    *"source src input document article body text question dialogue".split(),
    *"ar cs da de el en es fi fr hi hu it ja ko nl pl pt ro ru sv tr uk vi zh".split(),
    *"arabic chinese dutch english french german italian japanese polish portuguese".split(),
    *"russian spanish turkish".split(),
}
OF_OUTPUTS = OF_SOURCES | {*"target tgt output summary highlights subject answer".split()}
OF_WORDS = {*"form token tokens word words".split()}
OF_TAGS = {*"label labels ner ner_tag ner_tags pos pos_tag tag tags upos".split()}


def header_error(
    file: str, line: int, names: Sequence[str], known: Sequence[Set[str]], instead: str
) -> DataError | None:
    """The error for a line whose fields are all different and known names; None for any other.

    Args:
        known: for each of the fields the names that mark a header, in lower case.
        instead: what to write where the line is a header.
    """
    plain = [name.strip().lower().replace(" ", "_").replace("-", "_") for name in names]
    if len({*plain}) < len(plain) or not all(map(contains, known, plain)):
        return None
    problem = f"looks like a header: its fields are {', '.join(map(repr, names))}."
    return DataError(file, line, problem, f"If it is one, {instead}; if not, header = false.")


@dataclass(frozen=True, eq=False)
class WithoutHeader(RowReader):
    """The rows of a reader, one text or two and their target, with a look at the first of a table.

    inputs, outputs: the names of columns of both, in lower case.
    """

    reader: RowReader
    inputs: Set[str]
    outputs: Set[str]

    @property
    def may_have_header(self) -> bool:
        """See `RowReader`."""
        return self.reader.may_have_header

    def file_of(self, field: int) -> str:
        return self.reader.file_of(field)

    def numbered(self) -> Iterator[tuple[int, Row]]:
        """See `RowReader`.

        Raises:
            DataError: the first row has names of columns, and nothing says whether it is a header.
        """
        rows = self.reader.numbered()
        if self.may_have_header:
            line, names = first = next(rows)
            header_names = [*[self.inputs] * (len(names) - 1), self.outputs]
            named = ", ".join(f'"{name}"' for name in names)
            instead = f"write columns = [{named}] in [data]"
            if error := header_error(self.file_of(0), line, names, header_names, instead):
                raise error
            yield first
        yield from rows


def header_remarks(rows: RowReader, labels: Mapping[str, int]) -> list[str]:
    """A remark where the first line of a table may be a header that has no known names: its fields
    are single words, and its label is that of no other row though most labels recur.

    Args:
        labels: how many rows have each label.
    """
    if not rows.may_have_header or sum(labels.values()) <= 2 * len(labels):
        return []
    line, first = next(rows.numbered())
    if labels[first[-1]] > 1 or any(len(field.split()) != 1 for field in first):
        return []
    return [
        f"{rows.file_of(0)}:{line}: no other row has the label {first[-1]!r}. If this line is a "
        "header, write header = true in [data]; if not, header = false."
    ]


def header_hint(file: str, line: int) -> str:
    """What to do where a wrong target stands in what may be a header; "" elsewhere."""
    if line > 1 or ENDINGS.get(ending(file)) not in ("tsv", "csv"):
        return ""
    return (
        'If this line is a header, give the columns by name, such as columns = ["text", "label"].'
    )
