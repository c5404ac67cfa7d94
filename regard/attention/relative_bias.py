"""T5's score bias (Raffel et al. 2020, section 2.1): a learned number for each bucket of distances
and each head; `relative_kinds.BiasRelation` gives it to `SelfAttention`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

# From distances (query position - key position), a number of buckets and the distance from which on
# all share the last bucket, to buckets.
Bucket = Callable[[Tensor, int, int], Tensor]

MAX_DISTANCE = 128


def causal_bucket(distance: Tensor, buckets: int, max_distance: int = MAX_DISTANCE) -> Tensor:
    """T5's bucket of each distance in a decoder: (...,) -> (...,), 0 to buckets - 1.

    One bucket for each distance in the first half of them, then logarithmically wider ones.
    """
    exact = buckets // 2
    distance = distance.clamp(min=0)
    log_ratio = torch.log(distance.clamp(min=1).double() / exact) / math.log(max_distance / exact)
    log_bucket = exact + (log_ratio * (buckets - exact)).long().clamp(0, buckets - exact - 1)
    return torch.where(distance < exact, distance, log_bucket)


def two_sided_bucket(distance: Tensor, buckets: int, max_distance: int = MAX_DISTANCE) -> Tensor:
    """T5's bucket of each distance in an encoder: half of the buckets for keys on each side."""
    half = buckets // 2
    return causal_bucket(distance.abs(), half, max_distance) + half * (distance < 0)


def distances(queries: Tensor, keys: Tensor) -> Tensor:
    """Query position minus key position: (T,) or (B, T), and (S,) -> (1 or B, T, S)."""
    return torch.atleast_2d(queries)[:, :, None] - keys


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
        bias = self.by_distance(distances(queries, keys))
        return bias.permute(0, 3, 1, 2)  # (1 or B, T, S, H) -> (1 or B, H, T, S)

    def by_distance(self, distance: Tensor) -> Tensor:
        """The bias of distances (query position - key position): (...,) -> (..., H)."""
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
            f"`max_distance` must be above {exact}: with {buckets} buckets the distances below "
            f"{exact} have a bucket each. It is {max_distance}."
        )
