"""Output layers over the vocabulary: softmax, sampled softmax, adaptive softmax."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from regard import ops
from regard.data.batches import IGNORE
from regard.layers.linear import linear_no_grad, weight_gradient
from regard.ops import at_least_float32, autocast_dtype, cast

# ------------------------------------------------------------------------------------------ softmax
#
# The output layer: logits for decoding, and a loss that never stores all logits.
#
# 4,096 tokens and a vocabulary of 50,000 have 800 MB of logits and as much again of gradients. The
# implementation of `ops.cross_entropy` here computes the loss and the gradients slice by slice of
# the tokens: only the logits of one slice are in memory, and the backward pass is a multiplication
# by the incoming gradient. For few tokens the gradient of the logits is smaller than the gradients
# of the parameters, and is stored instead of them.


SLICE = 2**21  # logits of a slice: 8 MB in float32, which fit into a CPU's cache
MIN_ROWS = 128  # of a slice without gradients: fewer do not pay for reading the weight
SLICES = {"cuda": 2**26}  # 256 MB: products large enough to keep a GPU busy
# In training, 16 MB in bfloat16: each slice also passes over the weight's gradient, so that all of
# this takes 0.6 times as long as with slices of 2**21 (700 tokens, V = 10,000, D = 650).
TRAINING_SLICE = 2**23
# Products of bfloat16 on a GPU need aligned rows for its fast kernels: with V = 50,257 those of the
# output took 47 % of the GPU's time in an update of GPT-2 124M (H200).
ALIGNMENTS = {"cuda": 64}


class Softmax(nn.Module):
    """log p(token) = log softmax(W h + b), with W shared with an embedding where it is given."""

    def __init__(self, d_model: int, vocab_size: int, *, tied: nn.Embedding | None, bias: bool):
        super().__init__()
        if tied is not None and tied.weight.shape != (vocab_size, d_model):
            raise ValueError(
                f"A tied output needs an embedding of shape {(vocab_size, d_model)}, "
                f"but it is {tuple(tied.weight.shape)}."
            )
        weight = torch.empty(vocab_size, d_model) if tied is None else tied.weight
        self.weight = nn.Parameter(weight) if tied is None else tied.weight
        if tied is None:
            nn.init.normal_(self.weight, std=d_model**-0.5)
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if bias else None

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., V)"""
        return ops.linear(hidden, self.weight, self.bias)

    def loss(
        self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0, count: int | None = None
    ) -> tuple[Tensor, int]:
        """The sum of the cross-entropies in nats, and the number of targets that are not ignored.

        Args:
            hidden: (N, D).
            targets: (N,) token ids; -100 is ignored.
            smoothing: label smoothing e (Szegedy et al. 2016, section 7):
                (1 - e) * -log p(target) + e * mean(-log p).
            count: the number of targets that are not ignored, where it is known: computing it waits
                for the device.
        """
        hidden, targets = without_ignored(hidden, targets, count)
        total = ops.cross_entropy(hidden, self.weight, self.bias, targets, smoothing)
        return total, targets.numel()


def without_ignored(hidden: Tensor, targets: Tensor, count: int | None) -> tuple[Tensor, Tensor]:
    """The hidden states (N, D) and targets (N,) without those of target -100: (N', D) and (N',).

    count: N', if known.
    """
    counts = targets != IGNORE
    count = int(counts.sum()) if count is None else count
    if count == targets.numel():
        return hidden, targets
    index = torch.nonzero_static(counts, size=count)[:, 0]
    return hidden.index_select(0, index), targets[index]


def slice_on(device: torch.device) -> int:
    """The number of logits of a slice on a device."""
    return SLICES.get(device.type, SLICE)


