"""Attention by relative positions: T5's score bias, and Transformer-XL's.

T5 (Raffel et al. 2020, section 2.1) adds a learned number for each bucket of distances and each
head; it goes into `SelfAttention` as its `bias`. Transformer-XL (Dai et al. 2019, section 3.3)
compares queries with distances too, and reads the hidden states of the segment before.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.attention.attend import SCALED, attend
from regard.attention.capture import CapturePoint
from regard.attention.multihead import (
    LayerCache,
    PackedLinear,
    merge_heads,
    split_heads,
    width_of_head,
)
from regard.layers.dropout import check_probability
from regard.layers.linear import Linear
from regard.layers.positions import sinusoid
from regard.ops import KeyMask

# From distances (query position - key position), a number of buckets and the distance from which on
# all share the last bucket, to buckets.
Bucket = Callable[[Tensor, int, int], Tensor]

MAX_DISTANCE = 128


def causal_bucket(distance: Tensor, buckets: int, max_distance: int = MAX_DISTANCE) -> Tensor:
    """Of keys up to the query's own position, for decoders: 0 ... buckets - 1.

    One bucket for each distance in the first half of them, then logarithmically wider ones.
    """
    exact = buckets // 2
    distance = distance.clamp(min=0)
    growth = torch.log(distance.clamp(min=1).double() / exact) / math.log(max_distance / exact)
    wide = exact + (growth * (buckets - exact)).long().clamp(min=0, max=buckets - exact - 1)
    return torch.where(distance < exact, distance, wide)


def two_sided_bucket(distance: Tensor, buckets: int, max_distance: int = MAX_DISTANCE) -> Tensor:
    """Of keys on both sides, for encoders: half of the buckets for each side."""
    half = buckets // 2
    return causal_bucket(distance.abs(), half, max_distance) + half * (distance < 0)


class RelativeBias(nn.Module):
    """A learned number for each bucket of distances and each head; T5's layers share one.

    Args:
        bucket: `causal_bucket` or `two_sided_bucket`.

    Raises:
        ValueError: there are too few buckets, or all wider than one distance would be beyond
            `max_distance`.
    """

    def __init__(
        self, heads: int, bucket: Bucket, buckets: int = 32, max_distance: int = MAX_DISTANCE
    ):
        super().__init__()
        check_buckets(bucket, buckets, max_distance)
        self.bucket, self.buckets, self.max_distance = bucket, buckets, max_distance
        self.values = nn.Embedding(buckets, heads)

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """What is added to the scores: positions (T,) or (B, T), and (S,) -> (1 or B, H, T, S)."""
        distance = torch.atleast_2d(queries)[:, :, None] - keys  # (1 or B, T, S)
        return self.by_distance(distance).permute(0, 3, 1, 2)

    def by_distance(self, distance: Tensor) -> Tensor:
        """What is added where a query stands so far behind a key: (...,) -> (..., H)."""
        return self.values(self.bucket(distance, self.buckets, self.max_distance))


def check_buckets(bucket: Bucket, buckets: int, max_distance: int) -> None:
    """Check that there are buckets for distances near and far.

    Raises:
        ValueError: there are not.
    """
    sides = 2 if bucket is two_sided_bucket else 1
    exact = buckets // sides // 2  # distances with a bucket of their own
    if not exact:
        raise ValueError(f"`buckets` must be at least {2 * sides}, but is {buckets}.")
    if max_distance <= exact:
        raise ValueError(
            f"`max_distance` must be above {exact}, the distances of {buckets} buckets that have "
            f"one of their own, but is {max_distance}."
        )


def position_scores(query: Tensor, vectors: Tensor, rows: Tensor) -> Tensor:
    """q_i r_{i-j} of every query and key: (B, H, T, K) -> (B, H, T, S).

    Args:
        vectors: (1, H, R, K), one for each distance.
        rows: (1 or B, 1, T, S), for each query and key the row of their distance in `vectors`.
    """
    return spread(query @ vectors.mT, rows)  # of (B, H, T, R)


def spread(by_row: Tensor, rows: Tensor) -> Tensor:
    """From a score for each row of a table to one for each key: (B, H, T, R) -> (B, H, T, S).

    rows: the row that each pair of query and key has, (1 or B, 1, T, S).
    """
    return by_row.gather(-1, rows.expand(*by_row.shape[:3], rows.size(-1)))


class DistanceScores(Protocol):
    """How far queries are from keys: the part of the score that a layer's positions make.

    project: W_r of the layer, from vectors of distances (..., R, D) to (..., H, R, K).
    """

    def scores(self, query: Tensor, project: Callable[[Tensor], Tensor]) -> Tensor:
        """q_i W_r r_ij of queries (B, H, T, K): (B, H, T, S)."""
        ...


@dataclass(frozen=True)
class ByDistance:
    """Vectors of distances S - 1 ... 0, (S, D), or (B, S, D) for sequences with their own."""

    vectors: Tensor

    def scores(self, query: Tensor, project: Callable[[Tensor], Tensor]) -> Tensor:
        """See `DistanceScores`."""
        return by_shift(query, project(self.vectors))


@dataclass(frozen=True)
class ByKnownDistance:
    """The same, projected before: (1, H, S, K)."""

    keys: Tensor

    def scores(self, query: Tensor, project: Callable[[Tensor], Tensor]) -> Tensor:
        """See `DistanceScores`."""
        return by_shift(query, self.keys)


def by_shift(query: Tensor, keys: Tensor) -> Tensor:
    """Products of T queries, which stand behind S - T keys, with the vectors of their distances.

    out[i, j] = q_i · r_{(S - T + i) - j}, where row c of `keys` is r_{S - 1 - c}. Behind a query,
    where j > S - T + i, there are arbitrary numbers. Appendix B of Dai et al. 2019.

    Args:
        query, keys: (B, H, T, K) and (1 or B, H, S, K).

    Returns:
        (B, H, T, S)
    """
    products = query @ keys.mT  # column c is distance S - 1 - c
    count, width = products.shape[-2:]
    if count == 1:
        return products
    # Row i moves T - 1 - i columns to the left: in one line, rows of S + 1 are read as rows of S.
    line = F.pad(products, (1, 0)).flatten(-2)
    return line[..., count:].unflatten(-1, (count, width))


class RelativeAttention(nn.Module):
    """Self-attention over this segment and what came before it (Transformer-XL).

    score(i, j) = ((q_i + u) k_j + (q_i + v) W_r r_ij) / sqrt(K)

    u and v are learned for each head: content and position bias. r_ij is sinusoid(i - j), or
    whatever a `DistanceScores` makes of it.

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
        self.heads, self.head_dim = heads, head_dim or width_of_head(d_model, heads)
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
        relation: DistanceScores,
        *,
        memory: Tensor | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """(B, T, D) -> (B, T, D)

        Args:
            mask: which of the S = M + T keys each query may see: at most those up to itself.
            relation: of these queries and keys.
            memory: hidden states (B, M, D) of what came before, detached.
            cache: the keys and values of these instead; it takes those of `hidden`.
        """
        query = split_heads(self.query(hidden), self.heads, self.head_dim)  # (B, H, T, K)
        read = hidden if memory is None else torch.cat([memory, hidden], 1)
        key, value = self.keys_and_values(read)
        if cache is not None:
            key, value = cache.update(key, value)
        scores = relation.scores(query + self.position_bias, self.project)
        context = attend(
            query + self.content_bias,
            key,
            value,
            score=SCALED,
            mask=mask,
            bias=scores * self.head_dim**-0.5,
            dropout=self.dropout if self.training else 0.0,
            capture=self.capture,
        )
        return self.output(merge_heads(context))

    def keys_and_values(self, read: Tensor) -> tuple[Tensor, Tensor]:
        """Of hidden states (B, S, D): (B, H, S, K) twice."""
        both = split_heads(self.key_value(read), 2 * self.heads, self.head_dim)
        key, value = both.chunk(2, dim=1)  # (B, 2H, S, K) -> 2 times (B, H, S, K)
        return key, value

    def project(self, vectors: Tensor) -> Tensor:
        """W_r of vectors of distances, (R, D) or (B, R, D) -> (1 or B, H, R, K)."""
        vectors = vectors if vectors.dim() == 3 else vectors[None]
        return split_heads(self.distance(vectors), self.heads, self.head_dim)


def distance_vectors(
    count: int, d_model: int, *, clamp: int | None = None, like: Tensor | None = None
) -> Tensor:
    """The vectors of distances count - 1 ... 0, for `ByDistance`: (S, D).

    clamp: all larger distances are taken for this one.  like: a tensor of their type and device.
    """
    device = None if like is None else like.device
    distances = torch.arange(count - 1, -1, -1, device=device)
    vectors = sinusoid(distances if clamp is None else distances.clamp(max=clamp), d_model)
    return vectors if like is None else vectors.to(like.dtype)
