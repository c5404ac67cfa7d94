"""What relative positions are to attention: vectors of distances, and the learned biases of T5."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast, get_args, get_type_hints

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.attention.attend import SCALED, Relation, Score, ValueTerm
from regard.attention.cache import KeyValueCache
from regard.attention.multihead import PackedLinear, split_heads
from regard.data.batches import Sequences
from regard.data.dependency_trees import ancestors, tree_distances, trees_of
from regard.errors import ConfigError, RegardError
from regard.layers.positions import (
    DependencyPositions,
    LearnedPositions,
    NoPositions,
    PositionTable,
    SinusoidalPositions,
    sinusoid,
)
from regard.ops import SequenceOffsets

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


# ---------------------------------------------------------------------- kinds of relative positions
#
# The kinds of relative positions, each for a whole stack of layers.
#
#     ShawPositions             a learned vector for each distance, added to keys and to values
#     T5Positions               a learned number for each bucket of distances and each head
#     TransformerXLPositions    queries compared with the sinusoids of distances
#     DependencyRelations       Shaw's vectors, for distances in a dependency tree
#
# Any model whose blocks pass a `Relation` on to their attention can have any of them. A distance is
# the query's position minus the key's.


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


def sum_by_distance(weights: Tensor, rows: Tensor, count: int) -> Tensor:
    """Sum the weights of the keys that share a row of a table of N = `count` rows: (B, H, T, S) ->
    (B, H, T, N), the transpose of `gather_by_distance`.

    rows: the row of each query and key, (1 or B, T, S).
    """
    total = weights.new_zeros(*weights.shape[:3], count)
    return total.scatter_add(-1, rows[:, None].expand_as(weights), weights)


# ------------------------------------------------------------------------- Shaw et al. 2018


class ShawTables(nn.Module):
    """The tables of one layer, for all heads: a^K and a^V, (2k + 1, K) each."""

    def __init__(self, head_dim: int, clip_distance: int):
        super().__init__()
        self.keys = nn.Parameter(torch.empty(2 * clip_distance + 1, head_dim))
        self.values = nn.Parameter(torch.empty(2 * clip_distance + 1, head_dim))
        nn.init.xavier_uniform_(self.keys)
        nn.init.xavier_uniform_(self.values)


@dataclass(frozen=True)
class ShawRelation(Relation):
    """e_ij = q_i (k_j + a^K_ij) / sqrt(K),  z_i = sum_j w_ij (v_j + a^V_ij)   (equations 3 and 4)

    A query is multiplied with the 2k + 1 vectors instead of one for each key, and the weights of
    each distance are summed before they are multiplied with the values (section 3.3).

    rows: the row of the tables for each query and key, (1 or B, T, S).
    """

    vectors: ShawTables
    rows: Tensor

    def scores(
        self, query: Tensor, key: Tensor, score: Score, remaining_heads: Sequence[int]
    ) -> Tensor:
        return gather_by_distance(score(query, self.vectors.keys), self.rows[:, None])

    @property
    def value_term(self) -> ValueTerm:
        return self._added_values

    def _added_values(self, weights: Tensor) -> Tensor:
        table = self.vectors.values
        return sum_by_distance(weights, self.rows, table.size(0)) @ table.to(weights)


class ShawPositions(RelativePositions):
    """A learned vector for each distance clipped to k = `clip_distance`: "Self-Attention with
    Relative Position Representations" (Shaw et al. 2018, section 3.2).

    a_ij = w_clip(j - i),  clip(x) = max(-k, min(k, x)); each layer has two tables, shared by heads.
    """

    def __init__(self, layers: int, head_dim: int, clip_distance: int):
        super().__init__()
        self.clip_distance = clip_distance
        tables = nn.ModuleList(ShawTables(head_dim, clip_distance) for _ in range(layers))
        self.layers = cast("Sequence[ShawTables]", tables)

    def between(self, queries: Tensor, keys: Tensor) -> Relations:
        return self.at(-distances(queries, keys))

    def rows(self, offsets: Tensor) -> Tensor:
        """The rows of the tables for distances j - i, clip(j - i) + k: (...,) -> (...,)."""
        return offsets.clamp(-self.clip_distance, self.clip_distance) + self.clip_distance

    def at(self, offsets: Tensor) -> Relations:
        """The relations for distances j - i, or other signed ones, (1 or B, T, S)."""
        rows = self.rows(offsets)
        return [ShawRelation(vectors, rows) for vectors in self.layers]


class DependencyRelations(ShawPositions):
    """Shaw's vectors for distances in the dependency tree instead of the sequence: see
    `regard.data.dependency_trees.tree_distances` (Wang et al. 2019, section 3.2).
    """

    def of(self, batch: Sequences) -> Relations:
        """See `RelativePositions`.

        Raises:
            RegardError: the batch has no dependency trees.
        """
        padded_positions(batch)
        words, heads = trees_of(batch)
        return self.at(tree_distances(words, ancestors(words, heads)))

    def after(self, cache: KeyValueCache, count: int) -> Relations:
        """Raise an error: a text that is being decoded has no tree."""
        raise RegardError("Positions in a dependency tree need the tree of the whole text.")


# ---------------------------------------------------------------------- Raffel et al. 2020


@dataclass(frozen=True)
class BiasRelation(Relation):
    """A bias that is added to the scores, (1 or B, H, T, S)."""

    bias: Tensor

    def scores(
        self, query: Tensor, key: Tensor, score: Score, remaining_heads: Sequence[int]
    ) -> Tensor:
        all_heads = len(remaining_heads) == self.bias.size(1)
        return self.bias if all_heads else self.bias[:, remaining_heads]


class T5Positions(RelativePositions):
    """A learned bias for each bucket of distances and each head (T5).

    Args:
        layers: L.
        tables: one table that all layers share (T5), or one for each layer (umT5).
    """

    def __init__(self, layers: int, tables: Sequence[RelativeBias]):
        super().__init__()
        self.layers = layers
        self.tables = cast("Sequence[RelativeBias]", nn.ModuleList(tables))

    def between(self, queries: Tensor, keys: Tensor) -> Relations:
        relations = [BiasRelation(table(queries, keys)) for table in self.tables]
        return [relations[n % len(relations)] for n in range(self.layers)]

    def table_of(self, layer: int) -> RelativeBias:
        """The table of a layer (from 0)."""
        return self.tables[layer % len(self.tables)]


# -------------------------------------------------------------------------- Dai et al. 2019


class TransformerXLParameters(nn.Module):
    """W_r of one layer, and u and v, (H, 1, K): the content and the position bias."""

    def __init__(self, d_model: int, heads: int):
        super().__init__()
        self.distance = PackedLinear(d_model, d_model, parts=1, bias=False)
        self.content_bias = nn.Parameter(torch.zeros(heads, 1, d_model // heads))
        self.position_bias = nn.Parameter(torch.zeros(heads, 1, d_model // heads))


@dataclass(frozen=True)
class TransformerXLRelation(Relation):
    """e_ij = ((q_i + u) k_j + (q_i + v) W_r R_{i-j}) / sqrt(K)         (section 3.3, A^rel)

    table: R, the sinusoids of N distances, (N, D).
    rows: the row of the table for each query and key, (1 or B, T, S).
    """

    learned: TransformerXLParameters
    table: Tensor
    rows: Tensor

    def scores(
        self, query: Tensor, key: Tensor, score: Score, remaining_heads: Sequence[int]
    ) -> Tensor:
        learned, heads = self.learned, list(remaining_heads)
        vectors = learned.distance(self.table.to(query))[None]  # (1, N, D)
        vectors = split_heads(vectors, len(learned.content_bias))  # (1, H, N, K)
        content, position = learned.content_bias[heads], learned.position_bias[heads]
        rows = self.rows[:, None]
        positional = relative_scores(query, position, vectors[:, heads], rows, score)
        # u k_j is added here, (B, H, 1, S): attention itself computes q_i k_j.
        return positional + score(content, key)


class TransformerXLPositions(RelativePositions):
    """Queries are compared with a projected sinusoid of each distance (Transformer-XL).

    Each layer has its own W_r, u and v. Keys after the query have negative distances.

    causal: whether no query attends to keys after it, so that no distance is negative.
    """

    def __init__(self, layers: int, d_model: int, heads: int, *, causal: bool):
        super().__init__()
        self.d_model, self.causal = d_model, causal
        parameters = nn.ModuleList(TransformerXLParameters(d_model, heads) for _ in range(layers))
        self.layers = cast("Sequence[TransformerXLParameters]", parameters)

    def between(self, queries: Tensor, keys: Tensor) -> Relations:
        count = keys.size(0)
        least = 0 if self.causal else 1 - count
        table = sinusoid(torch.arange(least, count, device=keys.device), self.d_model)
        rows = (distances(queries, keys) - least).clamp(0, count - 1 - least)
        return [TransformerXLRelation(learned, table, rows) for learned in self.layers]


# --------------------------------------------------------------------------- He et al. 2021


def log_bucket(distance: Tensor, buckets: int, max_distance: int) -> Tensor:
    """DeBERTa's bucket of each signed distance: (...,) -> (...,), with the sign of the distance.

    One bucket for each distance up to `buckets` / 2, then logarithmically wider ones up to
    `max_distance`. The logarithms are float32, as in the authors' program.
    """
    middle = buckets // 2
    ratio = torch.log(distance.abs().clamp(min=middle) / middle)
    ratio = ratio / torch.log(torch.tensor((max_distance - 1) / middle))
    bucket = middle + torch.ceil(ratio * (middle - 1)).long()
    return torch.where(distance.abs() <= middle, distance, bucket * distance.sign())


# From the vectors of R distances (R, D) to their keys and queries, (1, H, R, K); None: no term.
ProjectPositions = Callable[[Tensor], tuple[Tensor | None, Tensor | None]]


@dataclass(frozen=True)
class DisentangledRelation(Relation):
    """e_ij = q_i r^K_ij + k_j r^Q_ij beside q_i k_j, all over sqrt(3 K)     (equation 4)

    The terms are content to position and position to content; r^K and r^Q are a key and a query of
    the distance of i and j.

    vectors: of R distances, (R, D).
    rows: which of them each query and key has, (1, T, S).
    offsets: of the sequences of an unpadded batch; None: it is padded.
    project: of the layer, whose attention sets it.
    """

    vectors: Tensor
    rows: Tensor
    offsets: SequenceOffsets | None = None
    project: ProjectPositions | None = None

    def scores(
        self, query: Tensor, key: Tensor, score: Score, remaining_heads: Sequence[int]
    ) -> Tensor:
        if self.offsets is not None:
            query, key = self.offsets.pad(query), self.offsets.pad(key)
        assert self.project is not None
        position_key, position_query = self.project(self.vectors)
        terms = []
        if position_key is not None:
            terms.append(gather_by_distance(score(query, position_key), self.rows[:, None]))
        if position_query is not None:
            of_keys = score(key, position_query)  # (B, H, S, R)
            terms.append(gather_by_distance(of_keys, self.rows.mT[:, None]).mT)
        return terms[0] if len(terms) == 1 else terms[0] + terms[1]


# ------------------------------------------------------------- the positions of a configuration

CLIP_DISTANCE = 16  # where a configuration names none
CLIPPED = ("shaw", "dependency-relative")  # the kinds that have a `clip_distance`
RELATIVE = (*CLIPPED, "t5", "transformer-xl")


def absolute_positions(config: Any, width: int | None = None) -> PositionTable:
    """The vectors that are added to the embeddings; `width` is theirs, None: that of the model."""
    width = width or config.d_model
    match config.positions:
        case "sinusoidal" | "dependency-relative":
            return SinusoidalPositions(width)
        case "learned":
            return LearnedPositions(config.max_length, width)
        case "dependency-absolute":
            return DependencyPositions(width)
        case _:
            return NoPositions(width)


def relative_positions(config: Any, layers: int, *, causal: bool = False) -> RelativePositions:
    """The relative positions of `layers` layers of self-attention.

    causal: whether each token attends to none after it.

    Raises:
        ConfigError: the model does not have this kind, or `clip_distance` has no effect with it.
    """
    check_positions(config)
    head_dim, clip_distance = config.d_model // config.heads, config.clip_distance or CLIP_DISTANCE
    match config.positions:
        case "shaw":
            return ShawPositions(layers, head_dim, clip_distance)
        case "dependency-relative":
            return DependencyRelations(layers, head_dim, clip_distance)
        case "t5":
            bucket = causal_bucket if causal else two_sided_bucket
            return T5Positions(layers, [RelativeBias(config.heads, bucket)])
        case "transformer-xl":
            return TransformerXLPositions(layers, config.d_model, config.heads, causal=causal)
        case _:
            return NoRelations(layers)


def reads_unpadded(config: Any) -> bool:
    """Whether a model with these positions reads unpadded batches: all positions are absolute."""
    return config.positions not in RELATIVE


def check_positions(config: Any) -> None:
    """Check `positions` against the type of this field, and `clip_distance` against `positions`.

    Raises:
        ConfigError: the model does not have this kind, or `clip_distance` has no effect with it.
    """
    kinds = get_args(get_type_hints(type(config))["positions"])
    if config.positions not in kinds:
        must = " or ".join(map(repr, kinds))
        raise ConfigError(
            f"`positions` must be {must} in a {type(config).__name__}, but is {config.positions!r}."
        )
    if config.clip_distance is not None and config.positions not in CLIPPED:
        must = " or ".join(f'"{kind}"' for kind in CLIPPED)
        raise ConfigError(
            f'`clip_distance` has no effect with positions = "{config.positions}": leave it out, '
            f"or choose positions = {must}."
        )
