"""Transformer-XL's attention by relative positions (Dai et al. 2019, section 3.3).

Queries are compared with keys and with their distances; keys are also the hidden states of the
segment before.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from regard import ops
from regard.attention import multihead
from regard.attention.attend import SCALED, attend, is_captured
from regard.attention.capture import CapturePoint, ReshapedCapture
from regard.attention.relative import relative_scores, relative_shift
from regard.layers.dropout import check_probability
from regard.layers.linear import Linear
from regard.layers.positions import sinusoid
from regard.ops import ALL_KEYS, KeyMask
from regard.state import State


@ops.operation
def relative_attention(
    content_query: Tensor,
    distance_query: Tensor,
    key: Tensor,
    value: Tensor,
    distance_key: Tensor,
    mask: KeyMask = ALL_KEYS,
    scale: float | None = None,
) -> Tensor:
    """softmax(scale (Q K^T + shift(P R^T))) V         (Dai et al. 2019, section 3.3)

    Args:
        content_query: q + u, (B, H, T, K).
        distance_query: q + v, (B, H, T, K), of the last T of S positions.
        key, value: (B, H, S, K).
        distance_key: W_r r, (1 or B, H, S, K); row c is of distance S - 1 - c.
        mask: which keys each query may see: none after its own position.
        scale: of the scores; None: 1 / sqrt(K).

    Returns:
        The context, (B, H, T, K).
    """
    scale = key.size(-1) ** -0.5 if scale is None else scale
    bias = relative_shift((distance_query * scale) @ distance_key.mT)
    return ops.attention(content_query, key, value, mask, bias, scale)


class DistanceScores(Protocol):
    """Gives the position part of the scores of every layer, for the queries of one pass."""

    def scores(
        self, query: Tensor, position_bias: Tensor, project: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """`relative_scores` of queries (B, H, T, K): (B, H, T, S).

        Args:
            position_bias: v of the layer, (H, 1, K).
            project: W_r of the layer, from vectors of distances (..., R, D) to (..., H, R, K).
        """
        ...


@dataclass(frozen=True)
class ByDistance:
    """Vectors of distances S - 1 ... 0, (S, D), or (B, S, D) for sequences with their own."""

    vectors: Tensor

    def scores(
        self, query: Tensor, position_bias: Tensor, project: Callable[[Tensor], Tensor]
    ) -> Tensor:
        return relative_scores(query, position_bias, project(self.vectors))


@dataclass(frozen=True)
class ProjectedDistances:
    """W_r r of the distances S - 1 ... 0, already projected: (1, H, S, K)."""

    keys: Tensor


Distances = DistanceScores | ProjectedDistances


def attend_by_distance(
    content_query: Tensor,
    distance_query: Tensor,
    key: Tensor,
    value: Tensor,
    distance_key: Tensor,
    *,
    mask: KeyMask,
    capture: CapturePoint | ReshapedCapture,
) -> Tensor:
    """`relative_attention`, whose weights `capture` receives: (B, H, T, K)."""
    if not is_captured(capture):
        return relative_attention(content_query, distance_query, key, value, distance_key, mask)
    bias = relative_shift(SCALED(distance_query, distance_key))
    return attend(content_query, key, value, mask=mask, bias=bias, capture=capture)


class RelativeAttention(nn.Module):
    """Self-attention over this segment and the memory before it (Transformer-XL).

    score(i, j) = ((q_i + u) k_j + (q_i + v) W_r r_ij) / sqrt(K)

    u and v, the content and the position bias, are learned for each head. r_ij is sinusoid(i - j);
    with other `DistanceScores` it is defined there.

    Args:
        head_dim: K; None: D / H.

    Raises:
        ValueError: `head_dim` is None and the heads do not divide the width.
    """

    def __init__(
        self,
        d_model: int,
        heads: int,
        *,
        head_dim: int | None = None,
        kind: str = "decoder",
        dropout: float = 0.0,
    ):
        super().__init__()
        check_probability(dropout)
        self.heads, self.head_dim = heads, head_dim or multihead.head_dim_of(d_model, heads)
        self.dropout, width = dropout, heads * self.head_dim
        self.query = Linear(d_model, width, bias=False)
        self.key_value = multihead.PackedLinear(d_model, width, parts=2, bias=False)
        self.distance = Linear(d_model, width, bias=False)
        self.content_bias = nn.Parameter(torch.zeros(heads, 1, self.head_dim))
        self.position_bias = nn.Parameter(torch.zeros(heads, 1, self.head_dim))
        self.output = Linear(width, d_model, bias=False)
        self.capture = CapturePoint(kind)

    def forward(
        self,
        hidden: Tensor,
        mask: KeyMask,
        distances: Distances,
        *,
        memory: Tensor | None = None,
        cache: multihead.LayerCache | None = None,
    ) -> Tensor:
        """(B, T, D) -> (B, T, D)

        Args:
            mask: which of the S = M + T keys each query may see: at most those up to itself.
            distances: of these queries and keys.
            memory: hidden states (B, M, D) of the segments before, detached.
            cache: their keys and values instead; those of `hidden` are added to it. At most one of
                `memory` and `cache` is given.
        """
        query = multihead.split_heads(self.query(hidden), self.heads, self.head_dim)  # (B, H, T, K)
        inputs = hidden if memory is None else torch.cat([memory, hidden], 1)
        key, value = self.keys_and_values(inputs)
        if cache is not None:
            key, value = cache.update(key, value)
        if isinstance(distances, ProjectedDistances):
            context = attend_by_distance(
                query + self.content_bias,
                query + self.position_bias,
                key,
                value,
                distances.keys,
                mask=mask,
                capture=self.capture,
            )
        else:
            context = attend(
                query + self.content_bias,
                key,
                value,
                score=SCALED,
                mask=mask,
                bias=distances.scores(query, self.position_bias, self.project),
                dropout=self.dropout if self.training else 0.0,
                capture=self.capture,
            )
        return self.output(multihead.merge_heads(context))

    def content_queries(self, hidden: Tensor) -> Tensor:
        """q + u: (B, T, D) -> (B, H, T, K)."""
        query = multihead.split_heads(self.query(hidden), self.heads, self.head_dim)
        return query + self.content_bias

    def keys_and_values(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values of hidden states: (B, S, D) -> 2 times (B, H, S, K)."""
        return multihead.split_keys_values(self.key_value(inputs), self.heads, self.head_dim)

    def project(self, vectors: Tensor) -> Tensor:
        """W_r r of R distances: (R, D) or (B, R, D) -> (1 or B, H, R, K)."""
        vectors = vectors if vectors.dim() == 3 else vectors[None]
        return multihead.split_heads(self.distance(vectors), self.heads, self.head_dim)


