"""Two-stream attention with relative positions (Yang et al. 2019, sections 2.3, 2.5 and A.2).

    score(i, j) = ((q_i + u) k_j + (q_i + v) W_r r_{i-j} + (q_i + s) e_{ij}) / sqrt(K)

Two streams of queries read the same keys and values, which are those of the content stream h. A
token of h sees itself, one of the query stream g, which is to be predicted, does not:

    g_i = attend(g_i, h_j with j before i in the order)
    h_i = attend(h_i, h_j with j before i in the order, or j = i)

r is the vector of a distance (Dai et al. 2019, section 3.3), on both sides of a token; e is a
learned vector that says whether i and j belong to the same segment; u, v, s are learned for each
head.
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
    merge_heads,
    split_heads,
    width_of_head,
)
from regard.attention.relative import relative_scores
from regard.layers.dropout import check_probability
from regard.layers.linear import Linear
from regard.ops import KeyMask

CONTENT, QUERY = "encoder", "query"  # the streams, as attention capture names them


@dataclass(frozen=True)
class StreamKeys:
    """What both streams of a layer read: (B, H, S, K) twice, and distances (1, H, R, K)."""

    key: Tensor
    value: Tensor
    distances: Tensor


@dataclass(frozen=True)
class StreamRelations:
    """How the queries of one stream are related to the keys, in every layer.

    mask: which keys each query may see.
    rows: (1 or B, 1, T, S) int64, the row of the table of distances for each query and key.
    other_segment: (B, 1, T, S) bool, whether query and key belong to different segments; None: no
        segments are given, so that all belong to one.
    stream: `CONTENT` or `QUERY`.
    """

    mask: KeyMask
    rows: Tensor
    other_segment: Tensor | None = None
    stream: str = CONTENT


def allowed_keys(allowed: Tensor, queries: Tensor, before: int) -> Tensor:
    """The rows of a grid (B, N, N) of a segment for the queries at positions (1 or B, T) in it.

    Returns:
        (B, 1, T, S); each query may see the memory, the first `before` keys.
    """
    rows = queries.expand(len(allowed), -1)[..., None].expand(-1, -1, allowed.size(-1))
    return pad(allowed.gather(1, rows), (before, 0), value=True)[:, None]


def in_other_segment(segments: Tensor, queries: Tensor, before: int) -> Tensor:
    """Whether queries at positions (1 or B, T) and keys are of different segments (B, N).

    Returns:
        (B, 1, T, S); the memory, the first `before` keys, is of the segment 0.
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
        self.heads, self.head_dim = heads, width_of_head(d_model, heads)
        self.dropout = dropout
        self.query = Linear(d_model, d_model, bias=False)
        self.key_value = PackedLinear(d_model, d_model, parts=2, bias=False)
        self.distance = Linear(d_model, d_model, bias=False)
        self.output = Linear(d_model, d_model, bias=False)
        self.content_bias = nn.Parameter(torch.zeros(heads, 1, self.head_dim))
        self.position_bias = nn.Parameter(torch.zeros(heads, 1, self.head_dim))
        self.segment_bias = nn.Parameter(torch.zeros(heads, 1, self.head_dim))
        self.segments = nn.Parameter(torch.zeros(heads, 2, self.head_dim))  # the same, another
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
            cache: the keys and values of earlier positions; it takes those of `content`.
        """
        hidden = content if memory is None else torch.cat([memory.detach().to(content), content], 1)
        both = split_heads(self.key_value(hidden), 2 * self.heads, self.head_dim)
        key, value = both.chunk(2, dim=1)  # (B, 2H, S, K) -> 2 times (B, H, S, K)
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
        bias = relative_scores(query, self.position_bias, keys.distances, relations.rows)
        if relations.other_segment is None:
            return bias
        same, other = SCALED(query + self.segment_bias, self.segments).unbind(-1)
        return bias + torch.where(relations.other_segment, other[..., None], same[..., None])
