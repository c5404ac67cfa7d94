"""The blocks of Transformer-XL, with the norm after each sub-layer ("post") or before it ("pre").

The published models are post-norm; Dai et al. 2019 also trained pre-norm ones.
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor, nn

from regard.attention.multihead import LayerCache
from regard.attention.relative_attention import Distances, RelativeAttention
from regard.layers.dropout import Dropout
from regard.layers.feedforward import FeedForward
from regard.layers.norm import AddNorm
from regard.ops import KeyMask


class BlockOptions(Protocol):
    """What the blocks read of a configuration; see `TransformerXLConfig`."""

    @property
    def d_model(self) -> int: ...
    @property
    def d_ff(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def head_dim(self) -> int | None: ...
    @property
    def dropout(self) -> float: ...
    @property
    def attention_dropout(self) -> float: ...
    @property
    def norm_eps(self) -> float: ...


class PostNormBlock(nn.Module):
    """x = norm(x + attend(x)); x = norm(x + feed(x))"""

    def __init__(self, config: BlockOptions):
        super().__init__()
        self.attention = relative_attention(config)
        self.attention_norm = add_norm(config)
        self.feed = feed_forward(config)
        self.feed_norm = add_norm(config)

    def forward(
        self,
        hidden: Tensor,
        mask: KeyMask,
        distances: Distances,
        memory: Tensor | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        attended = self.attention(hidden, mask, distances, memory=memory, cache=cache)
        hidden = self.attention_norm(hidden, attended)
        return self.feed_norm(hidden, self.feed(hidden))

    def keys_and_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of the memory (B, M, D): (B, H, M, K) twice."""
        return self.attention.keys_and_values(memory)

    def content_queries(self, hidden: Tensor) -> Tensor:
        """q + u of the inputs of the block: (B, T, D) -> (B, H, T, K)."""
        return self.attention.content_queries(hidden)


class PreNormBlock(nn.Module):
    """x = x + attend(norm(x)); x = x + feed(norm(x)). The memory is read through the norm, too."""

    def __init__(self, config: BlockOptions):
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.d_model, eps=config.norm_eps)
        self.attention = relative_attention(config)
        self.feed_norm = nn.LayerNorm(config.d_model, eps=config.norm_eps)
        self.feed = feed_forward(config)
        self.dropout = Dropout(config.dropout)

    def forward(
        self,
        hidden: Tensor,
        mask: KeyMask,
        distances: Distances,
        memory: Tensor | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        normed, memory = self.attention_norm(hidden), self._read(memory)
        attended = self.attention(normed, mask, distances, memory=memory, cache=cache)
        hidden = hidden + self.dropout(attended)
        return hidden + self.dropout(self.feed(self.feed_norm(hidden)))

    def keys_and_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of the memory (B, M, D): (B, H, M, K) twice."""
        return self.attention.keys_and_values(self.attention_norm(memory))

    def content_queries(self, hidden: Tensor) -> Tensor:
        """q + u of the inputs of the block: (B, T, D) -> (B, H, T, K)."""
        return self.attention.content_queries(self.attention_norm(hidden))

    def _read(self, memory: Tensor | None) -> Tensor | None:
        return None if memory is None else self.attention_norm(memory)


BLOCKS: dict[str, Any] = {"post": PostNormBlock, "pre": PreNormBlock}


def relative_attention(config: BlockOptions) -> RelativeAttention:
    """The attention of this configuration."""
    return RelativeAttention(
        config.d_model,
        config.heads,
        head_dim=config.head_dim,
        dropout=config.attention_dropout,
    )


def add_norm(config: BlockOptions) -> AddNorm:
    """norm(x + drop(f(x))), after each sub-layer f."""
    return AddNorm(config.d_model, eps=config.norm_eps, dropout=config.dropout)


def feed_forward(config: BlockOptions) -> FeedForward:
    """The feed-forward layer of this configuration."""
    return FeedForward(config.d_model, config.d_ff, dropout=config.dropout)
