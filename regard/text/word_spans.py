"""The words of running text and where they stand: for tasks that label each word.

A word is a longest run of characters that are no white space, no punctuation and no symbol. One of
- ' ’ . _ & between two such characters belongs to the word (`don't`, `U.S`), and so does one of
, : / between two digits (`1,000`, `12:30`). Every other such sign is a word of its own.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from regard.errors import RegardError

# Of character classes: d a digit, w another character of a word, j joins characters of a word, k
# joins digits, p another sign.
_WORD = re.compile(r"[wd](?:[wd]|j(?=[wd])|(?<=d)k(?=d))*|[jkp]")


class _CharacterClasses(dict[int, str]):
    """The class of each code point, computed when it is first looked up."""

    def __missing__(self, code: int) -> str:
        self[code] = kind = _class_of(chr(code))
        return kind


def _class_of(character: str) -> str:
    if character in "-'’._&":
        return "j"
    if character in ",:/":
        return "k"
    if character.isspace():
        return " "
    category = unicodedata.category(character)
    if category[0] in "PS":
        return "p"
    return "d" if category == "Nd" else "w"


_CLASSES = _CharacterClasses()


def word_spans(text: str) -> list[tuple[int, int]]:
    """(start, stop) of each word, in characters: `text[start:stop]` is the word."""
    return [match.span() for match in _WORD.finditer(text.translate(_CLASSES))]


@dataclass(frozen=True)
class WordSpans:
    """A text, and (start, stop) of each of its words, in characters."""

    text: str
    spans: list[tuple[int, int]]

    @classmethod
    def of(cls, given: str | Sequence[str]) -> WordSpans:
        """Of a running text; or of a list of words, which are joined by one space.

        Raises:
            RegardError: it is neither.
        """
        if isinstance(given, str):
            return cls(given, word_spans(given))
        if not all(isinstance(word, str) for word in given):
            raise RegardError(f"Give a text, or its words as a list, but this is {given!r:.80}.")
        spans, start = [], 0
        for word in given:
            spans.append((start, start + len(word)))
            start += len(word) + 1
        return cls(" ".join(given), spans)

    @property
    def words(self) -> tuple[str, ...]:
        """The words themselves."""
        return tuple(self.text[start:stop] for start, stop in self.spans)
