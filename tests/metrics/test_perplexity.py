"""Entropies and distances against scipy; which scores are better."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy as scipy_entropy

from regard.metrics import (
    Protocol,
    cross_entropy,
    entropy,
    jensen_shannon,
    kl_divergence,
)
from regard.metrics.perplexity import UNITS, Perplexity
from regard.metrics.score import better_direction
from regard.tasks.bidirectional_language_modeling import DIRECTIONS


@pytest.fixture
def distributions():
    draw = np.random.default_rng(0)
    p, q = draw.dirichlet(np.ones(30), 5), draw.dirichlet(np.full(30, 0.1), 5)
    p[0, :10] = 0
    p[0] /= p[0].sum()
    p[1] = np.eye(30)[3]
    return p, np.maximum(q, 1e-9) / np.maximum(q, 1e-9).sum(-1, keepdims=True)


@pytest.mark.parametrize("bits", [False, True])
def test_entropies_and_divergences_equal_those_of_scipy(distributions, bits):
    p, q = distributions
    base = 2 if bits else math.e
    close = lambda found, wanted: np.testing.assert_allclose(  # noqa: E731
        found.numpy(), wanted, rtol=1e-12, atol=1e-14
    )
    close(entropy(p, bits=bits), scipy_entropy(p, base=base, axis=-1))
    close(kl_divergence(p, q, bits=bits), scipy_entropy(p, q, base=base, axis=-1))
    close(jensen_shannon(p, q, bits=bits), jensenshannon(p, q, base=base, axis=-1) ** 2)
    naive = [
        -sum(a * math.log(b, base) for a, b in zip(x, y, strict=True) if a)
        for x, y in zip(p, q, strict=True)
    ]
    close(cross_entropy(p, q, bits=bits), naive)


HIGHER = (
    "accuracy",
    "accuracy per byte",
    "accuracy per token",
    "BLEU",
    "bracket F1",
    "chrF2",
    "chrF2++",
    "CIDEr-D",
    "entity F1",
    "exact match",
    "F1",
    "GLUE average",
    "last-word accuracy",
    "macro-F1",
    "masked accuracy",
    "Matthews correlation",
    "micro-F1",
    "minimal-pair accuracy",
    "Pearson correlation",
    "ROUGE-L",
    "Spearman correlation",
    "SQuAD F1",
    "subset accuracy",
)
LOWER = (
    "last-word perplexity",
    "masked perplexity",
    "reply perplexity",
    "reply perplexity without history",
    *(Perplexity(1.0, 1, Protocol(unit, "words")).name for unit in UNITS),
    *(Perplexity(1.0, 1, Protocol("word", "words", direction=way)).name for way in DIRECTIONS),
)
DIRECTION_OF = {
    **dict.fromkeys(HIGHER, "max"),
    **dict.fromkeys(LOWER, "min"),
}


@pytest.mark.parametrize("goal", [("a goal of another name", "min"), ("another goal", "max")])
def test_every_score_of_the_library_has_its_direction(goal):
    assert {name: better_direction(name, goal) for name in DIRECTION_OF} == DIRECTION_OF
