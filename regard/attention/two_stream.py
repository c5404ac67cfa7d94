"""Two-stream attention with relative positions (Yang et al. 2019, sections 2.3, 2.5 and A.2).

    score(i, j) = ((q_i + u) k_j + (q_i + v) W_r r_{i-j} + (q_i + s) e_{ij}) / sqrt(K)

Two streams of queries read the same keys and values, which are those of the content stream h. A
token of h sees itself, one of the query stream g, which is to be predicted, does not:

    g_i = attend(g_i, h_j with j before i in the order)
    h_i = attend(h_i, h_j with j before i in the order, or j = i)

r_{i-j} is the sinusoid of the signed distance (Dai et al. 2019, section 3.3); e_{ij} is one of two
learned vectors, for the same segment id or different ones; u, v, s are learned for each head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from regard.attention.attend import SCALED, attend
from regard.attention.capture import CapturePoint
from regard.attention.multihead import (
    LayerCache,
    PackedLinear,
    head_dim_of,
    merge_heads,
    split_heads,
    split_keys_values,
)
from regard.attention.relative_attention import relative_scores
from regard.layers.dropout import check_probability
from regard.layers.linear import Linear
from regard.ops import KeyMask
from regard.state import State

# Attention capture shows the content stream as the attention of an encoder.
CONTENT, QUERY = "encoder", "query"


@dataclass
class SegmentMemory(State):
    """The inputs of each layer at the last M positions before a segment: (B, L, M, D)."""

    hidden: Tensor

    @classmethod
    def after(
        cls, hidden: Tensor, memory: SegmentMemory | None, length: int | None
    ) -> SegmentMemory:
        """The memory after a segment, whose layers read `hidden` (B, L, T, D); `memory` is used up.

        length: M, the positions that are stored; None: all.
        """
        if memory is not None:
            memory.consume()
            hidden = torch.cat([memory.hidden.to(hidden), hidden], 2)
        return cls(hidden[:, :, -(length or 0) :].detach())


@dataclass(frozen=True)
class StreamKeys:
    """What both streams of a layer read: keys and values (B, H, S, K), and W_r r of R distances,
    (1, H, R, K).
    """

    key: Tensor
    value: Tensor
    distance_keys: Tensor


@dataclass(frozen=True)
class StreamRelations:
    """How the queries of one stream are related to the keys, in every layer.

    mask: which keys each query may see.
    distance_index: the row of `StreamKeys.distance_keys` for each query and key, (1 or B, 1, T, S)
        int64.
    other_segment: (B, 1, T, S) bool, whether query and key have different segment ids; None: all
        have the same.
    stream: `CONTENT` or `QUERY`.
    """

    mask: KeyMask
    distance_index: Tensor
    other_segment: Tensor | None = None
    stream: str = CONTENT


def allowed_keys(allowed: Tensor, queries: Tensor, before: int) -> Tensor:
    """The mask of the queries at positions (1 or B, T), from the mask (B, N, N) of the segment.

    Returns:
        (B, 1, T, S); each query may see the memory, the first `before` keys.
    """
    rows = queries.expand(len(allowed), -1)[..., None].expand(-1, -1, allowed.size(-1))
    return pad(allowed.gather(1, rows), (before, 0), value=True)[:, None]


def in_other_segment(segments: Tensor, queries: Tensor, before: int) -> Tensor:
    """Whether queries at positions (1 or B, T) and keys are of different segments (B, N).

    Returns:
        (B, 1, T, S); the memory, the first `before` keys, has segment id 0.
    """
    of_queries = segments.gather(1, queries.expand(len(segments), -1))  # (B, T)
    return (of_queries[:, :, None] != pad(segments, (before, 0))[:, None])[:, None]


class TwoStreamAttention(nn.Module):
    """The attention of one layer, for queries of either stream.

    Raises:
        ValueError: the heads do not divide the width.
    """

    def __init__(self, d_model: int, heads: int, *, dropout: float = 0.0):
        super().__init__()
        check_probability(dropout)
        self.heads, self.head_dim = heads, head_dim_of(d_model, heads)
        self.dropout = dropout
        self.query = Linear(d_model, d_model, bias=False)
        self.key_value = PackedLinear(d_model, d_model, parts=2, bias=False)
        self.distance = Linear(d_model, d_model, bias=False)
        self.output = Linear(d_model, d_model, bias=False)
        self.content_bias = nn.Parameter(torch.zeros(heads, 1, self.head_dim))
        self.position_bias = nn.Parameter(torch.zeros(heads, 1, self.head_dim))
        self.segment_bias = nn.Parameter(torch.zeros(heads, 1, self.head_dim))
        self.segments = nn.Parameter(torch.zeros(heads, 2, self.head_dim))  # e: same, other
        self.capture = CapturePoint(CONTENT)
        self.query_stream = CapturePoint(QUERY)

    def read(
        self,
        content: Tensor,
        distances: Tensor,
        memory: Tensor | None = None,
        cache: LayerCache | None = None,
    ) -> StreamKeys:
        """The keys and values of the content stream (B, T, D).

        Args:
            distances: (R, D), the table of vectors of distances.
            memory: (B, M, D) of the segments before; it gets no gradient.
            cache: the keys and values of earlier positions; those of `content` are added to it.
        """
        hidden = content if memory is None else torch.cat([memory.detach().to(content), content], 1)
        key, value = split_keys_values(self.key_value(hidden), self.heads, self.head_dim)
        if cache is not None:
            key, value = cache.update(key, value)
        vectors = self.distance(distances.to(content))[None]
        return StreamKeys(key, value, split_heads(vectors, self.heads, self.head_dim))

    def forward(self, hidden: Tensor, keys: StreamKeys, relations: StreamRelations) -> Tensor:
        """(B, T, D) of one stream -> (B, T, D)"""
        query = split_heads(self.query(hidden), self.heads, self.head_dim)  # (B, H, T, K)
        context = attend(
            query + self.content_bias,
            keys.key,
            keys.value,
            score=SCALED,
            mask=relations.mask,
            bias=self._bias(query, keys, relations),
            dropout=self.dropout if self.training else 0.0,
            capture=self.query_stream if relations.stream == QUERY else self.capture,
        )
        return self.output(merge_heads(context))

    def _bias(self, query: Tensor, keys: StreamKeys, relations: StreamRelations) -> Tensor:
        """The scores of distances and segments, (B, H, T, S)."""
        bias = relative_scores(
            query, self.position_bias, keys.distance_keys, relations.distance_index
        )
        if relations.other_segment is None:
            return bias
        same, other = SCALED(query + self.segment_bias, self.segments).unbind(-1)
        return bias + torch.where(relations.other_segment, other[..., None], same[..., None])
