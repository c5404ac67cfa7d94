"""Adaptive softmax and input against torch's own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

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


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (dict(cutoffs=(5, 5)), "`cutoffs` must ascend strictly"),
        (dict(cutoffs=(0,)), "`cutoffs` must ascend strictly"),
        (dict(cutoffs=(V,)), "`cutoffs` must ascend strictly"),
        (dict(cutoffs=(5, 6), divisor=3), "`d_embedding` must be at least 9"),
    ],
)
def test_impossible_clusters_raise_an_error(options, said):
    with pytest.raises(ValueError, match=said):
        Clusters(V, D, D, **options)
