"""Texts for a filter: those of the command line, or standard input as it comes."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import IO, Any, cast

from regard.data.files import lines_of
from regard.errors import DataError

STANDARD_INPUT = "standard input"
BLOCK = 1 << 16  # bytes that are read at once, and so how much waits for an answer
MOST = 1024  # texts that are answered together
NOT_UTF8 = ("has bytes that are not UTF-8.", "Give the text as UTF-8.")


@dataclass(frozen=True)
class Chunk:
    """Texts that are answered together; `first` is the number of the first of all, from 0."""

    first: int
    texts: list[str]
    origin: str

    def until(self, place: int | None) -> Chunk:
        """The texts before this place; all of them where there is none."""
        return replace(self, texts=self.texts[:place])

    def error(self, place: int, problem: str, hint: str = "") -> DataError:
        """The error for one of these texts, by its line."""
        return DataError(self.origin, self.first + place + 1, problem, hint)

    def too_long(self, place: int, tokens: int, limit: int) -> DataError:
        """The error for a text beyond the model's limit."""
        problem = f"has {tokens:,} tokens, but this model reads at most {limit:,}."
        hint = "Shorten it, or cut its end with --too-long truncate."
        return self.error(place, problem, hint)


def chunks_of(texts: Sequence[str] | None) -> Iterator[Chunk]:
    """The texts that were given; those of standard input where there are none, or "-" alone.

    Raises:
        DataError: a text is not UTF-8; those before it have been given.
    """
    if not texts or list(texts) == ["-"]:
        yield from _arriving(sys.stdin.buffer)
        return
    whole = Chunk(0, list(texts), "text")
    wrong = next((place for place, text in enumerate(texts) if not _is_utf8(text)), None)
    if wrong != 0:
        yield whole.until(wrong)
    if wrong is not None:
        raise whole.error(wrong, *NOT_UTF8)


def one_argument(text: str) -> str:
    """A text of the command line.

    Raises:
        DataError: it is not UTF-8.
    """
    if not _is_utf8(text):
        raise DataError("text", None, *NOT_UTF8)
    return text


def _is_utf8(text: str) -> bool:
    """Python takes bytes of the command line that are not UTF-8 as lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class Arriving:
    """The lines of a stream of bytes; `waiting` are those that have come and were not taken."""

    def __init__(self, stream: Any):
        self.stream = stream
        self.waiting: deque[bytes] = deque()

    def __iter__(self) -> Iterator[bytes]:
        rest = b""
        while block := self.stream.read1(BLOCK):
            *whole, rest = (rest + block).split(b"\n")
            self.waiting.extend(whole)
            while self.waiting:
                yield self.waiting.popleft() + b"\n"
        if rest:
            yield rest


def _arriving(stream: Any) -> Iterator[Chunk]:
    """What has come is answered before more is waited for.

    Raises:
        DataError: a line is not UTF-8; those before it have been given.
    """
    source, first, texts = Arriving(stream), 0, list[str]()
    try:
        for text in lines_of(cast("IO[bytes]", source), STANDARD_INPUT):
            texts.append(text)
            if not source.waiting or len(texts) == MOST:
                yield Chunk(first, texts, STANDARD_INPUT)
                first, texts = first + len(texts), []
    except DataError:
        if texts:
            yield Chunk(first, texts, STANDARD_INPUT)
        raise
