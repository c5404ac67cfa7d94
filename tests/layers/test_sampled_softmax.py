"""A softmax over a sample of the words."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest
import torch

from regard.layers.softmax import SampledSoftmax, expected_counts, zipfian

V, D, N = 12, 6, 9


def layer(samples: int, seed: int = 0) -> SampledSoftmax:
    torch.manual_seed(seed)
    made = SampledSoftmax(D, V, samples)
    torch.nn.init.normal_(made.bias)
    return made


def data() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(N, D), torch.randint(0, V, (N,))


def test_probabilities_are_those_of_a_zipfian_text():
    found = zipfian(V)
    assert math.isclose(found.sum(), 1.0) and (np.diff(found) < 0).all()
    assert math.isclose(found[0], math.log(2) / math.log(V + 1))


def test_a_sample_of_all_words_gives_the_full_softmax_and_its_gradients():
    head, (hidden, targets) = layer(V), data()
    results = []
    for mode in (True, False):
        head.train(mode)
        head.zero_grad()
        read = hidden.clone().requires_grad_()
        loss, count = head.loss(read, targets)
        loss.backward()
        assert count == N
        results.append([loss.detach(), read.grad, head.weight.grad.clone(), head.bias.grad.clone()])
    torch.testing.assert_close(results[0], results[1], atol=1e-5, rtol=1e-5)


def test_the_loss_equals_its_formula_in_float64():
    head, (hidden, targets) = layer(5), data()
    sampled = torch.tensor([0, 3, 4, 7, 11])
    q = expected_counts(zipfian(V), 5)
    scores = (hidden.double() @ head.weight.double().T + head.bias.double()).detach().numpy()
    expected = 0.0
    for row, target in enumerate(targets.tolist()):
        corrected = scores[row] - np.log(q)
        others = [corrected[k] for k in sampled.tolist() if k != target]
        expected -= corrected[target] - np.logaddexp.reduce([corrected[target], *others])
    found = head.sampled_loss(hidden, targets, sampled)
    assert math.isclose(float(found.detach()), expected, rel_tol=1e-5)


def test_expected_counts_are_near_those_of_all_samples_in_every_order():
    """Words are drawn one after the other, and those drawn before are left out."""
    p, samples = zipfian(7), 3
    exact = np.zeros(7)
    for drawn in permutations(range(7), samples):
        chance, left = 1.0, 1.0
        for word in drawn:
            chance, left = chance * p[word] / left, left - p[word]
        exact[list(drawn)] += chance
    assert math.isclose(exact.sum(), samples)
    found = expected_counts(p, samples)
    assert math.isclose(found.sum(), samples, rel_tol=1e-9)
    np.testing.assert_allclose(found, exact, atol=0.03)


def test_a_seed_repeats_the_sample_and_targets_may_be_ignored():
    head, (hidden, targets) = layer(4).train(), data()
    targets[2] = -100
    found = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        loss, count = head.loss(hidden, targets)
        found.append(float(loss))
        assert count == N - 1
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize("samples", [0, V + 1])
def test_samples_must_fit_the_vocabulary(samples):
    with pytest.raises(ValueError, match="`negative_samples` must be"):
        SampledSoftmax(D, V, samples)
