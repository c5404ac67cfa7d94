"""Attention in which several heads of queries read one head of keys and values.

"GQA: Training Generalized Multi-Query Transformer Models" (Ainslie et al. 2023, figure 2): with as
many heads of keys as of queries it is multi-head attention, with one it is multi-query attention.
A decoder's cache is smaller by the same factor.
"""

from __future__ import annotations

from torch import Tensor

from regard.attention.attend import SCALED, attend
from regard.attention.capture import CapturePoint
from regard.attention.multihead import (
    LayerCache,
    MultiHeadAttention,
    PackedLinear,
    merge_heads,
    split_heads,
    split_keys_values,
)
from regard.errors import ConfigError
from regard.layers.rotary import rotate
from regard.ops import ALL_KEYS, KeyMask


class GroupedQueryAttention(MultiHeadAttention):
    """Self-attention with rotary positions; head h of the queries reads keys and values
    h // (`heads` / `key_value_heads`).

    Args:
        key_value_heads: heads of keys and values; they divide `heads`.
        kind, head_dim, dropout, projection_bias: as of `SelfAttention`.

    Raises:
        ConfigError: `key_value_heads` does not divide `heads`.
        ValueError: `head_dim` is None and the heads do not divide the width.
    """

    projections = ("query", "key_value")

    def __init__(
        self,
        d_model: int,
        heads: int,
        key_value_heads: int,
        *,
        kind: str,
        head_dim: int | None = None,
        dropout: float = 0.0,
        projection_bias: bool = False,
    ):
        super().__init__(d_model, heads, head_dim, dropout)
        if heads % key_value_heads:
            raise ConfigError(
                f"`key_value_heads` must divide `heads` ({heads}), but is {key_value_heads}."
            )
        self.key_value_heads = key_value_heads
        width, shared = heads * self.head_dim, key_value_heads * self.head_dim
        self.query = PackedLinear(d_model, width, parts=1, bias=projection_bias)
        self.key_value = PackedLinear(d_model, shared, parts=2, bias=projection_bias)
        self.output = PackedLinear(width, d_model, parts=1, bias=projection_bias)
        self.capture = CapturePoint(kind)

    def forward(
        self,
        hidden: Tensor,
        mask: KeyMask = ALL_KEYS,
        *,
        angles: Tensor,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """(B, T, D) -> (B, T, D)

        Args:
            mask: the keys that each query may see.
            angles: of the positions of `hidden`, (T, K) or (B, T, K): see `RotaryPositions`.
            cache: the rotated keys, and the values, of earlier positions; it takes those of
                `hidden`.
        """
        query = rotate(split_heads(self.query(hidden), self.heads, self.head_dim), angles)
        packed = self.key_value(hidden)  # (B, T, 2 * G * K), with G = `key_value_heads`
        key, value = split_keys_values(packed, self.key_value_heads, self.head_dim)
        key = rotate(key, angles)
        if cache is not None:
            key, value = cache.update(key, value)
        context = attend(
            query,
            self._for_each_query(key),
            self._for_each_query(value),
            score=SCALED,
            mask=mask,
            dropout=self.dropout if self.training else 0.0,
            capture=self.capture,
        )
        return self.output(merge_heads(context))

    def _for_each_query(self, shared: Tensor) -> Tensor:
        """Each head as often as queries read it: (B, G, S, K) -> (B, H, S, K)."""
        readers = self.heads // self.key_value_heads
        return shared if readers == 1 else shared.repeat_interleave(readers, dim=1)
