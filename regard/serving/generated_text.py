"""The text of a sequence as its tokens are generated, up to the first stop sequence."""

from __future__ import annotations

from collections.abc import Sequence

from regard.decoding.hypothesis import Hypothesis
from regard.decoding.streaming import IncrementalDetokenizer
from regard.text import Tokenizer


class GeneratedText:
    """The text generated after a prompt, token by token.

    tokens: generated ones, without the end-of-text token.
    end_token: the end-of-text token that ended it; None where something else did.
    parts: what each of them added to the text.
    log_prob: of the tokens, and of the end-of-text token if there is one.
    stopped: whether a stop sequence ended it.

    Args:
        stops: stop sequences; the text ends before the first of these, which may begin and end
            within tokens. Of several that are complete with the same token the one that begins
            first counts.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], stops: Sequence[str] = ()):
        self.tokens: list[int] = []
        self.parts: list[str] = []
        self.log_prob = 0.0
        self.stopped = self.ended = False
        self.end_token: int | None = None
        self._stops = stops
        self._longest = max(map(len, stops), default=0)
        self._detokenizer = IncrementalDetokenizer(tokenizer, prompt)
        self._text, self._end, self._sent = "", 0, 0

    @property
    def text(self) -> str:
        """The text up to the stop sequence, if one was found."""
        return self._text[: self._end] if self.stopped else self._text

    @property
    def scored_tokens(self) -> list[int]:
        """The tokens, and the end-of-text token that ended the text."""
        return self.tokens if self.end_token is None else [*self.tokens, self.end_token]

    @property
    def reason(self) -> str | None:
        """Why it ended, as OpenAI says it; None: it has not."""
        if not self.ended:
            return None
        return "stop" if self.end_token is not None or self.stopped else "length"

    def add(self, token: int) -> None:
        """Add a token; without effect after a stop sequence."""
        if not self.ended:
            self.tokens.append(token)
            self._append(self._detokenizer.add(token))

    def end(self, token: int | None = None) -> None:
        """End the text. token: the end-of-text token; None: another reason ends it."""
        if self.ended:
            return
        if rest := self._detokenizer.rest():
            self._append(rest, new=False)
        self.end_token, self.ended = None if self.stopped else token, True

    def _append(self, part: str, new: bool = True) -> None:
        begin = max(0, len(self._text) - self._longest + 1)
        self._text += part
        if new or not self.parts:
            self.parts.append(part)
        else:
            self.parts[-1] += part
        found = [at for stop in self._stops if (at := self._text.find(stop, begin)) >= 0]
        if found:
            self._end, self.stopped, self.ended = min(found), True, True

    def ready(self) -> str:
        """The text that was not sent yet, without an end that may begin a stop sequence."""
        text = self.text
        end = len(text) if self.ended else len(text) - self._held(text)
        piece = text[self._sent : end]
        self._sent = max(self._sent, end)
        return piece

    def _held(self, text: str) -> int:
        """Characters at the end of a text that may begin a stop sequence."""
        for size in range(min(self._longest - 1, len(text)), 0, -1):
            if any(stop.startswith(text[-size:]) for stop in self._stops):
                return size
        return 0


def text_of(
    tokenizer: Tokenizer,
    prompt: Sequence[int],
    found: Hypothesis,
    ends: Sequence[int],
    stops: Sequence[str],
) -> GeneratedText:
    """The text of a hypothesis.

    ends: the end-of-text tokens; a hypothesis does not say which of several ended it, and the first
        one is taken.
    """
    text = GeneratedText(tokenizer, prompt, stops)
    for token in found.tokens:
        text.add(token)
    text.end(ends[0] if found.finished else None)
    return text