def distance_vectors(
    count: int, d_model: int, *, max_distance: int | None = None, like: Tensor | None = None
) -> Tensor:
    """r, the sinusoids of the distances `count` - 1 ... 0: (S, D) with S = `count`.

    max_distance: larger distances are replaced by it; None: no limit.
    like: a tensor whose dtype and device the result has.
    """
    device = None if like is None else like.device
    distances = torch.arange(count - 1, -1, -1, device=device)
    vectors = sinusoid(
        distances if max_distance is None else distances.clamp(max=max_distance), d_model
    )
    return vectors if like is None else vectors.to(like.dtype)


# ------------------------------------------------- an implementation of relative_attention

FEW_SCORES = 2**16  # of a head, T S; with fewer, all heads are computed at once


def _takes_by_head(
    content_query: Tensor,
    distance_query: Tensor,
    key: Tensor,
    value: Tensor,
    distance_key: Tensor,
    mask: KeyMask = ALL_KEYS,
    scale: float | None = None,
) -> bool:
    large = content_query.size(-2) > 1 and content_query.size(-2) * key.size(-2) >= FEW_SCORES
    tensors = (content_query, distance_query, key, value, distance_key)
    learns = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    if mask.unpadded is not None or mask.sparse is not None or torch.compiler.is_compiling():
        return False
    in_float32 = key.dtype == torch.float32 and not ops.autocasts_to_bfloat16(key)
    return large and not learns and in_float32 and key.device.type == "cpu"


