"""Long texts in overlapping windows that an encoder can read.

evenly(900, room=320, overlap=128)          windows of tokens, for finding a span
by_words(lengths, room=126, overlap=31)     windows of whole words, for an answer to each word
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
from regard.text.templates import EncoderInput
from regard.text.tokenizer import Encoding

OVERLAP = 4  # windows of words share a quarter of their room


def even_windows(count: int, room: int, overlap: int) -> list[tuple[int, int]]:
    """(start, stop) of windows of `room` items, neighbours sharing `overlap` of them.

    The last window ends with the last item. Of no items there is one empty window.
    """
    last = max(0, count - overlap)  # a window that began here would hold nothing new
    starts = range(0, max(1, last), room - overlap)
    return [(start, min(count, start + room)) for start in starts]


@dataclass(frozen=True)
class WordWindow:
    """The words from `start` to before `stop` are read; those from `first` to before `last` are
    answered for."""

    start: int
    stop: int
    first: int
    last: int


def word_windows(lengths: Sequence[int], room: int, overlap: int) -> list[WordWindow]:
    """Windows of whole words with at most `room` pieces, neighbours sharing at most `overlap`.

    Each word is answered for by one window: by that in which more pieces stand between it and the
    nearer edge, where an end of the text is no edge; among equals by the first. `lengths` are the
    pieces of each word, at least 1; a word longer than `room` counts as `room`.
    """
    ends = [0, *accumulate(min(length, room) for length in lengths)]
    if ends[-1] <= room:
        return [WordWindow(0, len(lengths), 0, len(lengths))] if lengths else []
    parts = [(0, bisect_right(ends, room) - 1)]
    while (stop := parts[-1][1]) < len(lengths):
        # The word after the last window must fit, whatever that leaves of the overlap.
        start = bisect_left(ends, max(ends[stop] - overlap, ends[stop + 1] - room))
        parts.append((start, bisect_right(ends, ends[start] + room) - 1))
    owners = _owners(parts, ends)
    return [
        WordWindow(*parts[i], bisect_left(owners, i), bisect_right(owners, i))
        for i in sorted(set(owners))
    ]


def _owners(parts: Sequence[tuple[int, int]], ends: Sequence[int]) -> list[int]:
    """Which window answers for each word; the numbers never fall from one word to the next."""
    count = len(ends) - 1
    owners, most = [0] * count, [-1.0] * count
    for number, (start, stop) in enumerate(parts):
        for word in range(start, stop):
            left = ends[word] - ends[start] if start else math.inf
            right = ends[stop] - ends[word + 1] if stop < count else math.inf
            if min(left, right) > most[word]:
                owners[word], most[word] = number, min(left, right)
    return owners


# --------------------------------------------------------------------------------- words


@dataclass(frozen=True, eq=False)
class WordWindows:
    """Sentences of words as rows, one or several each.

    places: row by row, the places of the words that it answers for: where each begins. End to end
        they are all words of all sentences, in order.
    cut: sentences with a word that is longer than a whole row, of which the end is not read.
    """

    rows: EncodedInputs
    places: TokenArray
    cut: tuple[int, ...]

    @classmethod
    def of(cls, sentences: Sequence[Sequence[str]], pieces: InputFormat) -> WordWindows:
        """The rows of sentences; those without words have none."""
        rows: list[EncoderInput] = []
        places, cut = [], []
        around = pieces.template.special_count(1)
        for number, words in enumerate(pieces.encode_words(sentences)):
            lengths = list(map(len, words))
            room = max(sum(lengths), 1) if pieces.max_length is None else pieces.max_length - around
            if lengths and max(lengths) > room:
                cut.append(number)
                words, lengths = [w[:room] for w in words], [min(n, room) for n in lengths]
            for window in word_windows(lengths, room, room // OVERLAP):
                inside = words[window.start : window.stop]
                row = pieces.template.apply([[i for word in inside for i in word]])
                begins = list(accumulate(map(len, inside), initial=row.starts[0]))
                places.append(begins[window.first - window.start : window.last - window.start])
                rows.append(row)
        return cls(EncodedInputs.of(rows), TokenArray.of(places), tuple(cut))

    @cached_property
    def numbers(self) -> TokenArray:
        """The words that each row answers for, counted over all sentences."""
        return self.labelled(range(len(self.places.ids)))

    def labelled(self, numbers: Iterable[int]) -> TokenArray:
        """One number for each word of all sentences, row by row like `places`."""
        return TokenArray(np.fromiter(numbers, np.int64), self.places.offsets)


# ------------------------------------------------------------------------------ contexts


@dataclass(frozen=True, eq=False)
class EncodedContext:
    """A text in pieces: `ids`, and of each piece the characters from `starts` to `ends`, (N,)."""

    text: str
    ids: list[int]
    starts: np.ndarray
    ends: np.ndarray

    @classmethod
    def of(cls, text: str, encoding: Encoding) -> EncodedContext:
        """From the pieces of the whole text."""
        offsets = np.array(encoding.offsets, np.int32).reshape(-1, 2)
        return cls(text, encoding.ids, offsets[:, 0], offsets[:, 1])

    def pieces_of(self, answer: str, start: int) -> tuple[int, int] | None:
        """The first and the last piece of a part of the text; None where no piece holds any."""
        start += len(answer) - len(answer.lstrip())
        stop = start + len(answer.strip())
        first = int(np.searchsorted(self.ends, start, "right"))
        last = int(np.searchsorted(self.starts, stop, "left")) - 1
        return (first, last) if start < stop and first <= last else None

    def part(self, first: int, last: int) -> tuple[int, int]:
        """The characters (start, stop) of the text that two pieces and all between stand for."""
        start, stop = int(self.starts[first]), int(self.ends[last])
        found = self.text[start:stop]  # a byte-level piece carries the space before it
        start += len(found) - len(found.lstrip())
        return start, start + len(found.strip())


@dataclass(frozen=True, eq=False)
class ContextWindows:
    """Questions with their contexts as rows: [CLS] question [SEP] window of the context [SEP].

    questions, begins, first, counts: (rows,) int64; the question that a row asks, the piece of the
        context with which its window begins, the place in the row where that stands, and how many
        pieces of the context follow from there.
    """

    rows: EncodedInputs
    questions: np.ndarray
    begins: np.ndarray
    first: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(
        cls,
        asked: Sequence[Sequence[int]],
        contexts: Sequence[EncodedContext],
        pieces: InputFormat,
        overlap: int,
    ) -> ContextWindows:
        """The rows of questions, in pieces, each about its context.

        Neighbours share `overlap` pieces, but never more than half of what has room.
        """
        assert pieces.max_length is not None, "rows of windows have a limit"
        rows, facts = [], []
        for number, (question, context) in enumerate(zip(asked, contexts, strict=True)):
            room = pieces.max_length - pieces.template.special_count(2) - len(question)
            for start, stop in even_windows(len(context.ids), room, min(overlap, room // 2)):
                row = pieces.template.apply([question, context.ids[start:stop]])
                rows.append(row)
                facts.append((number, start, row.starts[1], stop - start))
        return cls(EncodedInputs.of(rows), *np.array(facts, np.int64).reshape(-1, 4).T)

    def places_of(self, spans: Sequence[tuple[int, int] | None]) -> np.ndarray:
        """(rows, 2) the places of each question's span, its first and last piece, in each row.

        Both are the first place of the row where its window does not hold the whole span, or there
        is none.
        """
        wanted = np.array([span or (-1, -1) for span in spans], np.int64).reshape(-1, 2)
        found = wanted[self.questions] - self.begins[:, None]
        inside = (found[:, 0] >= 0) & (found[:, 1] < self.counts)
        return np.where(inside[:, None], found + self.first[:, None], 0)


def concatenated(parts: Sequence[EncodedInputs]) -> EncodedInputs:
    """The rows of several, numbered anew from 0."""
    ids, segments = (
        TokenArray(
            np.concatenate([one.ids for one in column]),
            np.concatenate([[0], *(one.lengths for one in column)]).cumsum(),
        )
        for column in ([part.ids for part in parts], [part.segments for part in parts])
    )
    count = len(ids)
    return EncodedInputs(ids, segments, TokenArray(np.arange(count), np.arange(count + 1)))
