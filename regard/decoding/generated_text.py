"""The text of a sequence as its tokens are generated, up to the first stop sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from regard.decoding.hypothesis import Hypothesis
from regard.decoding.loop import TokenMethod, Watcher
from regard.decoding.streaming import IncrementalDetokenizer
from regard.errors import ConfigError, shown
from regard.text import Tokenizer


class BegunStop:
    """How far the end of a growing text is into a stop sequence, in a time that does not depend on
    the length of either (Knuth, Morris and Pratt 1977, "Fast pattern matching in strings").

    length: of the longest end of the text that the stop sequence begins with.
    """

    def __init__(self, stop: str):
        self.stop, self.length = stop, 0
        self._borders = [0]  # of its first characters: of 1, of 2, ..., as many as were needed

    def add(self, part: str) -> None:
        """The text has grown by these characters."""
        for letter in part:
            while self.length and self.stop[self.length : self.length + 1] != letter:
                self.length = self._border(self.length)
            self.length += self.stop[self.length] == letter

    def _border(self, count: int) -> int:
        """The most characters, below `count`, that the first `count` both begin and end with."""
        while len(self._borders) < count:
            letter, border = self.stop[len(self._borders)], self._borders[-1]
            while border and self.stop[border] != letter:
                border = self._borders[border - 1]
            self._borders.append(border + (self.stop[border] == letter))
        return self._borders[count - 1]


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
        self._stops = [BegunStop(stop) for stop in stops]
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
        """Why it ended, the `finish_reason` of OpenAI's API; None: it has not."""
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
        before = len(self._text)
        self._text += part
        if new or not self.parts:
            self.parts.append(part)
        else:
            self.parts[-1] += part
        found = []
        for one in self._stops:
            one.add(part)
            begin = max(0, before - len(one.stop) + 1)
            if (at := self._text.find(one.stop, begin)) >= 0:
                found.append(at)
        if found:
            self._end, self.stopped, self.ended = min(found), True, True

    def ready(self) -> str:
        """The text that was not sent yet, without an end that may begin a stop sequence."""
        text = self.text
        begun = 0 if self.ended else max((one.length for one in self._stops), default=0)
        end = len(text) - begun
        piece = text[self._sent : end]
        self._sent = max(self._sent, end)
        return piece


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
    text.end(ends[0] if ends and found.finished else None)
    return text


def text_until_stop(tokenizer: Tokenizer, prompt: Sequence[int], found: Hypothesis) -> str:
    """The text of a hypothesis, without that of its prompt, up to the stop sequence of `stops` that
    is complete first.
    """
    return text_of(tokenizer, prompt, found, (), found.stops).text


@dataclass(frozen=True)
class StopSequences:
    """Ends a sequence whose generated text has one of these stop sequences; an `EndRule`."""

    tokenizer: Tokenizer
    stops: tuple[str, ...]

    def watch(self, prompt: Sequence[int]) -> Watcher:
        text = GeneratedText(self.tokenizer, prompt, self.stops)

        def is_stopped_by(token: int) -> bool:
            text.add(token)
            return text.stopped

        return is_stopped_by


def checked_stops(stop: Sequence[str] | str | None) -> tuple[str, ...]:
    """The stop sequences of an option; None: there are none.

    Raises:
        ConfigError: one is empty, or no text.
    """
    if stop is None:
        return ()
    stops = tuple(stop) if isinstance(stop, list | tuple) else (stop,)
    for one in stops:
        if not isinstance(one, str) or not one or any("\ud800" <= char <= "\udfff" for char in one):
            raise ConfigError(
                f"Each stop sequence (`stop`) must be a non-empty text, but one is {shown(one)}."
            )
    return stops


def stopped_hypothesis(
    tokenizer: Tokenizer, prompt: Sequence[int], found: Hypothesis, stops: tuple[str, ...]
) -> Hypothesis:
    """A hypothesis whose text ends before the first of these stop sequences: its tokens end with
    that. Its score and log-probability stay those of all the tokens that were generated.
    """
    text = GeneratedText(tokenizer, prompt, stops)
    for count, token in enumerate(found.tokens, 1):
        text.add(token)
        if text.stopped:
            return replace(found, tokens=found.tokens[:count], finished=True, stops=stops)
    return replace(found, stops=stops)


def method_with_stops(method: Any, tokenizer: Tokenizer, stops: tuple[str, ...]) -> Any:
    """A method whose sequences end with a stop sequence, so that nothing is generated after it.

    Beam search and a draft generate the whole text, which `text_until_stop` cuts.
    """
    if not stops or not isinstance(method, TokenMethod):
        return method
    return replace(method, ends=(*method.ends, StopSequences(tokenizer, stops)))  # type: ignore
