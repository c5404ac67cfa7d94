"""Tokens and their text as they are decided, for a reader who does not want to wait for the end."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from regard.data.batches import Sequences
from regard.decoding.hypothesis import Hypothesis
from regard.errors import ConfigError
from regard.text import Tokenizer

KEPT = 8  # tokens whose text is made again: more than a character has bytes
MOST = 32  # tokens before all but those are let go
LOST = "\ufffd"  # in the place of bytes that are no character, or not yet
BYTE = re.compile("<0x[0-9A-F]{2}>")  # a piece that stands for one byte


class Streaming:
    """Iterates over (row, token) pairs; afterwards `results` holds what `generate` would give.

        for row, token in Streaming(model, prompts, options(top_k=40)):
            print(tokenizer.token(token), end="", flush=True)

    Ends are not among the tokens. With several samples, row b * samples + i is sample i of
    sentence b.

    Raises:
        ConfigError: the method changes its mind about tokens until the end, as a beam does.
    """

    def __init__(self, model: Any, source: Sequences | None, method: Any):
        if not hasattr(method, "steps"):
            raise ConfigError(
                f"{type(method).__name__} cannot be streamed: it decides on its tokens at the end. "
                "Decode greedily or by sampling."
            )
        self._collector = method.collector(model)
        self._steps = method.steps(model, source)
        self._ends = self._collector.ends

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for step in self._steps:
            self._collector.add(step)
            for decided in step:
                if decided.token is not None and decided.token not in self._ends:
                    yield decided.row, decided.token

    @property
    def results(self) -> list[list[Hypothesis]]:
        """Per sentence its hypotheses; complete after the iteration."""
        return self._collector.results()


class IncrementalDetokenizer:
    """The text of tokens that come one by one behind others.

        spelling = IncrementalDetokenizer(tokenizer, before)
        for token in tokens:
            print(spelling.add(token), end="", flush=True)
        print(spelling.rest())

    All parts together are what `decode` makes of all tokens together, behind what it makes of
    `before`; that is not what it makes of the parts: pieces are glued, and a character may have
    several tokens. Since no piece changes the text of those far before it, only the last ones are
    decoded again.
    """

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int]):
        self._tokenizer = tokenizer
        self._silent = tokenizer.special_ids - {tokenizer.unk_id}
        self._window = [i for i in before if i not in self._silent]
        text = tokenizer.decode(self._window)
        self._said = len(text)
        self._shorten(text)

    def add(self, token: int) -> str:
        """The text that is certain now: nothing in the middle of a character."""
        if token in self._silent:
            return ""
        self._window.append(token)
        if self._is_byte(token):  # they make characters only if all that stand in a row do
            return ""
        text = self._tokenizer.decode(self._window)
        part = self._until(text, len(text) - text.endswith(LOST))
        if len(self._window) > MOST:
            self._shorten(text)
        return part

    def rest(self) -> str:
        """What is left when no token comes any more: the beginning of a character."""
        text = self._tokenizer.decode(self._window)
        return self._until(text, len(text))

    def _is_byte(self, token: int) -> bool:
        return BYTE.fullmatch(self._tokenizer.token(token)) is not None

    def _until(self, text: str, end: int) -> str:
        part = text[self._said : end]
        self._said = max(self._said, end)
        return part

    def _shorten(self, text: str) -> None:
        """Lets the first tokens go; what was not said yet is the same of those that stay."""
        start = max(0, len(self._window) - KEPT)
        while start and self._is_byte(self._window[start]):
            start -= 1
        kept = self._window[start:]
        shorter = self._tokenizer.decode(kept)
        if shorter:  # else the next piece would be treated as the first of a text
            self._window, self._said = kept, len(shorter) - (len(text) - self._said)
