"""Adaptive softmax and input against torch's own, and against the formula in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import ops
from regard.layers.softmax import AdaptiveEmbedding, AdaptiveSoftmax, Clusters

V, D = 23, 8
CASES = [
    Clusters(V, D, D),
    Clusters(V, D, 5),
    Clusters(V, D, D, (7, 15)),
    Clusters(V, D, 6, (7, 15)),
    Clusters(V, D, D, (1, 2, 22), 2),
    Clusters(V, D, 12, (9,), 3),
    Clusters(V, D, D, (), 4),
]


def made(clusters: Clusters, *, tied: bool = True) -> tuple[AdaptiveEmbedding, AdaptiveSoftmax]:
    torch.manual_seed(0)
    embedding = AdaptiveEmbedding(clusters)
    shared = [n % 2 == 1 for n in range(len(clusters.sizes))]
    head = AdaptiveSoftmax(
        clusters,
        tied=embedding if tied else None,
        embedding=embedding,
        tied_projections=shared,
    )
    with torch.no_grad():
        for parameter in [*embedding.parameters(), *head.parameters()]:
            nn.init.normal_(parameter)
    return embedding.double(), head.double()


def naive(head: AdaptiveSoftmax, hidden: Tensor) -> Tensor:
    """log p(w) of one position, word by word."""
    clusters = head.clusters
    weights = torch.cat([w for w in head.weights]) if clusters.divisor == 1 else None

    def scores(n: int, words: range, more: bool) -> Tensor:
        read = head.projections[n].T @ hidden if clusters.projects else hidden
        if weights is not None:
            rows = [weights[w] @ read + head.biases[0][w] for w in words]
        else:
            start = clusters.bounds[n]
            rows = [head.weights[n][w - start] @ read + head.biases[n][w - start] for w in words]
        for cluster in range(len(clusters.cutoffs) if more else 0):
            rows.append(head.cluster_weight[cluster] @ read + head.cluster_bias[cluster])
        return torch.stack(rows).log_softmax(0)

    first = clusters.bounds[1]
    chosen = scores(0, range(first), more=True)
    said = [*chosen[:first]]
    for n in range(1, len(clusters.sizes)):
        inside = scores(n, range(clusters.bounds[n], clusters.bounds[n + 1]), more=False)
        said += [chosen[first + n - 1] + one for one in inside]
    return torch.stack(said)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("clusters", CASES, ids=str)
def test_log_probabilities_and_losses_equal_the_formula(clusters, tied):
    _, head = made(clusters, tied=tied)
    hidden = torch.randn(V + 2, D, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([*range(V), -100, 3])  # every word once
    expected = torch.stack([naive(head, one) for one in hidden])
    torch.testing.assert_close(expected.exp().sum(-1), torch.ones(V + 2, dtype=torch.float64))
    torch.testing.assert_close(head.logits(hidden), expected)
    parameters = [hidden, *head.parameters()]
    for smoothing in (0.0, 0.1):
        total, count = head.loss(hidden, targets, smoothing)
        wanted = F.cross_entropy(expected, targets, reduction="sum", label_smoothing=smoothing)
        assert count == V + 1
        torch.testing.assert_close(total, wanted)
        grads = torch.autograd.grad(total, parameters, allow_unused=True)
        for grad, other in zip(
            grads, torch.autograd.grad(wanted, parameters, retain_graph=True), strict=True
        ):
            torch.testing.assert_close(grad, other)
    assert head.loss(hidden, targets, count=V + 1)[1] == V + 1
    with ops.reference():
        torch.testing.assert_close(head.loss(hidden, targets, 0.1)[0], wanted)


def test_adaptive_softmax_equals_torchs():
    clusters = Clusters(V, D, D, (7, 15), 2)
    theirs = nn.AdaptiveLogSoftmaxWithLoss(D, V, [7, 15], div_value=2.0, head_bias=True).double()
    _, head = made(clusters)
    with torch.no_grad():
        head.projections[0].copy_(torch.eye(D))
        head.weights[0].copy_(theirs.head.weight[:7])
        head.biases[0].copy_(theirs.head.bias[:7])
        head.cluster_weight.copy_(theirs.head.weight[7:])
        head.cluster_bias.copy_(theirs.head.bias[7:])
        for n, tail in enumerate(theirs.tail, 1):
            head.projections[n].copy_(tail[0].weight.T)
            head.weights[n].copy_(tail[1].weight)
            head.biases[n].zero_()
    hidden, targets = torch.randn(50, D).double(), torch.randint(0, V, (50,))
    torch.testing.assert_close(head.logits(hidden), theirs.log_prob(hidden))
    torch.testing.assert_close(head.loss(hidden, targets)[0] / 50, theirs(hidden, targets).loss)


@pytest.mark.parametrize("clusters", CASES, ids=str)
def test_vectors_of_words_are_rows_of_their_clusters_matrix_projected(clusters):
    embedding, _ = made(clusters)
    ids = torch.tensor([[5, 0, 22], [7, 21, 8]])
    found = embedding(ids)
    assert found.shape == (2, 3, D)
    for at in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]:
        word = int(ids[at])
        n = sum(word >= cut for cut in clusters.cutoffs) if clusters.divisor != 1 else 0
        vector = embedding.tables[n].weight[word - (clusters.bounds[n] if n else 0)]
        if clusters.projects:
            vector = embedding.projections[n] @ vector
        torch.testing.assert_close(found[at], vector)
    assert embedding(ids[:0]).shape == (0, 3, D)
    used = torch.autograd.grad(found.sum(), embedding.tables[0].weight)[0].abs().sum(1) > 0
    wanted = {int(i) for i in ids.flatten() if int(i) < len(used)}
    assert {int(i) for i in used.nonzero()} == wanted


def test_training_stores_no_logits_of_the_whole_vocabulary():
    words, count = 5000, 64
    head = AdaptiveSoftmax(Clusters(words, D, D, (100, 1000), 2))
    sizes: list[int] = []
    hidden = torch.randn(count, D, requires_grad=True)
    targets = torch.randint(0, 100, (count,))
    targets[0] = 4000
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: (sizes.append(t.numel()), t)[1], lambda t: t
    ):
        head.loss(hidden, targets)
    assert max(sizes) < count * words / 8
