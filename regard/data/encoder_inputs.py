"""Texts as inputs of an encoder: tokenizer, template and length limit together.

format = InputFormat(tokenizer, template, max_length=512, pad=0)
inputs = format.encode([("One text.",), ("A pair", "of texts")])    of any length
inputs = [format.truncate(one) for one in inputs]                   the longer text first
batch = format.batch(inputs)

An example may have several inputs: the choices of a question, a pair of texts in both orders. The
inputs of an example stay together in one batch. A batch costs about as many tokens as its
inputs have, and its size is counted in examples.

Long texts in overlapping windows that an encoder can read.

even_windows(900, size=320, overlap=128)         windows of tokens, for finding a span
word_windows(lengths, size=126, overlap=31)      windows of whole words, for a label of each word
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from regard.data.batches import Sequences, moved
from regard.data.sampler import Buckets, Make, PaddedBatches, sorted_batches
from regard.data.token_arrays import TokenArray
from regard.errors import check_at_least
from regard.text.templates import EncoderInput, Encoding, Template

if TYPE_CHECKING:
    from regard.text import Tokenizer

Texts = tuple[str, ...]  # one, or two
# Arrays of examples, their padding ids, and what makes a batch of their sequences.
Columns = tuple[tuple[TokenArray, ...], tuple[int | None, ...], Make]
TooLong = Literal["error", "truncate", "skip"]
Truncation = Literal["longest_first", "bert"]
BATCHES_PER_POOL = 50  # batches that are cut from one pool of inputs sorted by length


def longest_first(first: int, second: int, capacity: int) -> tuple[int, int]:
    """The lengths of two texts within `capacity` tokens, as `transformers` truncates pairs by
    default: the shorter one stays whole within half of the capacity, the longer one has the rest.
    """
    shorter = min(first, second, capacity // 2)
    longer = capacity - shorter
    return (shorter, longer) if first <= second else (longer, shorter)


def bert_truncation(first: int, second: int, capacity: int) -> tuple[int, int]:
    """The same as BERT's own programs do it (`_truncate_seq_pair`): an odd token is the first's."""
    length = min(first, max(capacity - second, (capacity + 1) // 2))
    return length, capacity - length


TRUNCATIONS: Mapping[Truncation, Callable[[int, int, int], tuple[int, int]]] = {
    "longest_first": longest_first,
    "bert": bert_truncation,
}


@dataclass(frozen=True)
class InputFormat:
    """How texts become inputs of an encoder.

    truncation: how two texts that are too long together are truncated, one of `TRUNCATIONS`

    max_length: the most ids of an input; None: any number
    pad: the id of padding; None: the model has no token for it

    Raises:
        ConfigError: the template leaves no room for two texts within `max_length`.
    """

    tokenizer: Tokenizer
    template: Template
    max_length: int | None
    pad: int | None
    truncation: Truncation = "longest_first"

    def __post_init__(self) -> None:
        check_at_least(self.template.special_count(2) + 2, max_length=self.max_length)

    def encode(self, texts: Sequence[Texts]) -> list[EncoderInput]:
        """The inputs of many texts or pairs, not truncated.

        An input without any token becomes one unknown token.
        """
        flat = iter(self.tokenizer.encode_many([part for parts in texts for part in parts]))
        return [self._input([next(flat) for _ in parts]) for parts in texts]

    def encode_words(self, sentences: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        """The ids of each word of each sentence; a word without tokens becomes the unknown token.

        A word is encoded as it is between spaces, once, however often it occurs.
        """
        distinct = list(dict.fromkeys(word for sentence in sentences for word in sentence))
        # A byte-level token includes the space before a word; without it a word would continue one.
        spaced = [f" {word}" if self.tokenizer.kind == "byte-bpe" else word for word in distinct]
        encoded = [ids or [self._placeholder] for ids in self.tokenizer.encode_many(spaced)]
        ids_of = dict(zip(distinct, encoded, strict=True))
        return [[ids_of[word] for word in sentence] for sentence in sentences]

    def too_long(self, inputs: Sequence[EncoderInput]) -> list[int]:
        """The indices of inputs longer than `max_length`."""
        limit = self.max_length
        return [] if limit is None else [i for i, item in enumerate(inputs) if len(item) > limit]

    def truncate(self, item: EncoderInput) -> EncoderInput:
        """The input within `max_length`, as `transformers` truncates it by default: see
        `longest_first`. Tokens are dropped on the `truncation_side` of the tokenizer's file.
        """
        if self.max_length is None or len(item) <= self.max_length:
            return item
        texts = item.texts()
        capacity = self.max_length - self.template.special_count(len(texts))
        lengths = (capacity,) if len(texts) == 1 else self._pair(texts, capacity)
        left = self.tokenizer.sides.get("truncation_side") == "left"
        return self.template.apply(
            [
                text[len(text) - length :] if left else text[:length]
                for text, length in zip(texts, lengths, strict=True)
            ]
        )

    def _pair(self, texts: Sequence[Sequence[int]], capacity: int) -> tuple[int, int]:
        """The lengths of two texts within a capacity."""
        first, second = map(len, texts)
        return TRUNCATIONS[self.truncation](first, second, capacity)

    def batch(self, inputs: Sequence[EncoderInput]) -> Sequences:
        """The inputs padded on the right: ids and segments (B, T), lengths (B,)."""
        padded = Sequences.of([item.ids for item in inputs], self.pad)
        return with_segments(padded, Sequences.of([item.segments for item in inputs], 0))

    def _input(self, texts: list[list[int]]) -> EncoderInput:
        encoder_input = self.template.apply(texts)
        return encoder_input if encoder_input.ids else self.template.apply([[self._placeholder]])

    @property
    def _placeholder(self) -> int:
        """The id that replaces an empty sequence: the unknown token, or the end of a text."""
        ids = (self.tokenizer.unk_id, self.tokenizer.eos_id, self.tokenizer.bos_id)
        return next((id for id in ids if id is not None), self.pad or 0)


class InputArrays(ABC):
    """Encoded examples in flat arrays, and the batches that they make."""

    @abstractmethod
    def _columns(self, pad: int | None) -> Columns:
        """The arrays, their padding ids, and what makes a batch of their sequences."""

    def buckets(
        self, pad: int | None, *, batch_size: int, max_tokens: int, seed: int, by_length: bool
    ) -> Buckets:
        """Shuffled batches of at most `batch_size` examples and `max_tokens` padded tokens.

        pad: the id of padding
        by_length: whether examples of similar lengths meet in a batch, or any
        """
        columns, pads, make = self._columns(pad)
        pool = batch_size * BATCHES_PER_POOL if by_length else None
        limits = {"max_tokens": max_tokens, "batch_size": batch_size}
        return Buckets(columns, pads, **limits, pool=pool, seed=seed, make=make)

    def longest_first(self, pad: int | None, *, max_tokens: int) -> PaddedBatches:
        """All examples once, longest first, in batches of at most `max_tokens`: for evaluation."""
        columns, pads, make = self._columns(pad)
        return sorted_batches(columns, pads, max_tokens=max_tokens, make=make)


@dataclass(frozen=True, eq=False)
class InputBatch:
    """Encoder inputs, and which examples they are: `numbers` (B,) int64, on the CPU."""

    texts: Sequences
    numbers: Tensor

    def __len__(self) -> int:
        """The number of inputs, B."""
        return len(self.texts)

    def select(self, rows: Tensor) -> InputBatch:
        """The inputs of these indices."""
        return InputBatch(self.texts.select(rows), self.numbers[rows])

    def to(self, device: torch.device | str) -> InputBatch:
        """The same inputs on another device."""
        return InputBatch(self.texts.to(device), self.numbers)


@dataclass(frozen=True, eq=False)
class EncodedInputs(InputArrays):
    """Encoder inputs in flat arrays: ids, segments, and the number of each one's example."""

    ids: TokenArray
    segments: TokenArray
    numbers: TokenArray

    @classmethod
    def of(cls, inputs: Sequence[EncoderInput]) -> EncodedInputs:
        """Input i is example i."""
        return cls(
            TokenArray.of(item.ids for item in inputs),
            TokenArray.of((item.segments for item in inputs), 256),
            TokenArray(np.arange(len(inputs)), np.arange(len(inputs) + 1)),
        )

    def __len__(self) -> int:
        """The number of inputs."""
        return len(self.ids)

    def _columns(self, pad: int | None) -> Columns:
        return (self.ids, self.segments, self.numbers), (pad, 0, 0), _input_batch


