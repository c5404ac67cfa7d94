"""Texts as inputs of an encoder: tokenizer, template and length limit together.

format = InputFormat(tokenizer, template, max_length=512, pad=0)
inputs = format.encode([("One text.",), ("A pair", "of texts")])    of any length
inputs = [format.truncate(one) for one in inputs]                   the longer text first
batch = format.batch(inputs)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from regard.data.batches import Sequences
from regard.data.bucketing import Buckets, Make, PaddedBatches, sorted_batches
from regard.data.token_arrays import TokenArray
from regard.errors import check_at_least
from regard.text.templates import EncoderInput, Template

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
            TokenArray.of([i] for i in range(len(inputs))),
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
