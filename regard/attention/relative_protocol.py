"""The protocol of relative positions: a term added to the scores, and one to the context.

    weights = softmax(scores + relation.scores)     context = weights values + relation.value_term

The parts for all layers of a stack are one module, a `RelativePositions`; in each pass it gives
every layer its `Relation`. The kinds are in `regard.attention.relative_kinds`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from regard.attention.attend import ValueTerm
from regard.attention.cache import KeyValueCache
from regard.attention.scores import Score
from regard.data.batches import Sequences
from regard.errors import RegardError


class Relation(ABC):
    """The relative-position terms of one layer for one batch."""

    @abstractmethod
    def scores(
        self, query: Tensor, key: Tensor, score: Score, remaining_heads: Sequence[int]
    ) -> Tensor:
        """What is added to the scores, (B, H, T, S) or what broadcasts to it.

        Args:
            query, key: (B, H, T, K) and (B, H, S, K).
            score: how queries and keys are compared.
            remaining_heads: the original indices of the H heads that are not pruned.
        """

    @property
    def value_term(self) -> ValueTerm | None:
        """From weights (B, H, T, S), what is added to the context (B, H, T, K); None: nothing."""
        return None


Relations = Sequence[Relation | None]  # of each layer


class RelativePositions(nn.Module, ABC):
    """The relations of a stack of layers, with their parameters."""

    @abstractmethod
    def between(self, queries: Tensor, keys: Tensor) -> Relations:
        """Between queries at the positions (T,), or (B, T), and keys at the positions (S,)."""

    def of(self, batch: Sequences) -> Relations:
        """Between all tokens of a batch.

        Raises:
            RegardError: the batch is not padded.
        """
        positions = padded_positions(batch)
        return self.between(positions, positions)

    def after(self, cache: KeyValueCache, count: int) -> Relations:
        """For a decoding step: queries are the next `count` tokens, keys the cached and these."""
        keys = torch.arange(cache.longest + count, device=cache.lengths.device)
        return self.between(
            keys[cache.longest :] if cache.equal_lengths else cache.positions(count), keys
        )


def padded_positions(batch: Sequences) -> Tensor:
    """(T,)

    Raises:
        RegardError: the batch is not padded.
    """
    if batch.layout is not None:
        raise RegardError(
            "Relative positions are those of a padded batch, but this one is unpadded. Give it as "
            "it was before `unpadded()`."
        )
    return batch.positions


class NoRelations(RelativePositions):
    """No relative positions: absolute ones are in the embeddings."""

    def __init__(self, layers: int):
        super().__init__()
        self.layers = layers

    def between(self, queries: Tensor, keys: Tensor) -> Relations:
        return [None] * self.layers

    def of(self, batch: Sequences) -> Relations:
        """The relations in a batch, padded or unpadded."""
        return [None] * self.layers

    def after(self, cache: KeyValueCache, count: int) -> Relations:
        return [None] * self.layers
