"""Examples of several rows each: the choices of a question, a pair of texts in both orders.

An example's rows stay together in one batch. A batch costs about as many places as its rows have,
and its size is counted in examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from regard.data.batches import Sequences, moved
from regard.data.bucketing import Buckets, PaddedBatches, sorted_batches
from regard.data.encoder_inputs import BATCHES_PER_POOL, with_segments
from regard.data.token_arrays import TokenArray
from regard.text.templates import EncoderInput


@dataclass(frozen=True, eq=False)
class GroupBatch:
    """Rows (R of them) of B examples, in order: the first `sizes[0]` are those of the first.

    sizes: (B,) int64.  numbers: (B,) int64, which examples they are. Both stay on the CPU: what
    shapes depend on is known there without waiting for a device.
    """

    texts: Sequences
    sizes: Tensor
    numbers: Tensor

    def __len__(self) -> int:
        """The number of examples, B."""
        return len(self.numbers)

    def to(self, device: torch.device | str) -> GroupBatch:
        """The same rows on another device."""
        return GroupBatch(self.texts.to(device), self.sizes, self.numbers)

    def summed(self, vectors: Tensor) -> Tensor:
        """The sum over the rows of each example: (R, D) -> (B, D)."""
        owners = moved(torch.arange(len(self)).repeat_interleave(self.sizes), vectors.device)
        return vectors.new_zeros(len(self), vectors.size(1)).index_add(0, owners, vectors)

    def side_by_side(self, scores: Tensor) -> Tensor:
        """The scores of an example's rows in one line: (R,) -> (B, C), -inf where it has fewer."""
        most = int(self.sizes.max()) if len(self) else 0
        places = moved(torch.arange(most) < self.sizes[:, None], scores.device)
        laid = scores.new_full(places.shape, -torch.inf)
        return laid.masked_scatter(places, scores)


@dataclass(frozen=True, eq=False)
class GroupedInputs:
    """Examples in flat arrays: the ids and segments of all rows of each, and the rows' lengths."""

    ids: TokenArray
    segments: TokenArray
    lengths: TokenArray
    numbers: TokenArray

    @classmethod
    def of(cls, examples: Sequence[Sequence[EncoderInput]]) -> GroupedInputs:
        """The rows of each example."""
        return cls(
            TokenArray.of([i for row in rows for i in row.ids] for rows in examples),
            TokenArray.of(([s for row in rows for s in row.segments] for rows in examples), 256),
            TokenArray.of([len(row) for row in rows] for rows in examples),
            TokenArray.of([i] for i in range(len(examples))),
        )

    def __len__(self) -> int:
        return len(self.ids)

    def buckets(
        self, pad: int | None, *, rows: int, tokens: int, seed: int, alike: bool
    ) -> Buckets:
        """Shuffled batches of at most `rows` examples and about `tokens` places.

        alike: examples of similar lengths together; else which meet does not depend on lengths.
        """
        columns, pads, pool = self._columns(), (0,) * 4, rows * BATCHES_PER_POOL if alike else None
        make = partial(_group_batch, pad)
        return Buckets(columns, pads, budget=tokens, rows=rows, pool=pool, seed=seed, make=make)

    def in_order(self, pad: int | None, *, tokens: int) -> PaddedBatches:
        """All examples once, longest first: for evaluation."""
        make = partial(_group_batch, pad)
        return sorted_batches(self._columns(), (0,) * 4, budget=tokens, make=make)

    def _columns(self) -> tuple[TokenArray, ...]:
        return self.ids, self.segments, self.lengths, self.numbers


def _group_batch(
    pad: int | None, ids: Sequences, segments: Sequences, lengths: Sequences, numbers: Sequences
) -> GroupBatch:
    rows = lengths.ids[lengths.keep]  # (R,)
    inside = torch.arange(int(rows.max())) < rows[:, None]  # (R, T)
    laid = [
        torch.full(inside.shape, fill).masked_scatter(inside, flat.ids[flat.keep])
        for flat, fill in ((ids, pad or 0), (segments, 0))
    ]
    texts = with_segments(Sequences(laid[0], rows), Sequences(laid[1], rows))
    return GroupBatch(texts, lengths.lengths, numbers.ids[:, 0])
