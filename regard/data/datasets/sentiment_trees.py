"""Trees with a label at every node, as in the Stanford Sentiment Treebank (Socher et al. 2013).

    (3 (2 It) (4 (2 's) (4 (3 lovely) (2 .))))

One tree stands on a line. The label of a sentence is that of the whole tree, and every phrase has
one, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from os import PathLike

from regard.data.files import lines
from regard.data.readers import Row, RowReader
from regard.errors import DataError
from regard.text.trees import TOKEN, UNESCAPED


def read_sentiment_trees(
    path: str | PathLike[str], *, phrases: bool = False
) -> SentimentTreeReader:
    """Rows (text, label) of a file of trees: its sentences, words joined by spaces.

    phrases: every phrase, down to single words, instead of the sentences alone; the same text with
        the same label is one row, where it stands first. Sentences are phrases.

    Raises:
        DataError: when it is read, for a file that does not exist, malformed brackets, or a node
            without a label or without a word.
    """
    return SentimentTreeReader(str(path), phrases)


class SentimentTreeReader(RowReader):
    """See `read_sentiment_trees`."""

    def __init__(self, path: str, phrases: bool):
        self.path, self.phrases = path, phrases

    def file_of(self, field: int) -> str:
        return self.path

    def numbered(self) -> Iterator[tuple[int, Row]]:
        seen: set[Row] = set()
        empty = True
        for number, line in enumerate(lines(self.path), 1):
            try:
                nodes = _nodes(line)
            except ValueError as error:
                raise DataError(self.path, number, str(error)) from None
            empty = empty and not nodes
            if not self.phrases:
                yield from ((number, row) for row in nodes[-1:])
                continue
            for row in nodes:
                if row not in seen:
                    seen.add(row)
                    yield number, row
        if empty:
            raise DataError(self.path, None, "has no tree.")


def _nodes(line: str) -> list[Row]:
    """The text and the label of every node of a tree, those below it first; [] of an empty line.

    A word of the treebank may have a space ("3 1/2").

    Raises:
        ValueError: this is not one tree.
    """
    nodes: list[Row] = []
    open_labels: list[str] = []
    starts: list[int] = []  # the words before each open node
    words: list[str] = []
    before = ""
    for token in TOKEN.findall(line):
        if token == "(":
            if nodes and not starts:
                raise ValueError("has more than one tree.")
            starts.append(len(words))
            open_labels.append("")
        elif not starts:
            raise ValueError(f"has {token!r} outside of the tree.")
        elif token == ")":
            label, text = open_labels.pop(), " ".join(words[starts.pop() :])
            if not label or not text:
                raise ValueError(f"has a node without a {'word' if label else 'label'}.")
            nodes.append((text, label))
        elif before == "(":
            open_labels[-1] = token
        else:
            words.append(UNESCAPED.get(token, token))
        before = token
    if starts:
        raise ValueError(f"has {len(starts)} brackets that are not closed.")
    return nodes
