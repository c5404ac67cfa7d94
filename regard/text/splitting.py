"""Words of a running text, with their places: for tasks that answer word by word.

A word is as long a run as there is of characters that are no white space, no punctuation and no
symbol. One of - ' ’ . _ & between two such characters belongs to the word (`don't`, `U.S`), and so
does one of , : / between two digits (`1,000`, `12:30`). Every other such sign is a word of its own.
"""

from __future__ import annotations

import re
import unicodedata

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