def _input_batch(ids: Sequences, segments: Sequences, numbers: Sequences) -> InputBatch:
    return InputBatch(with_segments(ids, segments), numbers.ids[:, 0])


def with_segments(ids: Sequences, segments: Sequences) -> Sequences:
    """The sequences `ids` with the segment of every position, unless all are of the first."""
    # Models without segments (GPT) have no embedding even of the first.
    return replace(ids, segments=segments.ids) if bool(segments.ids.any()) else ids


# ------------------------------------------------------------------------------------------- groups


@dataclass(frozen=True, eq=False)
class GroupBatch:
    """The N inputs of B examples, in order: the first `sizes[0]` are those of the first example.

    sizes: (B,) int64.  numbers: (B,) int64, which examples they are. Both stay on the CPU: shapes
    depend on them, which then takes no waiting for a device.
    """

    texts: Sequences
    sizes: Tensor
    numbers: Tensor

    def __len__(self) -> int:
        """The number of examples, B."""
        return len(self.numbers)

    def select(self, rows: Tensor) -> GroupBatch:
        """The examples of these indices."""
        parts = torch.arange(len(self.texts)).split(self.sizes.tolist())
        texts = self.texts.select(torch.cat([parts[row] for row in rows.tolist()]))
        return GroupBatch(texts, self.sizes[rows], self.numbers[rows])

    def to(self, device: torch.device | str) -> GroupBatch:
        """The same inputs on another device."""
        return GroupBatch(self.texts.to(device), self.sizes, self.numbers)

    def sum_by_example(self, vectors: Tensor) -> Tensor:
        """The sum over the inputs of each example: (N, D) -> (B, D)."""
        owners = moved(torch.arange(len(self)).repeat_interleave(self.sizes), vectors.device)
        return vectors.new_zeros(len(self), vectors.size(1)).index_add(0, owners, vectors)

    def scores_by_example(self, scores: Tensor) -> Tensor:
        """The scores of each example's inputs: (N,) -> (B, C), -inf where it has fewer than C."""
        width = int(self.sizes.max()) if len(self) else 0
        present = moved(torch.arange(width) < self.sizes[:, None], scores.device)  # (B, C)
        padded = scores.new_full(present.shape, -torch.inf)
        return padded.masked_scatter(present, scores)


