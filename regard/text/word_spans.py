"""Words of a running text, with their places: for tasks that answer word by word.

A word is as long a run as there is of characters that are no white space, no punctuation and no
symbol. One of - ' ’ . _ & between two such characters belongs to the word (`don't`, `U.S`), and so
does one of , : / between two digits (`1,000`, `12:30`). Every other such sign is a word of its own.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from regard.errors import RegardError

# On shapes: d a digit, w another character of a word, j and k what may join, p other signs.
_WORD = re.compile(r"[wd](?:[wd]|j(?=[wd])|(?<=d)k(?=d))*|[jkp]")


class _Shapes(dict[int, str]):
    """What kind of character each is, found when it is first met."""

    def __missing__(self, code: int) -> str:
        self[code] = found = _shape(chr(code))
        return found


def _shape(character: str) -> str:
    if character in "-'’._&":
        return "j"
    if character in ",:/":
        return "k"
    if character.isspace():
        return " "
    kind = unicodedata.category(character)
    if kind[0] in "PS":
        return "p"
    return "d" if kind == "Nd" else "w"


_SHAPES = _Shapes()


def words_of(text: str) -> list[tuple[int, int]]:
    """(start, stop) of each word, in characters: `text[start:stop]` is the word."""
    return [found.span() for found in _WORD.finditer(text.translate(_SHAPES))]


@dataclass(frozen=True)
class WordSpans:
    """A text and the places of its words."""

    text: str
    places: list[tuple[int, int]]

    @classmethod
    def of(cls, given: str | Sequence[str]) -> WordSpans:
        """Of a running text, or of words: then the text is these with one space between.

        Raises:
            RegardError: it is neither.
        """
        if isinstance(given, str):
            return cls(given, words_of(given))
        if not all(isinstance(word, str) for word in given):
            raise RegardError(f"Give a text, or its words as a list, but this is {given!r:.80}.")
        places, at = [], 0
        for word in given:
            places.append((at, at + len(word)))
            at += len(word) + 1
        return cls(" ".join(given), places)

    @property
    def words(self) -> tuple[str, ...]:
        """The words themselves."""
        return tuple(self.text[start:stop] for start, stop in self.places)
