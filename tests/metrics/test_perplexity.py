"""Perplexity, entropies and distances against float64 formulas; which scores are better."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
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


def test_entropies_and_divergences_equal_values_worked_by_hand():
    half, sure = [0.5, 0.5], [1.0, 0.0]
    assert entropy(half, bits=True) == 1 and entropy(sure) == 0
    assert entropy(half).item() == pytest.approx(math.log(2))
    assert cross_entropy(sure, half, bits=True) == 1
    assert cross_entropy(half, sure) == math.inf == kl_divergence(half, sure)
    assert kl_divergence(sure, half, bits=True) == 1 and kl_divergence(half, half) == 0
    assert jensen_shannon(sure, [0.0, 1.0], bits=True) == 1
    assert jensen_shannon(sure, sure) == 0


def test_entropies_take_tensors_of_any_shape_and_type():
    p = torch.rand(2, 3, 7).softmax(-1)
    assert entropy(p.half()).shape == (2, 3) and entropy(p).dtype == torch.float64
    assert kl_divergence(p, p[0, 0]).shape == (2, 3)  # one against many
    assert (kl_divergence(p, p) == 0).all()


def test_perplexity_of_each_unit_equals_the_value_worked_by_hand():
    # "to be or" as six tokens of probability 1/4: 3 words, 8 characters
    nats = 6 * math.log(4)
    found = {
        unit: Perplexity(nats, count, Protocol(unit, "bpe-8000", window=512, stride=256))
        for unit, count in (("token", 6), ("word", 3), ("character", 8))
    }
    assert found["token"].value == pytest.approx(4)
    assert found["word"].value == pytest.approx(16)
    assert found["character"].value == pytest.approx(12 / 8)  # bits
    assert str(found["word"]) == (
        "perplexity = 16.00 unit:word|tok:bpe-8000|window:512|stride:256|count:3"
    )
    assert str(found["character"]).startswith("bits per character = 1.5000 unit:character|")


@pytest.mark.parametrize("nats", [0.0, 1.5, 2e3, 1e300, math.inf, math.nan])
def test_perplexity_is_the_exponential_of_the_mean_whatever_it_is(nats):
    """NaN, of weights that diverged, stays NaN."""
    with np.errstate(over="ignore"):
        expected = np.exp(nats / 2)
    found = Perplexity(nats, 2, Protocol("token", "words")).value
    assert found == pytest.approx(expected, nan_ok=True)


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
