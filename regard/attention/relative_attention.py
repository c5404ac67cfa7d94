"""Transformer-XL's attention by relative positions (Dai et al. 2019, section 3.3).

Queries are compared with keys and with their distances; keys are also the hidden states of the
segment before.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import ops
from regard.attention.attend import SCALED, Score, attend, is_captured
from regard.attention.capture import CapturePoint, ReshapedCapture
from regard.attention.multihead import (
    LayerCache,
    PackedLinear,
    head_dim_of,
    merge_heads,
    split_heads,
    split_keys_values,
)
from regard.layers.dropout import check_probability
from regard.layers.linear import Linear
from regard.layers.positions import sinusoid
from regard.ops import ALL_KEYS, KeyMask


def relative_scores(
    query: Tensor,
    position_bias: Tensor,
    vectors: Tensor,
    index: Tensor | None = None,
    score: Score = SCALED,
) -> Tensor:
    """(q_i + v) W_r r_ij / sqrt(K): terms b and d of A^rel, section 3.3 of Dai et al. 2019.

    Terms a and c, (q_i + u) k_j / sqrt(K), are the score of the queries plus the content bias.

    Args:
        query: (B, H, T, K).
        position_bias: v, (H, 1, K).
        vectors: W_r r of each distance, (1 or B, H, R, K).
        index: the row of `vectors` for each query and key, (1 or B, 1, T, S). None: the T queries
            are the last of S positions, and row c of `vectors` is distance S - 1 - c.
        score: how the layer compares queries and keys.

    Returns:
        (B, H, T, S); without an index, arbitrary numbers for keys after the query.
    """
    by_distance = score(query + position_bias, vectors)  # (B, H, T, R)
    if index is None:
        return relative_shift(by_distance)
    return gather_by_distance(by_distance, index)


def gather_by_distance(scores: Tensor, index: Tensor) -> Tensor:
    """From a score for each distance to one for each key: (B, H, T, R) -> (B, H, T, S).

    index: the distance, as a column of `scores`, of each query and key, (1 or B, 1, T, S).
    """
    return scores.gather(-1, index.expand(*scores.shape[:3], index.size(-1)))


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


def relative_shift(scores: Tensor) -> Tensor:
    """From a score for each distance to one for each key, for T queries that are the last of S
    positions: (B, H, T, S), same.

    out[i, j] = scores[i, c] where column c is distance S - 1 - c = (S - T + i) - j. For keys after
    the query, j > S - T + i, there are arbitrary numbers. Appendix B of Dai et al. 2019.
    """
    count, width = scores.shape[-2:]
    if count == 1:
        return scores
    # Pad one column on the left and reshape: row i moves T - 1 - i columns to the left.
    line = F.pad(scores, (1, 0)).flatten(-2)  # (B, H, T, 1 + S) -> (B, H, T * (1 + S))
    return line[..., count:].unflatten(-1, (count, width))  # -> (B, H, T, S)


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
        self.heads, self.head_dim = heads, head_dim or head_dim_of(d_model, heads)
        self.dropout, width = dropout, heads * self.head_dim
        self.query = Linear(d_model, width, bias=False)
        self.key_value = PackedLinear(d_model, width, parts=2, bias=False)
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
        cache: LayerCache | None = None,
    ) -> Tensor:
        """(B, T, D) -> (B, T, D)

        Args:
            mask: which of the S = M + T keys each query may see: at most those up to itself.
            distances: of these queries and keys.
            memory: hidden states (B, M, D) of the segments before, detached.
            cache: their keys and values instead; those of `hidden` are added to it. At most one of
                `memory` and `cache` is given.
        """
        query = split_heads(self.query(hidden), self.heads, self.head_dim)  # (B, H, T, K)
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
        return self.output(merge_heads(context))

    def content_queries(self, hidden: Tensor) -> Tensor:
        """q + u: (B, T, D) -> (B, H, T, K)."""
        query = split_heads(self.query(hidden), self.heads, self.head_dim)
        return query + self.content_bias

    def keys_and_values(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values of hidden states: (B, S, D) -> 2 times (B, H, S, K)."""
        return split_keys_values(self.key_value(inputs), self.heads, self.head_dim)

    def project(self, vectors: Tensor) -> Tensor:
        """W_r r of R distances: (R, D) or (B, R, D) -> (1 or B, H, R, K)."""
        vectors = vectors if vectors.dim() == 3 else vectors[None]
        return split_heads(self.distance(vectors), self.heads, self.head_dim)


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
