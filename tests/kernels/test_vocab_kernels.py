"""Kernels of embeddings and output layers against torch's own operations."""

from __future__ import annotations

import math

import pytest
import torch

from regard.layers.quantized import QuantizedMatrix
from regard.ops import argmax as best
from regard.ops import negative_log_likelihood as nll

KINDS = ["fast", "older", "plain"]


def close(kind: str | None) -> dict[str, float]:
    """The distance to float64 that is allowed, for kernels and for torch.

    torch adds up a row in float32: with 50,257 scores its error is 6e-6 on x86, 3e-5 on AArch64.
    """
    return dict(atol=5e-5, rtol=1e-5) if kind is None else dict(atol=2e-6, rtol=1e-6)


@pytest.mark.parametrize("weights", ["int8", "bfloat16"])
@pytest.mark.parametrize("shape", [(101, 40), (32, 128), (5, 77)])
def test_the_rows_of_a_quantized_matrix_equal_those_of_torch(use, weights, shape):
    matrix = QuantizedMatrix(torch.randn(shape), weights)
    ids = torch.randint(shape[0], (3, 4))
    use(None)
    wanted = matrix.rows(ids)
    for kind in KINDS:
        use(kind)
        assert torch.equal(matrix.rows(ids), wanted)
        assert matrix.rows(ids[:0]).shape == (0, 4, shape[1])
        for wrong in (-1, shape[0]):
            with pytest.raises(IndexError, match=f"to {shape[0] - 1}"):
                matrix.rows(torch.tensor([0, wrong]))


@pytest.mark.parametrize("words", [1, 17, 4096, 50_257])
@pytest.mark.parametrize("threads", [1, 2])
def test_argmax_gives_the_best_token_and_its_log_probability(use, monkeypatch, words, threads):
    monkeypatch.setattr("regard.kernels.products.threads_for", lambda work: threads)
    scores = torch.randn(5, words, generator=torch.Generator().manual_seed(words)) * 4
    scores[1] -= 100
    scores[2, : words // 2] = -math.inf
    wanted = scores.double().log_softmax(-1)
    for kind in [None, *KINDS]:
        use(kind)
        word, log_prob = best(scores)
        assert torch.equal(word, wanted.argmax(-1))
        assert torch.allclose(log_prob.double(), wanted.amax(-1), **close(kind))
    assert best(scores[:0])[0].shape == (0,)


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


@pytest.mark.parametrize("words", [1, 17, 4096, 50_257])
@pytest.mark.parametrize("threads", [1, 2])
def test_negative_log_likelihood_equals_that_in_float64(use, monkeypatch, words, threads):
    monkeypatch.setattr("regard.kernels.products.threads_for", lambda work: threads)
    scores = torch.randn(5, words, generator=torch.Generator().manual_seed(words)) * 4
    scores[1] -= 1000
    scores[2, : words // 2] = -math.inf
    asked = torch.tensor([0, words - 1, words - 1, words // 2, words // 3])
    wanted = -scores.double().log_softmax(-1).gather(1, asked[:, None])[:, 0]
    for kind in [None, *KINDS]:
        use(kind)
        found = nll(scores, asked)
        assert found.dtype == torch.float64
        assert torch.allclose(found, wanted, **close(kind))
        half = scores.bfloat16()
        assert torch.allclose(
            nll(half, asked),
            nll(half.float(), asked),
            atol=2e-6,
        )
    assert nll(scores[:0], asked[:0]).shape == (0,)
    scores[0, 0], scores[1] = math.nan, -math.inf
    for kind in [None, *KINDS]:
        use(kind)
        assert not nll(scores, asked)[:2].isfinite().any()
        assert nll(scores, asked)[2:].isfinite().all()
