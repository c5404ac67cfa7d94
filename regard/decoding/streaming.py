"""Tokens and their text as they are decided, for a reader who does not wait for the end."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from regard.data.batches import Sequences
from regard.decoding.loop import TokenMethod, Watcher
from regard.decoding.steps import Hypotheses, Hypothesis, Method
from regard.errors import ConfigError, shown
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
        method: greedy search or sampling.

    Raises:
        ConfigError: the method may replace tokens until the end, as beam search does.
    """

    def __init__(self, model: Generator, source: Sequences | None, method: Method):
        if not isinstance(method, TokenMethod):
            raise ConfigError(
                f"{type(method).__name__} is not streamed: decode greedily or sample."
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
    def results(self) -> Hypotheses:
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
        self._detokenizer = IncrementalDetokenizer(tokenizer, prompt)
        self._text, self._end, self._sent = "", 0, 0

    @property
    def text(self) -> str:
        """The text up to the stop sequence, if one was hypothesis."""
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
        begins = [self._text.find(s, max(0, before - len(s) + 1)) for s in self._stops]
        complete = [begin for begin in begins if begin >= 0]
        if complete:
            self._end, self.stopped, self.ended = min(complete), True, True

    def ready(self) -> str:
        """The text that was not sent yet, without an end that may begin a stop sequence."""
        text = self.text
        begun = () if self.ended else (begun_length(text, stop) for stop in self._stops)
        end = len(text) - max(begun, default=0)
        piece = text[self._sent : end]
        self._sent = max(self._sent, end)
        return piece


def begun_length(text: str, stop: str) -> int:
    """The number of characters at the end of a text with which a stop sequence begins."""
    start = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while start >= 0 and not stop.startswith(text[start:]):
        start = text.find(stop[0], start + 1)
    return len(text) - start if start >= 0 else 0


def text_of(
    tokenizer: Tokenizer,
    prompt: Sequence[int],
    hypothesis: Hypothesis,
    ends: Sequence[int],
    stops: Sequence[str],
) -> GeneratedText:
    """The text of a hypothesis.

    ends: the end-of-text tokens; a hypothesis does not say which of several ended it, and the first
        one is taken.
    """
    text = GeneratedText(tokenizer, prompt, stops)
    for token in hypothesis.tokens:
        text.add(token)
    text.end(ends[0] if ends and hypothesis.finished else None)
    return text


def text_until_stop(tokenizer: Tokenizer, prompt: Sequence[int], hypothesis: Hypothesis) -> str:
    """The text of a hypothesis, without that of its prompt, up to the stop sequence of `stops` that
    is complete first.
    """
    return text_of(tokenizer, prompt, hypothesis, (), hypothesis.stops).text


@dataclass(frozen=True)
class StopSequences:
    """Ends a sequence whose generated text has one of these stop sequences; an `EndRule`."""

    tokenizer: Tokenizer
    stops: tuple[str, ...]

    def __call__(self, prompt: Sequence[int]) -> Watcher:
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
    for text in stops:
        if (
            not isinstance(text, str)
            or not text
            or any("\ud800" <= char <= "\udfff" for char in text)
        ):
            raise ConfigError(f"Each of `stop` must be a non-empty text, but one is {shown(text)}.")
    return stops


def stopped_hypothesis(
    tokenizer: Tokenizer, prompt: Sequence[int], hypothesis: Hypothesis, stops: tuple[str, ...]
) -> Hypothesis:
    """A hypothesis whose text ends before the first of these stop sequences: its tokens end with
    that. Its score and log-probability stay those of all the tokens that were generated.
    """
    text = GeneratedText(tokenizer, prompt, stops)
    for count, token in enumerate(hypothesis.tokens, 1):
        text.add(token)
        if text.stopped:
            return replace(hypothesis, tokens=hypothesis.tokens[:count], finished=True, stops=stops)
    return replace(hypothesis, stops=stops)


def method_with_stops(method: Any, tokenizer: Tokenizer, stops: tuple[str, ...]) -> Any:
    """A method whose sequences end with a stop sequence, so that nothing is generated after it.

    Beam search generates the whole text, which `text_until_stop` cuts.
    """
    if not stops or not isinstance(method, TokenMethod):
        return method
    return replace(method, ends=(*method.ends, StopSequences(tokenizer, stops)))  # type: ignore
