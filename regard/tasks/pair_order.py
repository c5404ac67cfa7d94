"""The orders in which the two texts of a pair are read."""

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

    def arrange(self, inputs: Sequence[EncoderInput]) -> EncodedInputs | GroupedInputs:
        """Encoded texts as examples: input i is example i."""

    def combine(self, pooled: Tensor, batch: Any) -> Tensor:
        """From what the head reads of each input, (N, ...), to what it reads of each example."""


@dataclass(frozen=True)
class GivenOrder:
    """Each pair is read once, as (a, b)."""

    def arrange(self, inputs: Sequence[EncoderInput]) -> EncodedInputs:
        """One input per example."""
        return EncodedInputs.of(inputs)

    def combine(self, pooled: Tensor, batch: Any) -> Tensor:
        """The same: each input is an example."""
        return pooled


@dataclass(frozen=True)
class BothOrders:
    """Each pair is read as (a, b) and as (b, a); what the head reads of both is added (Radford et
    al. 2018, section 3.3).
    """

    template: Template

    def arrange(self, inputs: Sequence[EncoderInput]) -> GroupedInputs:
        """Two inputs per pair, one per single text."""
        return GroupedInputs.of([self._orders(item) for item in inputs])

    def combine(self, pooled: Tensor, batch: GroupBatch) -> Tensor:
        """(N, D) -> (B, D)"""
        return batch.sum_by_example(pooled)

    def _orders(self, item: EncoderInput) -> list[EncoderInput]:
        texts = item.texts()
        return [item] if len(texts) == 1 else [item, self.template.apply(texts[::-1])]