@dataclass(frozen=True, eq=False)
class GroupedInputs(InputArrays):
    """Examples in flat arrays: the ids and segments of all inputs of each, the inputs' lengths, and
    the number of the example."""

    ids: TokenArray
    segments: TokenArray
    lengths: TokenArray
    numbers: TokenArray

    @classmethod
    def of(cls, examples: Sequence[Sequence[EncoderInput]]) -> GroupedInputs:
        """From the inputs of each example."""
        return cls(
            TokenArray.of([i for item in inputs for i in item.ids] for inputs in examples),
            TokenArray.of(
                ([s for item in inputs for s in item.segments] for inputs in examples), 256
            ),
            TokenArray.of([len(item) for item in inputs] for inputs in examples),
            TokenArray(np.arange(len(examples)), np.arange(len(examples) + 1)),
        )

    def __len__(self) -> int:
        """The number of examples."""
        return len(self.ids)

    def _columns(self, pad: int | None) -> Columns:
        columns = self.ids, self.segments, self.lengths, self.numbers
        return columns, (0,) * 4, partial(_group_batch, pad)


def _group_batch(
    pad: int | None, ids: Sequences, segments: Sequences, lengths: Sequences, numbers: Sequences
) -> GroupBatch:
    """One row per input, from one row per example with its inputs end to end: (B, ·) -> (N, T)."""
    counts = lengths.ids[lengths.keep]  # (N,)
    inside = torch.arange(int(counts.max())) < counts[:, None]  # (N, T)
    padded = [
        torch.full(inside.shape, fill).masked_scatter(inside, flat.ids[flat.keep])
        for flat, fill in ((ids, pad or 0), (segments, 0))
    ]
    texts = with_segments(Sequences(padded[0], counts), Sequences(padded[1], counts))
    return GroupBatch(texts, lengths.lengths, numbers.ids[:, 0])


# ------------------------------------------------------------------------------------------ windows


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
