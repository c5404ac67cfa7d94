"""Adaptive softmax and adaptive input: less work and less width for rare words.

The vocabulary, its most frequent words first, is divided into clusters. The output layer predicts a
word of the first cluster, or in which other cluster the word is; the layer of that cluster then
predicts the word (Grave et al. 2017, "Efficient softmax approximation for GPUs", section 4):

    p(w) = p(w | head)                        of the first cluster
    p(w) = p(cluster | head) p(w | cluster)   of the others

Rare words have smaller embeddings, which are projected to the width of the model, as inputs and as
outputs (Baevski & Auli 2019, "Adaptive Input Representations for Neural Language Modeling", section
3).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import ops
from regard.layers.softmax import without_ignored
from regard.ops import at_least_float32

# Of one cluster: projection (D, D') or None, weight (N, D'), bias (N,).
OutputLayer = tuple[Tensor | None, Tensor, Tensor]


@dataclass(frozen=True)
class Clusters:
    """The clusters of a vocabulary, and the widths of their embeddings.

    cutoffs: the first ids of the second and all further clusters; (): one cluster.
    d_embedding: the width of the first cluster's embeddings; the width of each further cluster is
        that of the one before divided by `divisor`. With `divisor` 1 all words are in one matrix.

    Raises:
        ValueError: cut-offs are not ascending ids, or the width of a cluster would be 0.
    """

    vocab_size: int
    d_model: int
    d_embedding: int
    cutoffs: tuple[int, ...] = ()
    divisor: int = 1

    def __post_init__(self) -> None:
        if any(start >= end for start, end in pairwise(self.bounds)):
            raise ValueError(
                "`cutoffs` must ascend strictly between 0 and the vocabulary size, "
                f"{self.vocab_size:,}, but are {', '.join(map(str, self.cutoffs))}."
            )
        least = self.divisor ** len(self.cutoffs)
        if self.d_embedding < least:
            raise ValueError(
                f"`d_embedding` must be at least {least:,}: the last of {len(self.bounds) - 1} "
                f"clusters has vectors of width d_embedding / {self.divisor}^{len(self.cutoffs)}. "
                f"It is {self.d_embedding}."
            )

    @property
    def bounds(self) -> tuple[int, ...]:
        """The first id of each cluster, then the size of the vocabulary."""
        return (0, *self.cutoffs, self.vocab_size)

    @property
    def sizes(self) -> list[int]:
        """The number of words of each cluster."""
        return [end - start for start, end in pairwise(self.bounds)]

    @property
    def widths(self) -> list[int]:
        """The width of the vectors of each cluster."""
        return [self.d_embedding // self.divisor**n for n in range(len(self.sizes))]

    @property
    def tables(self) -> list[tuple[int, int]]:
        """The shapes of the embedding matrices: one for all words, or one for each cluster."""
        if self.divisor == 1:
            return [(self.vocab_size, self.d_embedding)]
        return list(zip(self.sizes, self.widths, strict=True))

    @property
    def projects(self) -> bool:
        """Whether vectors are projected to the width of the model."""
        return self.divisor != 1 or self.d_embedding != self.d_model

    def of(self, ids: Tensor) -> Tensor:
        """The cluster index of each id, of the same shape."""
        return torch.bucketize(ids.contiguous(), ids.new_tensor(self.cutoffs), right=True)


class AdaptiveEmbedding(nn.Module):
    """ids (...,) -> vectors (..., D): scale E_c[id] P_c, c being the cluster of each id."""

    def __init__(self, clusters: Clusters, *, scale: float = 1.0):
        super().__init__()
        self.clusters, self.scale = clusters, scale
        self.tables = nn.ModuleList(nn.Embedding(*shape) for shape in clusters.tables)
        widths = [width for _, width in clusters.tables] if clusters.projects else []
        self.projections = nn.ParameterList(
            nn.Parameter(torch.empty(clusters.d_model, width)) for width in widths
        )
        for projection in self.projections:
            nn.init.normal_(projection, std=projection.size(1) ** -0.5)

    @property
    def weight(self) -> Tensor:
        """The first table, whose dtype and device are those of all tables."""
        return cast(Tensor, self.tables[0].weight)

    def forward(self, ids: Tensor) -> Tensor:
        """(...,) -> (..., D)"""
        vectors = self._of(0, ids) if len(self.tables) == 1 else self._by_cluster(ids)
        return vectors if self.scale == 1 else vectors * self.scale

    def _by_cluster(self, ids: Tensor) -> Tensor:
        flat = ids.flatten()
        cluster = self.clusters.of(flat)
        indices, parts = [], []
        for n, start in enumerate(self.clusters.bounds[:-1]):
            index = (cluster == n).nonzero()[:, 0]
            indices.append(index)
            parts.append(self._of(n, flat[index] - start))
        vectors = torch.cat(parts)  # sorted by cluster
        vectors = torch.empty_like(vectors).index_copy(0, torch.cat(indices), vectors)
        return vectors.unflatten(0, ids.shape)

    def _of(self, number: int, ids: Tensor) -> Tensor:
        """The vectors, (N, D), of ids (N,) of one table, counted from its first id."""
        vectors = self.tables[number](ids)
        return ops.linear(vectors, self.projections[number]) if self.projections else vectors


class AdaptiveSoftmax(nn.Module):
    """A head with an output layer for each cluster.

    weights, biases: of the words; shapes as in `Clusters.tables`.
    cluster_weight, cluster_bias: of the clusters after the first, in the first output layer.
    projections: (D, D') of each cluster.

    Args:
        tied: an embedding whose matrices the output layers share.
        embedding: the embedding whose projections `tied_projections` shares.
        tied_projections: for each cluster whether it shares the projection of `embedding`.
    """

    def __init__(
        self,
        clusters: Clusters,
        *,
        tied: AdaptiveEmbedding | None = None,
        embedding: AdaptiveEmbedding | None = None,
        tied_projections: Sequence[bool] = (),
    ):
        super().__init__()
        self.clusters, further = clusters, len(clusters.cutoffs)
        self.weights = nn.ParameterList(
            nn.Parameter(torch.empty(*shape)) if tied is None else tied.tables[n].weight
            for n, shape in enumerate(clusters.tables)
        )
        self.biases = nn.ParameterList(
            nn.Parameter(torch.zeros(words)) for words, _ in clusters.tables
        )
        shared = [*tied_projections, *[False] * (further + 1)]
        self.projections = nn.ParameterList()
        for n, width in enumerate(clusters.widths if clusters.projects else []):
            projection = nn.Parameter(torch.empty(clusters.d_model, width))
            nn.init.normal_(projection, std=clusters.d_model**-0.5)
            if shared[n] and embedding is not None:
                projection = embedding.projections[n if clusters.divisor != 1 else 0]
            self.projections.append(projection)
        self.cluster_weight = self.cluster_bias = None
        if further:
            self.cluster_weight = nn.Parameter(torch.empty(further, clusters.d_embedding))
            self.cluster_bias = nn.Parameter(torch.zeros(further))
            nn.init.normal_(self.cluster_weight, std=clusters.d_embedding**-0.5)
        if tied is None:
            for weight in self.weights:
                nn.init.normal_(weight, std=weight.size(1) ** -0.5)

    def layers(self) -> list[OutputLayer]:
        """The output layer of each cluster; the first also predicts the other clusters."""
        weights, biases = list(self.weights), list(self.biases)
        if len(weights) == 1:
            weights, biases = (
                list(tensor.split(self.clusters.sizes)) for tensor in (*weights, *biases)
            )
        if self.cluster_weight is not None and self.cluster_bias is not None:
            weights[0] = torch.cat([weights[0], self.cluster_weight])
            biases[0] = torch.cat([biases[0], self.cluster_bias])
        projections = list(self.projections) or [None] * len(weights)
        return list(zip(projections, weights, biases, strict=True))

    def logits(self, hidden: Tensor) -> Tensor:
        """Log-probabilities of all words, (..., D) -> (..., V)."""
        head, *tails = (self._log_probs(hidden, layer) for layer in self.layers())
        first = self.clusters.sizes[0]
        words = [head[..., :first]]
        words += [head[..., first + n, None] + tail for n, tail in enumerate(tails)]
        return torch.cat(words, -1)

    def loss(
        self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0, count: int | None = None
    ) -> tuple[Tensor, int]:
        """The sum of the cross-entropies in nats, and the number of targets; see `Softmax.loss`.

        Logits of a cluster are computed only at positions whose target is in it; with `smoothing`
        at all positions.
        """
        hidden, targets = without_ignored(hidden, targets, count)
        layers, ends = self.layers(), self.clusters.bounds
        cluster = self.clusters.of(targets)
        in_head = torch.where(cluster == 0, targets, ends[1] + cluster - 1)
        total = self._cross_entropy(hidden, layers[0], in_head)
        for n, layer in enumerate(layers[1:], 1):
            index = (cluster == n).nonzero()[:, 0]
            if index.numel():
                total = total + self._cross_entropy(hidden[index], layer, targets[index] - ends[n])
        if smoothing:
            uniform = self._uniform_cross_entropy(hidden, layers)
            total = (1 - smoothing) * total + smoothing * uniform
        return total, targets.numel()

    def _uniform_cross_entropy(self, hidden: Tensor, layers: Sequence[OutputLayer]) -> Tensor:
        """Sum over positions of the mean of -log p over all words.

        With smoothing 1 a cross-entropy does not depend on the target: it is the mean of -log p
        over the outputs of its layer.
        """
        sizes, words = self.clusters.sizes, self.clusters.vocab_size
        any_word = hidden.new_zeros(len(hidden), dtype=torch.long)
        choices = sizes[0] + len(sizes) - 1  # of the head
        total = choices * self._cross_entropy(hidden, layers[0], any_word, 1.0)
        for n, layer in enumerate(layers[1:], 1):
            chosen = torch.full_like(any_word, sizes[0] + n - 1)  # counted once above
            total = total + (sizes[n] - 1) * self._cross_entropy(hidden, layers[0], chosen)
            total = total + sizes[n] * self._cross_entropy(hidden, layer, any_word, 1.0)
        return total / words

    @staticmethod
    def _cross_entropy(
        hidden: Tensor, layer: OutputLayer, targets: Tensor, smoothing: float = 0.0
    ) -> Tensor:
        projection, weight, bias = layer
        return ops.cross_entropy(_project(hidden, projection), weight, bias, targets, smoothing)

    @staticmethod
    def _log_probs(hidden: Tensor, layer: OutputLayer) -> Tensor:
        projection, weight, bias = layer
        logits = ops.linear(_project(hidden, projection), weight, bias)
        return F.log_softmax(logits.to(at_least_float32(logits.dtype)), -1)


def _project(hidden: Tensor, projection: Tensor | None) -> Tensor:
    """(..., D) -> (..., D')"""
    return hidden if projection is None else ops.linear(hidden, projection.t())
