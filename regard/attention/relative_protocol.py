"""What relative positions are to attention, and the learned biases of T5."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

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
