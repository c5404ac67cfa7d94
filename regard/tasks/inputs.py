"""What a user gives a task: a list of texts, pairs, or words, each checked where it stands.

Every verb of every task checks with these, so that the same thing is right or wrong everywhere and
an error names the text by its number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from regard.data.pieces import Texts
from regard.errors import RegardError, TextError
from regard.text.tokenizer import text_problem


def is_one(given: Any) -> bool:
    """Whether this is one text, or one pair as a tuple, and not several of them."""
    pair = isinstance(given, tuple) and all(isinstance(text, str) for text in given)
    return isinstance(given, str) or (pair and bool(given))


def several(texts: Any) -> list[Any]:
    """The texts of a list, a tuple, an array of strings, a generator.

    Raises:
        RegardError: as `looped`.
    """
    return list(looped(texts))


def several_texts(texts: Any) -> list[str]:
    """The same for a task that reads one text at a time.

    Raises:
        TextError: one is no text.
        RegardError: as `looped`.
    """
    return [one_text(text, place) for place, text in enumerate(looped(texts))]


def looped(texts: Any) -> Iterator[Any]:
    """The texts one after another.

    Raises:
        RegardError: it is one text, of which every letter would be read as a text; it has no order,
            or is nothing that one can loop over.
    """
    if not isinstance(texts, str | bytes | bytearray | memoryview | Mapping | Set):
        try:
            return iter(texts)
        except TypeError:
            pass
    raise RegardError(f"Give a list of texts, [text], but this is {_shown(texts)}.")


def one_text(given: Any, place: int, hint: str = "") -> str:
    """A text that has UTF-8 bytes.

    Raises:
        TextError: it is none.
    """
    if not isinstance(given, str):
        raise TextError(place, f"must be a str, but is {_shown(given)}.", hint)
    if not given.isascii() and (problem := text_problem(given)):
        raise TextError(place, f"cannot be encoded: {problem}")
    return str(given)  # of numpy's strings, too


def one_or_two(given: Any, place: int) -> Texts:
    """A text, or a pair of texts.

    Raises:
        TextError: it is neither.
    """
    if isinstance(given, str):
        return (one_text(given, place),)
    parts = as_parts(given)
    if parts is None or len(parts) not in (1, 2):
        problem = f"must be a text, or a pair of texts (a, b), but is {_shown(given)}."
        raise TextError(place, problem)
    return tuple(one_text(part, place) for part in parts)


def text_or_words(given: Any, place: int) -> str | list[str]:
    """A running text, or its words.

    Raises:
        TextError: it is neither.
    """
    if isinstance(given, str):
        return one_text(given, place)
    words = as_parts(given)
    if words is None:
        hint = "Give a text, or its words as a list."
        raise TextError(place, f"is neither text nor words, but {_shown(given)}.", hint)
    return [one_text(word, place) for word in words]


def as_parts(given: Any) -> Sequence[Any] | None:
    """The strings of a list, a tuple or an array; None where it is something else."""
    if isinstance(given, str | bytes | bytearray | memoryview | Mapping | Set | Iterator):
        return None
    try:
        parts = list(given)
    except TypeError:
        return None
    return parts if all(isinstance(part, str) for part in parts) else None


def _shown(given: Any) -> str:
    return f"{given!r:.80}"
