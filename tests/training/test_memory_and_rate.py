"""Activation checkpointing changes no bit and saves memory; the MFU is reported."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from toy import Toy

from regard.data import Sequences
from regard.errors import ConfigError
from regard.models.bert import Bert, BertConfig
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.models.gpt2 import GPT2, GPT2Config
from regard.models.transformer import PreNormTransformer, Transformer, TransformerConfig
from regard.training import TrainingOptions, train
from regard.training.compiling import activation_checkpointing, blocks_of
from regard.training.flops import stored_by

WORDS, ROWS, LENGTH, WIDTH, LAYERS = 31, 3, 17, 24, 3
PAIR = dict(d_model=WIDTH, d_ff=48, heads=2, encoder_layers=LAYERS, decoder_layers=LAYERS)
MODELS = {
    "bert": lambda: Bert(BertConfig(WORDS, d_model=WIDTH, d_ff=48, heads=2, layers=LAYERS)),
    "gpt2": lambda: GPT2(GPT2Config(WORDS, d_model=WIDTH, heads=2, layers=LAYERS)),
    "transformer": lambda: Transformer(TransformerConfig(WORDS, **PAIR)),
    "pre-norm": lambda: PreNormTransformer(TransformerConfig(WORDS, **PAIR)),
}


def texts(seed=0):
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, WORDS, (ROWS, LENGTH), generator=draw)
    return Sequences(ids, torch.tensor([LENGTH, LENGTH - 5, 4]))


def hidden_of(model):
    given = texts()
    if isinstance(model, Transformer):
        return model(given, Sequences.full(given.ids)).hidden
    return model(given).hidden if isinstance(model, Bert) else model(given.ids).hidden


def passed(model, low_precision, blocks):
    model.zero_grad()
    torch.manual_seed(4)
    cast = torch.autocast("cpu", torch.bfloat16) if low_precision else nullcontext()
    with cast, activation_checkpointing(blocks):
        total = hidden_of(model).float().square().sum()
    total.backward()
    return [
        total,
        torch.get_rng_state(),
        *(p.grad for p in model.parameters() if p.grad is not None),
    ]


@pytest.mark.parametrize("low_precision", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", MODELS)
def test_activation_checkpointing_changes_no_bit(name, low_precision):
    """With dropout; afterwards the random generator is in the same state."""
    torch.manual_seed(0)
    model = MODELS[name]().train()
    blocks = blocks_of(model)
    assert len(blocks) == LAYERS * (2 if isinstance(model, Transformer) else 1)
    before, after = passed(model, low_precision, []), passed(model, low_precision, blocks)
    assert len(before) == len(after) > 2 + LAYERS
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert all("forward" not in vars(block) for block in blocks)


def test_activation_checkpointing_stores_only_the_input_of_each_block():
    model = MODELS["bert"]().train()
    whole = stored_by(model, lambda: hidden_of(model))
    few = stored_by(model, lambda: hidden_of(model), blocks_of(model))
    entering = LAYERS * ROWS * LENGTH * WIDTH * 4
    assert entering <= few < entering + 8 * ROWS * LENGTH * WIDTH * 4 < whole / 2


def test_activation_checkpointing_without_blocks_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="but Model has none"):
        train(
            Toy(),
            TrainingOptions(max_steps=1, activation_checkpointing=True),
            tmp_path / "run",
            progress=False,
        )
    with pytest.raises(
        ConfigError, match="`activation_checkpointing` is for models that are made of blocks"
    ):
        blocks_of(torch.nn.Linear(2, 2))


# ---- the share of the device's rate


def test_the_flops_of_a_head_at_few_positions_are_counted():
    encoder = MODELS["bert"]()
    model = EncoderWithHeads(encoder, {"masked_lm": encoder.new_head("masked_lm")})
    assert blocks_of(model) == list(encoder.blocks)
