"""The best words of each row by the kernels, against a sort of their log-probabilities."""

from __future__ import annotations

import math

import pytest
import torch

from regard import ops

KINDS = ["fast", "older", "plain"]


def by_sorting(scores, count):
    """In float32, as both sides round; of equally probable words the first."""
    log_probs = scores.log_softmax(-1)
    order = log_probs.sort(dim=-1, descending=True, stable=True).indices[:, :count]
    return order, scores.double().log_softmax(-1).gather(1, order).float()


@pytest.mark.parametrize(
    "words, count", [(512, 1), (10, 8), (101, 8), (600, 8), (4097, 8), (32_000, 8), (9_000, 600)]
)
@pytest.mark.parametrize("grain", [None, 1.0])
def test_topk_equals_a_full_sort(use, words, count, grain):
    scores = torch.randn(7, words, generator=torch.Generator().manual_seed(words)) * 4
    if grain is not None:  # few values, so that many are equal
        scores = (scores * grain).round()
    scores[1] -= 100
    scores[2, : words // 2] = -math.inf
    scores[3, 1:] = -math.inf  # fewer words than are looked for
    scores[4] = 0.25
    wanted, log_prob = by_sorting(scores, count)
    for kind in KINDS:
        use(kind)
        found = ops.topk(scores, count)
        assert torch.equal(found[0], wanted)
        torch.testing.assert_close(found[1], log_prob, rtol=1e-6, atol=1e-6)
        assert [part.shape for part in ops.topk(scores[:0], count)] == [(0, count), (0, count)]


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_nan_and_infinity_give_nan_probabilities_in_their_row(use, wrong):
    scores = torch.zeros(3, 5000)
    scores[1, 4000] = wrong
    for kind in KINDS:
        use(kind)
        assert ops.topk(scores, 4)[1].isnan().any(1).tolist() == [False, True, False]


def test_the_kernel_is_used_only_for_float32_scores_of_enough_tokens(use):
    use("fast")
    assert ops.topk.has_implementation(torch.zeros(2, 9000), 3)
    assert not ops.topk.has_implementation(torch.zeros(2, 2), 3)
    assert not ops.topk.has_implementation(torch.zeros(2, 9000, dtype=torch.float64), 3)
    use(None)
    assert not ops.topk.has_implementation(torch.zeros(2, 9000), 3)
