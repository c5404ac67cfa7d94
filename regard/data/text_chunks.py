"""Texts that are processed together, and the errors that name the line of one of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

from regard.errors import DataError

MAX_TEXTS = 1024  # processed together


@dataclass(frozen=True)
class Chunk:
    """Texts that are processed together; `first` is the number of the first of them, from 0.

    A text of a table is a tuple of its columns.
    """

    first: int
    texts: list[Any]
    origin: str

    def until(self, index: int) -> Self:
        """The texts before this one."""
        return replace(self, texts=self.texts[:index])

    def after(self, index: int) -> Self:
        """The texts from this one on."""
        return replace(self, first=self.first + index, texts=self.texts[index:])

    def split(self, size: int) -> Iterator[Chunk]:
        """Chunks of at most this many texts."""
        for start in range(0, len(self.texts), size):
            yield Chunk(self.first + start, self.texts[start : start + size], self.origin)

    def error(self, index: int, problem: str, hint: str = "") -> DataError:
        """The error for one of these texts, which names its line."""
        return DataError(self.origin, self.line(index), problem, hint)

    def line(self, index: int) -> int:
        """The line of one of these texts, from 1."""
        return self.first + index + 1

    def too_long(self, index: int, tokens: int, limit: int | None, what: str = "text") -> DataError:
        """The error for a text beyond the model's limit.

        what: "text", or what of it has so many tokens, such as "question".
        """
        counted = "" if what == "text" else f"a {what} of "
        problem = f"has {counted}{tokens:,} tokens, but this model reads at most {limit:,}."
        hint = "Shorten it, or cut its end with --too-long truncate."
        return self.error(index, problem, hint)


def is_blank(text: str | tuple[Any, ...]) -> bool:
    """Whether a text, or each field of a row, is empty or white space alone."""
    return not (text if isinstance(text, str) else "".join(map(str, text))).strip()
