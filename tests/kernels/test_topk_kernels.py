"""The best words of each row by the kernels, against a sort of their log-probabilities."""

from __future__ import annotations

import math

import pytest
import torch

from regard import ops
from regard.data.batches import Sequences
from regard.decoding.beam import Beam
from regard.decoding.steps import start
from regard.kernels.compiled_models import CompiledGenerator
from regard.models.quantize import prepare
from regard.models.transformer import Transformer, TransformerConfig
from regard.models.wrappers import generator

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
        assert [part.shape for part in ops.topk(scores[:0], count)[:2]] == [(0, count), (0, count)]


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


def decoder(words=9001, spread=1.0):
    torch.manual_seed(4)
    sizes = dict(d_model=64, d_ff=64, heads=2, encoder_layers=1, decoder_layers=1, max_length=40)
    model = Transformer(TransformerConfig(words, **sizes)).eval()
    model.embedding.weight.data.normal_(std=spread)
    return model


def started(model, rows):
    """Some sources of different lengths, and a token for each."""
    source = Sequences.of([[3 + (i + j) % 90 for j in range(1 + i % 4)] for i in range(rows)], 0)
    state, first = start(model, source)
    return state, first + torch.arange(rows)[:, None]


@pytest.mark.parametrize("weights", ["int8", "bfloat16"])
@pytest.mark.parametrize("threads", [1, 2])
def test_the_topk_of_a_step_equals_that_of_its_scores(use, monkeypatch, weights, threads):
    monkeypatch.setattr("regard.kernels.program.threads_for", lambda *work: threads)
    for words, rows, count in [
        (9001, 5, 8),
        (5120, 130, 8),
        (9001, 1, 1),
        (9300, 3, 18),
        (101, 4, 8),
    ]:
        model = CompiledGenerator(prepare(decoder(words), weights))
        for kind in KINDS:
            use(kind)
            state, tokens = started(model, rows)
            scores, after = model.step(tokens, state)
            wanted = ops.topk(scores[:, 0], count)
            found, later = model.topk(tokens, started(model, rows)[0], count)
            assert torch.equal(found.tokens, wanted.tokens) and found.vocab_size == words
            assert torch.equal(found.log_probs, wanted.log_probs)
            assert later.cache.longest == 1
            assert torch.equal(later.cache.keys[..., :1, :], after.cache.keys[..., :1, :])


@pytest.mark.parametrize("spread", [1.0, 300.0])
def test_beam_search_finds_the_same_from_topk_as_from_scores(use, monkeypatch, spread):
    use("fast")
    model = prepare(decoder(spread=spread))
    source = Sequences.of([[3, 4, 5, 2], [1, 2], [7, 8, 9, 10, 11, 2]], 0)
    beam, calls, call = Beam(size=4, n_best=4, max_tokens=12), [], CompiledGenerator.topk
    monkeypatch.setattr(CompiledGenerator, "search", lambda *asked: None)
    listen = lambda *asked: calls.append(call(*asked)) or calls[-1]  # noqa: E731
    monkeypatch.setattr(CompiledGenerator, "topk", listen)
    found = beam.run(generator(model), source)
    assert calls and all(calls)
    monkeypatch.setattr(CompiledGenerator, "topk", lambda *asked: None)
    assert beam.run(generator(model), source) == found
