"""In which orders the two texts of a pair are read: one strategy each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from regard.data.encoder_inputs import EncodedInputs
from regard.data.grouped_inputs import GroupBatch, GroupedInputs
from regard.text.templates import EncoderInput, Template


class PairOrder(Protocol):
    """How pairs are read, and what the head reads of them."""

    def arrange(self, rows: Sequence[EncoderInput]) -> EncodedInputs | GroupedInputs:
        """Encoded texts as examples: row i is example i."""
        ...

    def combine(self, read: Tensor, batch: Any) -> Tensor:
        """From what the head reads of each row, (R, ...), to what it reads of each example."""
        ...


@dataclass(frozen=True)
class GivenOrder:
    """Each pair is read once, as (a, b)."""

    def arrange(self, rows: Sequence[EncoderInput]) -> EncodedInputs:
        """One row per example."""
        return EncodedInputs.of(rows)

    def combine(self, read: Tensor, batch: Any) -> Tensor:
        """The same: each row is an example."""
        return read


@dataclass(frozen=True)
class BothOrders:
    """Each pair is read as (a, b) and as (b, a); what the head reads of both is added (Radford et
    al. 2018, section 3.3).
    """

    template: Template

    def arrange(self, rows: Sequence[EncoderInput]) -> GroupedInputs:
        """Two rows per pair, one per single text."""
        return GroupedInputs.of([self._orders(row) for row in rows])

    def combine(self, read: Tensor, batch: GroupBatch) -> Tensor:
        """(R, D) -> (B, D)"""
        return batch.sum_by_example(read)

    def _orders(self, row: EncoderInput) -> list[EncoderInput]:
        texts = row.texts()
        return [row] if len(texts) == 1 else [row, self.template.apply(texts[::-1])]
