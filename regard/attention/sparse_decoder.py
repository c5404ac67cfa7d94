"""Sparse attention of decoders: a part that replaces `SelfAttention`.

    attention = SparseSelfAttention(width, heads, kind="decoder", pattern=CausalBlocks(64))

A token sees those before it that the pattern allows. The full pass is computed block by block; with
a cache, a step reads the row of the same mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.attention.block_sparse import (
    block_window,
    by_blocks,
    global_blocks,
    random_blocks,
    random_plan,
)
from regard.attention.masks import Mask, causal
from regard.attention.multihead import LayerCache, SelfAttention
from regard.attention.relative_protocol import Relation
from regard.data.layout import ALL, TokenSubset
from regard.ops import ALL_KEYS, KeyMask


@dataclass(frozen=True)
class CausalBlocks:
    """Which earlier tokens a token sees: those of its own block and of `window` blocks before it,
    of the first block, and of `random` blocks before these, the same in all heads.
    """

    size: int
    window: int = 1
    random: int = 0
    seed: int = 0

    def mask(self, length: int) -> Mask:
        """The mask of sequences of `length` tokens; that of shorter ones is its first rows."""
        blocks = torch.tensor([-(-length // self.size)])
        plan = random_plan(blocks, 1, self.random, self.seed, is_causal=True)
        pattern = block_window(self.size, self.window, 0) | global_blocks(self.size)
        return causal() & (pattern | random_blocks(self.size, plan))


class SparseSelfAttention(SelfAttention):
    """`SelfAttention` of a decoder in which a token sees some of the tokens before it.

    Args:
        pattern: which ones.
        options: those of `SelfAttention`.
    """

    def __init__(self, d_model: int, heads: int, *, pattern: CausalBlocks, **options: Any):
        super().__init__(d_model, heads, **options)
        self.pattern = pattern

    def forward(
        self,
        hidden: Tensor,
        mask: KeyMask = ALL_KEYS,
        *,
        relation: Relation | None = None,
        cache: LayerCache | None = None,
        tokens: TokenSubset = ALL,
    ) -> Tensor:
        """As of `SelfAttention`; without a cache `mask` must be the causal one of padded batches.

        Raises:
            ValueError: it is another one.
        """
        if cache is None:
            if not mask.is_causal:
                raise ValueError("Sparse attention of a decoder needs the mask of a padded batch.")
            length, device = hidden.size(1), hidden.device
            mask = by_blocks(self.pattern.mask(length), length, self.pattern.size, device=device)
            return tokens.of(super().forward(hidden, mask, relation=relation))
        return super().forward(hidden, mask, relation=relation, cache=cache, tokens=tokens)

    def _read(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: KeyMask,
        relation: Relation | None = None,
    ) -> Tensor:
        if mask.sparse is None:  # after a cache
            mask = self._rows(mask, query.size(2), key.size(2), query.device)
        return super()._read(query, key, value, mask, relation)

    def _rows(self, mask: KeyMask, queries: int, keys: int, device: torch.device) -> KeyMask:
        """The rows of the pattern for queries that see the keys up to their own positions."""
        if mask.grid is None:
            positions = torch.arange(keys - queries, keys, device=device)[None]
        else:
            positions = mask.grid.expand(-1, -1, queries, keys)[:, 0].sum(-1) - 1  # (B, T)
        allowed = self.pattern.mask(keys).resolve(positions, keys, device=device)
        if mask.grid is None or allowed.grid is None:
            return allowed
        return KeyMask(allowed.grid & mask.grid)
