"""Tokens and their text as they are decided, for a reader who does not wait for the end."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from regard.data.batches import Sequences
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.loop import IncrementalMethod, Method
from regard.errors import ConfigError
from regard.models.protocols import Generator
from regard.text import Tokenizer

DECODED_AGAIN = 8  # tokens that are decoded again with the next: more than a character has bytes
MAX_WINDOW = 32  # tokens before the window is shortened to those
REPLACEMENT = "\ufffd"  # for bytes that are no character, or not yet
BYTE = re.compile("<0x[0-9A-F]{2}>")  # a token that stands for one byte


class Streaming:
    """Iterates over (row, token) pairs; afterwards `results` holds what `generate` would return.

        for row, token in Streaming(model, prompts, options(top_k=40)):
            print(tokenizer.token(token), end="", flush=True)

    End-of-sequence tokens are left out. Sample i of source b has the row b * samples + i.

    Args:
        model: what decodes.
        source: sources to answer or prompts to continue; None: one empty prompt.
        method: greedy search or sampling, speculative or not.

    Raises:
        ConfigError: the method may replace tokens until the end, as beam search does.
    """

    def __init__(self, model: Generator, source: Sequences | None, method: Method):
        if not isinstance(method, IncrementalMethod):
            raise ConfigError(
                f"{type(method).__name__} cannot be streamed: it decides on its tokens at the end. "
                "Decode greedily or by sampling."
            )
        self._collector = method.collector(model)
        self._steps = method.steps(model, source)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for results in self._steps:
            self._collector.add(results)
            for result in results:
                if result.token is not None and result.token not in self._collector.eos:
                    yield result.row, result.token

    @property
    def results(self) -> list[list[Hypothesis]]:
        """The hypotheses of each source; complete after the iteration."""
        return self._collector.results()


class IncrementalDetokenizer:
    """The text of tokens that come one by one after others.

        detokenizer = IncrementalDetokenizer(tokenizer, prompt)
        for token in tokens:
            print(detokenizer.add(token), end="", flush=True)
        print(detokenizer.rest())

    The parts, joined, are what `decode` makes of all tokens, without what it makes of the prompt.
    Decoding each token alone would not do: subwords are joined, and a character may have several
    tokens. No token changes the text of those far before it, so that only the last ones are decoded
    again. A tokenizer that cleans up spaces may take the spaces before the last two words away
    ("do n ' t" becomes "don't"), which are held back until then.

    Args:
        before: the ids that come first; their text is left out.
    """

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int]):
        self._tokenizer = tokenizer
        self._without_text = tokenizer.special_ids - {tokenizer.unk_id}
        self._window = [i for i in before if i not in self._without_text]
        text = tokenizer.decode(self._window)
        self._returned = len(text)  # characters of the window's text
        self._shorten(text)

    def add(self, token: int) -> str:
        """The text that later tokens cannot change any more: it never ends within a character."""
        if token in self._without_text or token >= self._tokenizer.vocab_size:
            return ""
        self._window.append(token)
        if self._is_byte(token):  # only a complete run of bytes decodes to characters
            return ""
        text = self._tokenizer.decode(self._window)
        end = len(text) - text.endswith(REPLACEMENT)
        if self._tokenizer.clean_up_spaces:
            end = max(0, text.rfind(" ", 0, max(0, text.rfind(" "))))
        part = self._until(text, end)
        if len(self._window) > MAX_WINDOW:
            self._shorten(text)
        return part

    def rest(self) -> str:
        """The text that is left after the last token, such as an incomplete character."""
        text = self._tokenizer.decode(self._window)
        return self._until(text, len(text))

    def _is_byte(self, token: int) -> bool:
        """Whether a token stands for one byte."""
        return BYTE.fullmatch(self._tokenizer.token(token)) is not None

    def _until(self, text: str, end: int) -> str:
        """The characters of the window's text up to `end` that were not returned yet."""
        part = text[self._returned : end]
        self._returned = max(self._returned, end)
        return part

    def _shorten(self, text: str) -> None:
        """Drop the first tokens of the window; `text` is the text of all of them."""
        start = max(0, len(self._window) - DECODED_AGAIN)
        while start and self._is_byte(self._window[start]):
            start -= 1
        window, not_returned = self._window[start:], text[self._returned :]
        shorter = self._tokenizer.decode(window)
        # Without text before it, the next token would be decoded as the first of a text.
        if len(shorter) > len(not_returned) and shorter.endswith(not_returned):
            self._window, self._returned = window, len(shorter) - len(not_returned)
