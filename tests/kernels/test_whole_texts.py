"""Whole texts through the compiled blocks of a decoder, against the same block by block."""

from __future__ import annotations

import pytest
import torch

import regard
from regard.data import Sequences
from regard.kernels import compiled_decoder
from regard.kernels.compiled_decoder import FastBlocks
from regard.models.blocks import Blocks
from regard.models.gpt import GPT, GPTConfig
from regard.models.gpt2 import GPT2, GPT2Config
from regard.models.quantize import compiled_steps, quantize_layers

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
def test_states_are_those_of_the_blocks(use, monkeypatch, name, weights, most):
    use("fast")
    torch.manual_seed(2)
    model = compiled_steps(quantize_layers(MODELS[name]().eval(), weights))
    monkeypatch.setattr(compiled_decoder, "MOST", most)
    for rows in (texts(70, 3, 41, 1), texts(1), texts(9, 9)):
        found = model.encode(rows)
        with monkeypatch.context() as slowly:
            slowly.setattr(FastBlocks, "read", Blocks.read)
            wanted = model.encode(rows)
        assert (found - wanted)[rows.keep].abs().max() < 0.05 * wanted.abs().max()
        likeness = torch.cosine_similarity(found, wanted, dim=-1)[rows.keep]
        assert likeness.min() > 0.9995


@torch.no_grad()
def test_attention_capture_runs_the_blocks(use, monkeypatch):
    use("fast")
    model = compiled_steps(quantize_layers(MODELS["gpt2"]().eval(), "int8"))
    compiled = []
    decode = FastBlocks.decode
    monkeypatch.setattr(
        FastBlocks, "decode", lambda self, *given: compiled.append(1) or decode(self, *given)
    )
    model.encode(texts(5, 8))
    assert compiled == [1]
    with regard.look(model) as seen:
        model.encode(texts(5, 8))
    assert compiled == [1] and seen
    use(None)
    model.encode(texts(5, 8))
    assert compiled == [1]
