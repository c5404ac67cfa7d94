"""The kinds of relative positions, each for a whole stack of layers.

    ShawPositions             a learned vector for each distance, added to keys and to values
    T5Positions               a learned number for each bucket of distances and each head
    TransformerXLPositions    queries compared with the sinusoids of distances
    DependencyRelations       Shaw's vectors, for distances in a dependency tree

Any model whose blocks pass a `Relation` on to their attention can have any of them. A distance is
the query's position minus the key's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from regard.attention.attend import ValueTerm
from regard.attention.cache import KeyValueCache
from regard.attention.multihead import PackedLinear, split_heads
from regard.attention.relative_attention import gather_by_distance, relative_scores
from regard.attention.relative_protocol import (
    Relation,
    Relations,
    RelativeBias,
    RelativePositions,
    distances,
    padded_positions,
)
from regard.attention.scores import Score
from regard.data.batches import Sequences
from regard.data.dependency_trees import ancestors, tree_distances, trees_of
from regard.errors import RegardError
from regard.layers.positions import sinusoid


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
