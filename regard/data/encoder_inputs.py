"""Texts as an encoder of pieces reads them: tokenizer, template and max_length together.

pieces = Pieces(tokenizer, template, max_length=512, pad=0)
rows = pieces.encode([("One text.",), ("A pair", "of texts")])        whole, however long
rows = [pieces.truncate(row) for row in rows]                      the longest text first
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from regard.data.batches import Sequences
from regard.data.bucketing import Buckets, PaddedBatches, sorted_batches
from regard.data.token_arrays import TokenArray
from regard.errors import ConfigError
from regard.text.templates import EncoderInput, Template

if TYPE_CHECKING:
    from regard.text import Tokenizer

Texts = tuple[str, ...]  # one, or two
TooLong = Literal["error", "truncate", "skip"]
BATCHES_PER_POOL = 50  # batches that are cut from one pool of rows sorted by length


@dataclass(frozen=True)
class InputFormat:
    """How texts become rows of ids.

    max_length: the most ids that a row may have; None: any number.
    pad: the id of padding; None: the model has no token for it.
    """

    tokenizer: Tokenizer
    template: Template
    max_length: int | None
    pad: int | None

    def __post_init__(self) -> None:
        least = self.template.special_count(2) + 2
        if self.max_length is not None and self.max_length < least:
            raise ConfigError(f"`max_length` must be at least {least}, but is {self.max_length}.")

    def encode(self, texts: Sequence[Texts]) -> list[EncoderInput]:
        """The rows of many texts or pairs of texts, not shortened. An empty text is one piece."""
        flat = iter(self.tokenizer.encode_many([part for one in texts for part in one]))
        return [self._row([next(flat) for _ in one]) for one in texts]

    def encode_words(self, sentences: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        """The pieces of each word of each sentence; a word that has none is the unknown piece.

        Words are taken as they stand between spaces; each is encoded once, however often it comes.
        """
        distinct = list(dict.fromkeys(word for sentence in sentences for word in sentence))
        # Byte-level pieces carry the space before a word: without one they are another word's end.
        spaced = [f" {word}" if self.tokenizer.kind == "byte-bpe" else word for word in distinct]
        found = [ids or [self._something()] for ids in self.tokenizer.encode_many(spaced)]
        pieces = dict(zip(distinct, found, strict=True))
        return [[pieces[word] for word in sentence] for sentence in sentences]

    def too_long(self, rows: Sequence[EncoderInput]) -> list[int]:
        """The indices of inputs longer than `max_length`."""
        return [
            i
            for i, row in enumerate(rows)
            if self.max_length is not None and len(row) > self.max_length
        ]

    def truncate(self, row: EncoderInput) -> EncoderInput:
        """The input within `max_length`, tokens dropped from the end of the longer text until both
        are equally long, then from both in turn (as BERT's own programs do)."""
        if self.max_length is None or len(row) <= self.max_length:
            return row
        texts = row.texts()
        room = self.max_length - self.template.special_count(len(texts))
        if len(texts) == 1:
            return self.template.apply([texts[0][:room]])
        first = min(len(texts[0]), max(room - len(texts[1]), (room + 1) // 2))
        return self.template.apply([texts[0][:first], texts[1][: room - first]])

    def batch(self, rows: Sequence[EncoderInput]) -> Sequences:
        """Rows side by side, padded on the right."""
        padded = Sequences.of([row.ids for row in rows], self.pad)
        return with_segments(padded, Sequences.of([row.segments for row in rows], 0))

    def _row(self, ids: list[list[int]]) -> EncoderInput:
        row = self.template.apply(ids)
        return row if row.ids else self.template.apply([[self._something()]])

    def _something(self) -> int:
        """What stands where there would be nothing: the unknown piece, or the end of a text."""
        known = (self.tokenizer.unk_id, self.tokenizer.eos_id, self.tokenizer.bos_id)
        return next((number for number in known if number is not None), self.pad or 0)


@dataclass(frozen=True, eq=False)
class InputBatch:
    """Rows of texts, and by `numbers` (B,) int64 which examples they are: those stay on the CPU."""

    texts: Sequences
    numbers: Tensor

    def __len__(self) -> int:
        """The number of rows, B."""
        return len(self.texts)

    def to(self, device: torch.device | str) -> InputBatch:
        """The same rows on another device."""
        return InputBatch(self.texts.to(device), self.numbers)


@dataclass(frozen=True, eq=False)
class EncodedInputs:
    """Rows in flat arrays: ids, segments, and the number of the example that each row is."""

    ids: TokenArray
    segments: TokenArray
    numbers: TokenArray

    @classmethod
    def of(cls, rows: Sequence[EncoderInput]) -> EncodedInputs:
        """Row i is example i."""
        return cls(
            TokenArray.of(row.ids for row in rows),
            TokenArray.of((row.segments for row in rows), 256),
            TokenArray.of([i] for i in range(len(rows))),
        )

    def __len__(self) -> int:
        return len(self.ids)

    def buckets(
        self, pad: int | None, *, rows: int, tokens: int, seed: int, alike: bool
    ) -> Buckets:
        """Shuffled batches of at most `rows` rows and `tokens` places.

        alike: rows of similar lengths together; else which rows meet does not depend on lengths.
        """
        columns, pads = self._columns(pad)
        pool = rows * BATCHES_PER_POOL if alike else None
        return Buckets(
            columns, pads, budget=tokens, rows=rows, pool=pool, seed=seed, make=_row_batch
        )

    def in_order(self, pad: int | None, *, tokens: int) -> PaddedBatches:
        """All rows once, longest first: for evaluation."""
        columns, pads = self._columns(pad)
        return sorted_batches(columns, pads, budget=tokens, make=_row_batch)

    def _columns(self, pad: int | None) -> tuple[tuple[TokenArray, ...], tuple[int | None, ...]]:
        return (self.ids, self.segments, self.numbers), (pad, 0, 0)


def _row_batch(ids: Sequences, segments: Sequences, numbers: Sequences) -> InputBatch:
    return InputBatch(with_segments(ids, segments), numbers.ids[:, 0])


def with_segments(ids: Sequences, segments: Sequences) -> Sequences:
    """Rows that know the segment of each place, where not all are of the first."""
    # Families without segments (GPT) must not be told of a first one.
    return replace(ids, segments=segments.ids) if bool(segments.ids.any()) else ids