def _by_head(
    content_query: Tensor,
    distance_query: Tensor,
    key: Tensor,
    value: Tensor,
    distance_key: Tensor,
    mask: KeyMask = ALL_KEYS,
    scale: float | None = None,
) -> Tensor:
    """Head by head, with all scores in one buffer (T, S), which fits the processor's cache."""
    scale = key.size(-1) ** -0.5 if scale is None else scale
    content_query, distance_query = content_query * scale, distance_query * scale
    sequences, heads, count, total = *content_query.shape[:3], key.size(2)
    context = value.new_empty(sequences, heads, count, value.size(-1))
    # `relative_shift` without a copy: what is written to all but the first column of (T, 1 + S) is
    # read as (T, S) from element T on.
    buffer = value.new_empty(count * (total + 1))
    padded, scores = buffer.view(count, total + 1), buffer[count:].view(count, total)
    padded[:, 0], by_distance = 0, padded[:, 1:]
    columns, blocked = _blocked_columns(mask)
    for b, h in itertools.product(range(sequences), range(heads)):
        torch.mm(distance_query[b, h], distance_key[b % len(distance_key), h].mT, out=by_distance)
        scores.addmm_(content_query[b, h], key[b, h].mT)
        if blocked is not None:
            hidden = blocked[b % len(blocked), h % blocked.size(1)]
            scores[:, columns].masked_fill_(hidden, torch.finfo(scores.dtype).min)
        torch.mm(torch.softmax(scores, -1, out=scores), value[b, h], out=context[b, h])
    return context if mask.idle is None else context.masked_fill(mask.idle, 0.0)


def _blocked_columns(mask: KeyMask) -> tuple[slice, Tensor | None]:
    """The columns from the first to the last key that some query may not see, and the mask of these
    S' columns, True = blocked: (1 or B, 1 or H, 1 or T, S').
    """
    if mask.blocked is None:
        return slice(0), None
    blocked = mask.blocked[(None,) * (4 - mask.blocked.dim())]
    blocked_keys = blocked.flatten(0, 2).any(0).nonzero()
    columns = (
        slice(int(blocked_keys[0]), int(blocked_keys[-1]) + 1) if len(blocked_keys) else slice(0)
    )
    return columns, blocked[..., columns]


ops.register(relative_attention, "by-head", _by_head, when=_takes_by_head)


# -------------------------------------------------------------------------------------- two streams
#
# Two-stream attention with relative positions (Yang et al. 2019, sections 2.3, 2.5 and A.2).
#
#     score(i, j) = ((q_i + u) k_j + (q_i + v) W_r r_{i-j} + (q_i + s) e_{ij}) / sqrt(K)
#
# Two streams of queries read the same keys and values, which are those of the content stream h. A
# token of h sees itself, one of the query stream g, which is to be predicted, does not:
#
#     g_i = attend(g_i, h_j with j before i in the order)
#     h_i = attend(h_i, h_j with j before i in the order, or j = i)
#
# r_{i-j} is the sinusoid of the signed distance (Dai et al. 2019, section 3.3); e_{ij} is one of
# two learned vectors, for the same segment id or different ones; u, v, s are learned for each head.


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
        self.heads, self.head_dim = heads, multihead.head_dim_of(d_model, heads)
        self.dropout = dropout
        self.query = Linear(d_model, d_model, bias=False)
        self.key_value = multihead.PackedLinear(d_model, d_model, parts=2, bias=False)
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
        cache: multihead.LayerCache | None = None,
    ) -> StreamKeys:
        """The keys and values of the content stream (B, T, D).

        Args:
            distances: (R, D), the table of vectors of distances.
            memory: (B, M, D) of the segments before; it gets no gradient.
            cache: the keys and values of earlier positions; those of `content` are added to it.
        """
        hidden = content if memory is None else torch.cat([memory.detach().to(content), content], 1)
        key, value = multihead.split_keys_values(self.key_value(hidden), self.heads, self.head_dim)
        if cache is not None:
            key, value = cache.update(key, value)
        vectors = self.distance(distances.to(content))[None]
        return StreamKeys(key, value, multihead.split_heads(vectors, self.heads, self.head_dim))

    def forward(self, hidden: Tensor, keys: StreamKeys, relations: StreamRelations) -> Tensor:
        """(B, T, D) of one stream -> (B, T, D)"""
        query = multihead.split_heads(self.query(hidden), self.heads, self.head_dim)  # (B, H, T, K)
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
        return self.output(multihead.merge_heads(context))

    def _bias(self, query: Tensor, keys: StreamKeys, relations: StreamRelations) -> Tensor:
        """The scores of distances and segments, (B, H, T, S)."""
        bias = relative_scores(
            query, self.position_bias, keys.distance_keys, relations.distance_index
        )
        if relations.other_segment is None:
            return bias
        same, other = SCALED(query + self.segment_bias, self.segments).unbind(-1)
        return bias + torch.where(relations.other_segment, other[..., None], same[..., None])
