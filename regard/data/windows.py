"""Long texts in overlapping windows that an encoder can read.

even_windows(900, size=320, overlap=128)         windows of tokens, for finding a span
word_windows(lengths, size=126, overlap=31)      windows of whole words, for a label of each word
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np

from regard.data.encoder_inputs import EncodedInputs, InputFormat
from regard.data.token_arrays import TokenArray
from regard.text.encoding import Encoding
from regard.text.templates import EncoderInput

OVERLAP = 4  # windows of words overlap by a quarter of their size


def even_windows(count: int, size: int, overlap: int) -> list[tuple[int, int]]:
    """(start, stop) of windows of `size` items, neighbours sharing `overlap` of them.

    The last window ends with the last item. Zero items make one empty window.
    """
    last = max(0, count - overlap)  # a window from here on would hold nothing new
    starts = range(0, max(1, last), size - overlap)
    return [(start, min(count, start + size)) for start in starts]


@dataclass(frozen=True)
class WordWindow:
    """A window of the words from `start` to before `stop`, which labels those from `first` to
    before `last`."""

    start: int
    stop: int
    first: int
    last: int


def word_windows(lengths: Sequence[int], size: int, overlap: int) -> list[WordWindow]:
    """Windows of whole words with at most `size` tokens, neighbours sharing at most `overlap`.

    Each word is labelled by one window: the one with the most tokens between the word and the
    nearer edge of the window, where the ends of the text are no edges; of equals the first.

    lengths: the tokens of each word, at least 1; a word longer than `size` counts as `size`
    """
    ends = [0, *accumulate(min(length, size) for length in lengths)]
    if ends[-1] <= size:
        return [WordWindow(0, len(lengths), 0, len(lengths))] if lengths else []
    parts = [(0, bisect_right(ends, size) - 1)]
    while (stop := parts[-1][1]) < len(lengths):
        # The word after the last window must fit, whatever that leaves of the overlap.
        start = bisect_left(ends, max(ends[stop] - overlap, ends[stop + 1] - size))
        parts.append((start, bisect_right(ends, ends[start] + size) - 1))
    owners = _owners(parts, ends)
    return [
        WordWindow(*parts[i], bisect_left(owners, i), bisect_right(owners, i))
        for i in sorted(set(owners))
    ]


def _owners(parts: Sequence[tuple[int, int]], ends: Sequence[int]) -> list[int]:
    """The index of the window that labels each word; it never decreases from word to word."""
    count = len(ends) - 1
    owners, margins = [0] * count, [-1.0] * count
    for number, (start, stop) in enumerate(parts):
        for word in range(start, stop):
            left = ends[word] - ends[start] if start else math.inf
            right = ends[stop] - ends[word + 1] if stop < count else math.inf
            if min(left, right) > margins[word]:
                owners[word], margins[word] = number, min(left, right)
    return owners


# --------------------------------------------------------------------------------- words


@dataclass(frozen=True, eq=False)
class WordWindows:
    """Sentences of words as encoder inputs, one or several for each sentence.

    positions: for each input the positions of the words that it labels, where each begins. End to
        end they are all words of all sentences, in order.
    truncated: indices of sentences with a word longer than a whole window; its end is not read
    """

    inputs: EncodedInputs
    positions: TokenArray
    truncated: tuple[int, ...]

    @classmethod
    def of(cls, sentences: Sequence[Sequence[str]], format: InputFormat) -> WordWindows:
        """The inputs of sentences; a sentence without words has none."""
        inputs: list[EncoderInput] = []
        positions, truncated = [], []
        special = format.template.special_count(1)
        for number, words in enumerate(format.encode_words(sentences)):
            lengths = list(map(len, words))
            limit = format.max_length
            size = max(sum(lengths), 1) if limit is None else limit - special
            if lengths and max(lengths) > size:
                truncated.append(number)
                words, lengths = [w[:size] for w in words], [min(n, size) for n in lengths]
            for window in word_windows(lengths, size, size // OVERLAP):
                inside = words[window.start : window.stop]
                encoder_input = format.template.apply([[i for word in inside for i in word]])
                begins = list(accumulate(map(len, inside), initial=encoder_input.starts[0]))
                positions.append(begins[window.first - window.start : window.last - window.start])
                inputs.append(encoder_input)
        return cls(EncodedInputs.of(inputs), TokenArray.of(positions), tuple(truncated))

    @cached_property
    def words(self) -> TokenArray:
        """The indices of the words that each input labels, counted over all sentences."""
        return self.arranged(range(len(self.positions.ids)))

    def arranged(self, numbers: Iterable[int]) -> TokenArray:
        """One number for each word of all sentences, arranged by input like `positions`."""
        return TokenArray(np.fromiter(numbers, np.int64), self.positions.offsets)


# ------------------------------------------------------------------------------ contexts


@dataclass(frozen=True, eq=False)
class EncodedContext:
    """A text of N tokens: `ids`, and each token's characters from `starts` to `ends`, (N,)."""

    text: str
    ids: list[int]
    starts: np.ndarray
    ends: np.ndarray

    @classmethod
    def of(cls, text: str, encoding: Encoding) -> EncodedContext:
        """From the encoding of the whole text."""
        offsets = np.array(encoding.offsets, np.int32).reshape(-1, 2)
        return cls(text, encoding.ids, offsets[:, 0], offsets[:, 1])

    def token_span(self, answer: str, start: int) -> tuple[int, int] | None:
        """The first and the last token of the answer at character `start`; None: it has none."""
        start += len(answer) - len(answer.lstrip())
        stop = start + len(answer.strip())
        first = int(np.searchsorted(self.ends, start, "right"))
        last = int(np.searchsorted(self.starts, stop, "left")) - 1
        return (first, last) if start < stop and first <= last else None

    def char_span(self, first: int, last: int) -> tuple[int, int]:
        """The characters (start, stop) of tokens `first` to `last`, without spaces around."""
        start, stop = int(self.starts[first]), int(self.ends[last])
        text = self.text[start:stop]  # a byte-level token includes the space before it
        start += len(text) - len(text.lstrip())
        return start, start + len(text.strip())