def token_losses(
    hidden: Tensor, targets: Tensor, logits: Callable[[Tensor], Tensor], vocab_size: int
) -> Iterator[Tensor]:
    """-log p(target) in nats, without gradient: (N, D) and (N,) -> one (n,) for each slice."""
    rows = max(slice_on(hidden.device) // vocab_size, MIN_ROWS)
    for start in range(0, targets.numel(), rows):
        part = slice(start, start + rows)
        yield ops.negative_log_likelihood(logits(hidden[part]), targets[part])


def summed_loss(
    hidden: Tensor, targets: Tensor, logits: Callable[[Tensor], Tensor], vocab_size: int
) -> Tensor:
    """The sum of -log p(target) in nats, without gradient: (N, D) and (N,) -> ()."""
    total = hidden.new_zeros((), dtype=torch.float64)
    for part in token_losses(hidden, targets, logits, vocab_size):
        total += part.sum()
    return total.to(at_least_float32(hidden.dtype))


# -------------------------------------------------------- an implementation of cross_entropy


def _in_slices(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float = 0.0
) -> Tensor:
    learning = torch.is_grad_enabled()  # inside the function it is always off
    if learning or smoothing:
        return _SlicedCrossEntropy.apply(hidden, weight, bias, targets, smoothing, learning)
    return summed_loss(hidden, targets, lambda part: ops.linear(part, weight, bias), weight.size(0))


class _SlicedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        smoothing: float,
        learning: bool,
    ) -> Tensor:
        dtype = autocast_dtype(hidden)
        copies = cast(weight, dtype), None if bias is None else cast(bias, dtype)
        if not smoothing:  # whose loss is a mean over all logits
            copies = _aligned(*copies)
        ctx.learning = learning and any(ctx.needs_input_grad)
        ctx.dtypes, ctx.vocab_size = (hidden.dtype, weight.dtype), weight.size(0)
        # Adding to the gradient of the weight pays for slices of about D/2 tokens or more.
        slice_size = SLICES.get(weight.device.type, TRAINING_SLICE)
        rows = max(slice_size // weight.size(0), weight.size(1) // 2, 1)
        total = hidden.new_zeros((), dtype=torch.float64)
        # The gradient of few logits is smaller than that of the weight, and scaled with less work.
        ctx.stores_logits_gradient = 0 < hidden.size(0) <= min(rows, weight.size(1))
        gradients = None
        if ctx.learning and not ctx.stores_logits_gradient:
            gradients = _Gradients(hidden, weight, bias, ctx.needs_input_grad)
        for start in range(0, hidden.size(0), rows):
            part = slice(start, start + rows)
            inputs = hidden[part].to(dtype)
            logits = linear_no_grad(inputs, *copies)
            loss, grad = ops.cross_entropy_gradient(logits, targets[part], smoothing)
            total += loss
            if gradients is not None:
                gradients.add(part, inputs, copies[0], grad.to(dtype))
            elif ctx.learning:
                ctx.save_for_backward(inputs, copies[0], grad.to(dtype))
        if gradients is not None:
            ctx.save_for_backward(gradients.hidden, gradients.weight, gradients.bias)
        return total.to(at_least_float32(hidden.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        gradients_of = _from_logits_gradient if ctx.stores_logits_gradient else _from_sums
        return *gradients_of(ctx, grads[0]), None, None, None


def _aligned(weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The output (V, D), (V,) with further tokens, of probability 0, for products that are fast."""
    count = -weight.size(0) % ALIGNMENTS.get(weight.device.type, 1)
    if not count:
        return weight, bias
    bias = weight.new_zeros(weight.size(0)) if bias is None else bias
    return F.pad(weight, (0, 0, 0, count)), F.pad(bias, (0, count), value=-torch.inf)


def _from_logits_gradient(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
    """From the gradient of the logits of the only slice."""
    part, weight, grad = ctx.saved_tensors
    hidden_dtype, dtype = ctx.dtypes
    needs_hidden, needs_weight, needs_bias, *_ = ctx.needs_input_grad
    count = ctx.vocab_size  # V, without the tokens of `_aligned`
    scaled = part * scale.to(part.dtype)
    return (
        linear_no_grad(grad, weight.t()).mul_(scale).to(hidden_dtype) if needs_hidden else None,
        weight_gradient(grad, scaled, dtype)[:count] if needs_weight else None,
        grad.sum(0, dtype=dtype)[:count] * scale if needs_bias else None,
    )


def _from_sums(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
    """From the sums of the gradients of all slices."""
    return tuple(
        None if gradient is None else gradient * scale.to(gradient.dtype)
        for gradient in ctx.saved_tensors
    )


class _Gradients:
    """Gradients summed slice by slice; those of the parameters in their own precision.

    needed: whether those of hidden, weight and bias are; the others are None and not computed.
    """

    def __init__(self, hidden: Tensor, weight: Tensor, bias: Tensor | None, needed: Sequence[bool]):
        # The first slice writes the gradient of the weight; without tokens there is none.
        allocate = torch.empty_like if hidden.size(0) else torch.zeros_like
        self.hidden = torch.empty_like(hidden) if needed[0] else None
        self.weight = allocate(weight) if needed[1] else None
        self.bias = torch.zeros_like(bias) if bias is not None and needed[2] else None

    def add(self, part: slice, inputs: Tensor, weight: Tensor, grad: Tensor) -> None:
        """`grad` is d loss / d logits of one slice, (n, V), `_aligned` as `weight` is."""
        if self.hidden is not None:
            self.hidden[part] = linear_no_grad(grad, weight.t())
        if self.weight is not None:
            product = linear_no_grad(grad.t(), inputs.t())  # (V, n) and (n, D) -> (V, D)
            product = product[: self.weight.size(0)]
            if part.start:
                self.weight += product
            else:
                self.weight.copy_(product)
        if self.bias is not None:
            self.bias += grad.to(at_least_float32(grad.dtype)).sum(0)[: self.bias.size(0)]


ops.register(ops.cross_entropy, "sliced", _in_slices)


BISECTIONS = 60


class SampledSoftmax(Softmax):
    """A `Softmax` over V words; in training each loss is over its target and `samples` words.

    One sample, drawn from torch's default generator, serves all targets of a call.

    Raises:
        ValueError: there are fewer words than samples.
    """

    def __init__(self, d_model: int, vocab_size: int, samples: int):
        super().__init__(d_model, vocab_size, tied=None, bias=True)
        if not 1 <= samples <= vocab_size:
            raise ValueError(
                f"`negative_samples` must be at most the {vocab_size} words of the vocabulary, "
                f"but is {samples}."
            )
        self.samples = samples
        probabilities = zipfian(vocab_size)
        expected = expected_counts(probabilities, samples)
        for name, values in (("probabilities", probabilities), ("log_expected", np.log(expected))):
            self.register_buffer(name, torch.from_numpy(values).float(), persistent=False)

    def loss(
        self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0, count: int | None = None
    ) -> tuple[Tensor, int]:
        """See `Softmax`; in evaluation, and with `smoothing`, it is the loss over all words."""
        if not self.training or smoothing:
            return super().loss(hidden, targets, smoothing, count)
        hidden, targets = without_ignored(hidden, targets, count)
        probabilities: Tensor = self.probabilities  # type: ignore[assignment]
        sampled = torch.multinomial(probabilities, self.samples)  # (S,)
        return self.sampled_loss(hidden, targets, sampled), targets.numel()

    def sampled_loss(self, hidden: Tensor, targets: Tensor, sampled: Tensor) -> Tensor:
        """The sum of the losses in nats with a sample: (N, D), (N,) ids and (S,) ids -> ()."""
        correction: Tensor = self.log_expected  # type: ignore[assignment]
        bias = torch.zeros_like(correction) if self.bias is None else self.bias
        bias = bias - correction
        target_logits = (hidden * self.weight[targets]).sum(1) + bias[targets]  # (N,)
        sampled_logits = torch.addmm(bias[sampled], hidden, self.weight[sampled].t())  # (N, S)
        sampled_logits = sampled_logits.masked_fill(targets[:, None] == sampled, float("-inf"))
        logits = torch.cat([target_logits[:, None], sampled_logits], 1).float()
        return (logits.logsumexp(1) - target_logits.float()).sum()


def zipfian(vocab_size: int) -> np.ndarray:
    """p_k = log((k + 2) / (k + 1)) / log(V + 1), (V,) in float64."""
    ranks = np.log(np.arange(1, vocab_size + 2))
    return np.diff(ranks) / ranks[-1]


def expected_counts(probabilities: np.ndarray, samples: int) -> np.ndarray:
    """q, the probability that each word is in a sample of `samples` different words: (V,).

    In n draws with replacement it is 1 - (1 - p_k)^n; n is chosen so that these sum to `samples`.
    """
    if samples == len(probabilities):
        return np.ones_like(probabilities)
    low, high = float(samples), 1e12
    for _ in range(BISECTIONS):
        tries = (low * high) ** 0.5
        drawn = -np.expm1(tries * np.log1p(-probabilities))
        low, high = (tries, high) if drawn.sum() < samples else (low, tries)
    return -np.expm1(high * np.log1p(-probabilities))


# --------------------------------------------------------------------------------- adaptive softmax
#
# Adaptive softmax and adaptive input: less work and less width for rare words.
#
# The vocabulary, its most frequent words first, is divided into clusters. The output layer predicts
# a word of the first cluster, or in which other cluster the word is; the layer of that cluster then
# predicts the word (Grave et al. 2017, "Efficient softmax approximation for GPUs", section 4):
#
#     p(w) = p(w | head)                        of the first cluster
#     p(w) = p(cluster | head) p(w | cluster)   of the others
#
# Rare words have smaller embeddings, which are projected to the width of the model, as inputs and
# as outputs (Baevski & Auli 2019, "Adaptive Input Representations for Neural Language Modeling",
# section 3).


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
        return self.tables[0].get_parameter("weight")

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
