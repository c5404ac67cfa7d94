"""Perplexity, entropies and distances against float64 formulas and scipy."""

import math

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy as scipy_entropy

from regard.errors import ConfigError, RegardError
from regard.metrics import (
    PerplexityMeter,
    Protocol,
    cross_entropy,
    entropy,
    jensen_shannon,
    kl_divergence,
)


@pytest.fixture
def pairs():
    draw = np.random.default_rng(0)
    p, q = draw.dirichlet(np.ones(30), 5), draw.dirichlet(np.full(30, 0.1), 5)
    p[0, :10] = 0
    p[0] /= p[0].sum()
    p[1] = np.eye(30)[3]
    return p, np.maximum(q, 1e-9) / np.maximum(q, 1e-9).sum(-1, keepdims=True)


@pytest.mark.parametrize("bits", [False, True])
def test_entropies_and_divergences_equal_those_of_scipy(pairs, bits):
    p, q = pairs
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


@pytest.mark.parametrize("wrong", [[0.5, 0.6], [1.5, -0.5], [float("nan"), 1.0], []])
def test_invalid_distributions_raise_errors(wrong):
    with pytest.raises(RegardError, match="`p` must be probabilities that sum to 1, but is"):
        kl_divergence(wrong, [0.5, 0.5])


def test_perplexity_of_each_unit_equals_the_value_worked_by_hand():
    # "to be or" as six tokens of probability 1/4: 3 words, 8 characters
    nats = 6 * math.log(4)
    parts = [(nats / 3, 2, 1, 3), (2 * nats / 3, 4, 2, 5)]
    found = {}
    for column, unit in enumerate(["token", "word", "character"], 1):
        meter = PerplexityMeter(Protocol(unit, "bpe-8000", window=512, stride=256))
        for part in parts:
            meter.add(part[0], part[column])
        found[unit] = meter.result()
    assert found["token"].value == pytest.approx(4)
    assert found["word"].value == pytest.approx(16)
    assert found["character"].value == pytest.approx(12 / 8)  # bits
    assert str(found["word"]) == (
        "perplexity = 16.00 unit:word|tok:bpe-8000|window:512|stride:256|count:3"
    )
    assert str(found["character"]).startswith("bits per character = 1.5000 unit:character|")


def test_perplexity_is_the_exponential_of_the_mean_cross_entropy():
    torch.manual_seed(0)
    logits, targets = torch.randn(50, 11), torch.randint(0, 11, (50,))
    meter = PerplexityMeter(Protocol("token", "words"))
    for part in range(0, 50, 7):
        rows = slice(part, part + 7)
        loss = torch.nn.functional.cross_entropy(logits[rows], targets[rows], reduction="sum")
        meter.add(loss, len(targets[rows]))
    log_probs = logits.double().log_softmax(-1)[torch.arange(50), targets]
    assert meter.result().value == pytest.approx(float((-log_probs.mean()).exp()), rel=1e-6)
    assert meter.result().signature == "unit:token|tok:words|window:carried|count:50"


def test_protocols_have_signatures_and_invalid_ones_raise_errors():
    assert Protocol("byte", "bytes", window=64).signature == (
        "unit:byte|tok:bytes|window:64|stride:64"
    )
    with pytest.raises(ConfigError, match="`unit` must be one of word, token"):
        Protocol("sentence", "words")
    for window, stride in ((None, 3), (8, 0), (8, 9)):
        with pytest.raises(ConfigError, match=f"`stride` must be between 1 and `window`, {window}"):
            Protocol("word", "words", window=window, stride=stride)
    meter = PerplexityMeter(Protocol("word", "words"))
    with pytest.raises(RegardError, match="Perplexity of nothing is not defined"):
        meter.result()
    meter.add(1e6, 1)
    assert meter.result().value == math.inf


def test_the_signature_counts_unknown_words():
    meter = PerplexityMeter(Protocol("word", "words-10"))
    meter.add(6.0, 3, unknown=1)
    meter.add(2.0, 1, unknown=1)
    assert meter.result().signature == "unit:word|tok:words-10|window:carried|count:4|unk:2"


@pytest.mark.parametrize("nats", [0.0, 1.5, 2e3, 1e300, math.inf, math.nan])
def test_perplexity_is_the_exponential_of_the_mean_whatever_it_is(nats):
    """NaN, of weights that diverged, stays NaN."""
    meter = PerplexityMeter(Protocol("token", "words"))
    meter.add(nats, 2)
    with np.errstate(over="ignore"):
        assert meter.result().value == pytest.approx(np.exp(nats / 2), nan_ok=True)
