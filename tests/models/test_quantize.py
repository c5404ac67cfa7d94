"""Quantized models give the same with compiled kernels and without."""

from __future__ import annotations

import warnings

import pytest
import torch
from random_weights import new_model, spread
from test_registry import CASES, build, ids, name_of, start_decoding

from regard import ops
from regard.data.batches import Sequences
from regard.decoding.steps import start
from regard.layers import quantized
from regard.layers.quantized import QuantizedLinear, QuantizedMatrix
from regard.models.bert import Bert
from regard.models.conversions import prepare
from regard.models.wrappers import encoder, generator

WORDS = 70
SIZES = dict(d_model=64, heads=4, max_length=40)
MODELS = {
    "lstm-lm": dict(cell="lstm", d_model=64, layers=2),
    "gpt2": dict(layers=2, **SIZES),
    "transformer": dict(d_ff=96, encoder_layers=2, decoder_layers=2, **SIZES),
    "bert": dict(d_ff=96, layers=2, **SIZES),
}


def made(name: str) -> torch.nn.Module:
    return spread(new_model(name, WORDS, **MODELS[name]))


@torch.no_grad()
def results(model) -> torch.Tensor:
    """Logits of a prompt and eight steps; of an encoder the hidden states."""
    texts = Sequences.of([[3, 4, 5, 2], [1, 2], [7, 8, 9, 10, 11, 2]], 0)
    if isinstance(model, Bert):
        return encoder(model).encode(texts)[texts.keep]
    stepping = generator(model)
    state, tokens = start(stepping, texts)
    found = []
    for number in range(8):
        logits, state = stepping.step((tokens * 7 + 3 * number) % WORDS, state)
        found.append(logits)
    return torch.cat(found, 1)


def assert_close(found, expected):
    # Sums in another order differ in the last digits. A number half way between two steps of a
    # quantized type may then be rounded the other way: rarely, and by one step.
    difference, largest = (found - expected).abs(), expected.abs().max()
    assert difference.max() < 5e-2 * largest
    assert difference.median() < 5e-3 * largest


@pytest.mark.parametrize("dtype", ["int8", "bfloat16"])
@pytest.mark.parametrize("name", MODELS)
def test_logits_are_the_same_with_and_without_kernels(name, dtype, request):
    float32 = results(made(name))
    model = prepare(made(name), dtype)
    expected = results(model)
    with ops.reference():
        assert_close(results(model), expected)
    request.getfixturevalue("no_kernels")
    with pytest.warns(UserWarning, match="save memory, but are slower") as warned:
        model = prepare(made(name), dtype)
    assert len(warned) == 1
    assert any(isinstance(part, QuantizedLinear) for part in model.modules())
    found = results(model)
    assert_close(found, expected)
    error = (found - float32).pow(2).mean().sqrt() / float32.std()
    assert 0 < error < 0.06


@torch.no_grad()
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_every_quantized_decoder_steps_as_the_float_model_does(no_kernels, case):
    """Its states too: a cache in the type of quantized weights would hold nothing but noise."""
    found = []
    for is_quantized in (False, True):
        model = build(case).eval()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = prepare(model, "int8") if is_quantized else model
        state, _ = start_decoding(model)
        assert all(t.is_floating_point() or t.dtype == torch.long for t in state.tensors().values())
        steps = []
        for number in range(4):
            scores, state = model.step(ids(3, 1, seed=number), state)
            steps.append(scores)
        found.append(torch.cat(steps, 1).log_softmax(-1))
    plain, close = found
    assert (close - plain).abs().mean() < 0.05 * plain.std() + 1e-3


@pytest.mark.parametrize("dtype", ["int8", "bfloat16"])
@pytest.mark.parametrize("rows", [1, 16, 37, 64])
def test_a_product_dequantizes_slices(no_kernels, monkeypatch, dtype, rows):
    matrix, x = QuantizedMatrix(torch.randn(rows, 70), dtype), torch.randn(5, 70)
    bias, largest = torch.randn(rows), []
    expected = matrix(x, bias)
    unpack = quantized.unpack

    def counted(*arguments):
        largest.append(unpack(*arguments))
        return largest[-1]

    monkeypatch.setattr(quantized, "unpack", counted)
    monkeypatch.setattr(quantized, "WEIGHTS_AT_ONCE", 16 * 70)
    torch.testing.assert_close(matrix(x, bias), expected)
    assert len(largest) == -(-rows // 16) and sum(map(len, largest)) == rows
