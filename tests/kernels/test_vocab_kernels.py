"""Kernels of embeddings and output layers against torch's own operations."""

from __future__ import annotations

import math

import pytest
import torch

from regard.ops import argmax as best

KINDS = ["fast", "older", "plain"]


def test_argmax_of_equal_probabilities_is_the_lowest_id(use):
    scores = torch.randn(3, 9000) - 5
    scores[0, [4, 5000, 8999]] = 7.0
    scores[1] = 0.25
    # Scores that differ, but whose probabilities do not.
    scores[2] = 2.9
    scores[2, [100, 8000]] = torch.tensor([3.0, 3.0 + 2**-22])
    for kind in [None, *KINDS]:
        use(kind)
        assert best(scores)[0].tolist() == [4, 0, 100]


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_argmax_of_nan_or_infinite_scores_has_a_nan_probability(use, wrong):
    scores = torch.randn(4, 5000)
    scores[1, 4444] = wrong
    scores[2] = -math.inf
    for kind in [None, *KINDS]:
        use(kind)
        assert best(scores)[1].isnan().tolist() == [False, True, True, False]
