"""A text as tokens: ids, names and where they stand in the text."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Encoding:
    """A text as tokens.

    offsets: the (start, end) of each token in characters of the text: `text[start:end]` is its text
        before lower-casing and the like. Several byte-level tokens of one character all have the
        offsets of that character; the space before a byte-level token is part of it.
    """

    ids: list[int]
    tokens: list[str]
    offsets: list[tuple[int, int]]

    def __len__(self) -> int:
        return len(self.ids)