@dataclass(frozen=True, eq=False)
class ContextWindows:
    """Questions with windows of their contexts as inputs: [CLS] question [SEP] window [SEP].

    Of each input, (inputs,) int64:

    questions: the index of its question
    context_starts: the token of the context with which its window begins
    input_starts: the position of that token in the input
    counts: how many tokens of the context the window has
    """

    inputs: EncodedInputs
    questions: np.ndarray
    context_starts: np.ndarray
    input_starts: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(
        cls,
        questions: Sequence[Sequence[int]],
        contexts: Sequence[EncodedContext],
        format: InputFormat,
        overlap: int,
    ) -> ContextWindows:
        """The inputs of questions, given as ids, each about its context.

        Neighbouring windows share `overlap` tokens, but at most half of a window.
        """
        assert format.max_length is not None, "windows have a limit"
        inputs, facts = [], []
        for number, (question, context) in enumerate(zip(questions, contexts, strict=True)):
            size = format.max_length - format.template.special_count(2) - len(question)
            for start, stop in even_windows(len(context.ids), size, min(overlap, size // 2)):
                encoder_input = format.template.apply([question, context.ids[start:stop]])
                inputs.append(encoder_input)
                facts.append((number, start, encoder_input.starts[1], stop - start))
        return cls(EncodedInputs.of(inputs), *np.array(facts, np.int64).reshape(-1, 4).T)

    @property
    def contexts(self) -> np.ndarray:
        """(inputs, 2) `input_starts` and `counts`."""
        return np.stack([self.input_starts, self.counts], 1)

    def span_positions(self, spans: Sequence[tuple[int, int] | None]) -> np.ndarray:
        """(inputs, 2) the positions of the first and last token of each question's span.

        Both are 0 where the window does not hold the whole span, and where the span is None.
        """
        token_spans = np.array([span or (-1, -1) for span in spans], np.int64).reshape(-1, 2)
        relative = token_spans[self.questions] - self.context_starts[:, None]
        inside = (relative[:, 0] >= 0) & (relative[:, 1] < self.counts)
        return np.where(inside[:, None], relative + self.input_starts[:, None], 0)


def concatenated(parts: Sequence[EncodedInputs]) -> EncodedInputs:
    """The inputs of several parts, numbered from 0 on."""
    ids = TokenArray.concatenated([part.ids for part in parts])
    segments = TokenArray.concatenated([part.segments for part in parts])
    count = len(ids)
    return EncodedInputs(ids, segments, TokenArray(np.arange(count), np.arange(count + 1)))
