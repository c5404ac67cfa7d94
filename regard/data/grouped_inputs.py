"""Examples of several encoder inputs: the choices of a question, a pair of texts in both orders.

The inputs of an example stay together in one batch. A batch costs about as many tokens as its
inputs have, and its size is counted in examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from regard.data.batches import Sequences, moved
from regard.data.encoder_inputs import Columns, InputArrays, with_segments
from regard.data.token_arrays import TokenArray
from regard.text.templates import EncoderInput


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
            TokenArray.of([i] for i in range(len(examples))),
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
