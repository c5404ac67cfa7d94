"""Whole texts through the compiled form of a language model, against the model's own code."""

from __future__ import annotations

import pytest
import torch

import regard
from regard.data import Sequences
from regard.kernels import compiled_models
from regard.kernels.compiled_models import CompiledGenerator
from regard.kernels.program import Program
from regard.models.conversions import quantize_layers
from regard.models.gpt2 import GPT, GPT2, GPT2Config, GPTConfig
from regard.models.wrappers import encoder, generator

SIZES = dict(vocab_size=90, d_model=64, heads=4, layers=3, max_length=80)
MODELS = {
    "gpt": lambda: GPT(GPTConfig(**SIZES)),
    "gpt2": lambda: GPT2(GPT2Config(**SIZES, d_ff=96, scaled_by_layer=True)),
    "pruned": lambda: GPT2(
        GPT2Config(**SIZES, pruned=(("decoder", 1, (2,)), ("decoder", 3, (1, 4))))
    ),
}


def texts(*lengths):
    draw = torch.Generator().manual_seed(5)
    return Sequences.of([torch.randint(90, (n,), generator=draw).tolist() for n in lengths], 0)


@pytest.mark.parametrize("weights", ["int8", "bfloat16"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("most", [1, 100, 512])
@torch.no_grad()
def test_compiled_states_of_whole_texts_equal_those_of_the_model(
    use, monkeypatch, name, weights, most
):
    use("fast")
    torch.manual_seed(2)
    model = quantize_layers(MODELS[name]().eval(), weights)
    monkeypatch.setattr(compiled_models, "MAX_TOKENS", most)
    for batch in (texts(70, 3, 41, 1), texts(1), texts(9, 9)):
        found, wanted = generator(model)(batch.ids).hidden, model(batch.ids).hidden
        encoded = encoder(model).encode(batch)
        assert torch.equal(encoded, found)
        assert (found - wanted)[batch.keep].abs().max() < 0.05 * wanted.abs().max()
        likeness = torch.cosine_similarity(found, wanted, dim=-1)[batch.keep]
        assert likeness.min() > 0.9995


@torch.no_grad()
def test_attention_capture_uses_the_plain_model(use, monkeypatch):
    use("fast")
    model = quantize_layers(MODELS["gpt2"]().eval(), "int8")
    compiled, run = [], Program.step
    monkeypatch.setattr(Program, "step", lambda *given: compiled.append(1) or run(*given))
    monkeypatch.setattr(CompiledGenerator, "_cache_agrees", lambda *asked, gives: True)
    encoder(model).encode(texts(5, 8))
    assert compiled == [1]
    with regard.look(model) as attention:
        encoder(model).encode(texts(5, 8))
    assert compiled == [1] and attention
    use(None)
    encoder(model).encode(texts(5, 8))
    assert compiled == [1]
