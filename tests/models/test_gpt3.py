"""GPT-3: its eight sizes, and layers that see a window."""

from __future__ import annotations

import resource
import time

import pytest
import torch

import regard
from regard.data.batches import Sequences
from regard.decoding.steps import start
from regard.models.gpt2 import GPT2, GPT2Config
from regard.models.gpt3 import GPT3, PUBLISHED, GPTNeo

V, POSITIONS = 50_257, 2048
# Table 2.1: d_model, layers, and the printed count; table D.1: the count in millions.
TABLE = {
    "125M": (768, 12, 125e6, 125),
    "350M": (1024, 24, 350e6, 356),
    "760M": (1536, 24, 760e6, 760),
    "1.3B": (2048, 24, 1.3e9, 1320),
    "2.7B": (2560, 32, 2.7e9, 2650),
    "6.7B": (4096, 32, 6.7e9, 6660),
    "13B": (5120, 40, 13.0e9, 12850),
    "175B": (12288, 96, 175.0e9, 174600),
}


def by_formula(width: int, layers: int, *, projection_bias: bool = True) -> int:
    """Embeddings of tokens and positions; 12 D^2 of matrices and 13 D of vectors a layer."""
    vectors = 13 if projection_bias else 10
    return (V + POSITIONS) * width + layers * (12 * width**2 + vectors * width) + 2 * width


def on_meta(kind, size):
    with torch.device("meta"):
        return kind(kind.Config(vocab_size=V, **kind.SIZES[size]))


def count(model) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("size", TABLE)
def test_the_sizes_have_the_parameters_of_table_d1(size):
    width, layers, printed, millions = TABLE[size]
    model = on_meta(GPT3, size)
    exact = count(model)
    assert exact == by_formula(width, layers)
    # Printed with three digits, and with four from 10,000 on.
    digits = 10 ** max(0, len(str(millions)) - (4 if millions > 9_999 else 3))
    assert round(exact / 1e6 / digits) * digits == millions
    figure, source = PUBLISHED[size]["parameters"]
    assert figure == printed and f"{exact:,}" in source and f"{millions:,} million" in source
    assert model.config.d_model % model.config.heads == 0


def test_the_printed_heads_of_xl_and_width_of_13b_give_other_counts_than_table_d1():
    literal = by_formula(2048, 24) + 24 * 4 * 2048 * (24 * 128 - 2048) + 24 * 3 * (3072 - 2048)
    assert round(literal / 1e7) * 10 == 1520  # and not 1320
    # 40 heads of 128 between a width of 5140
    attention = 40 * (4 * 5140 * (5120 - 5140) + 3 * (5120 - 5140))
    assert round((by_formula(5140, 40) + attention) / 1e7) * 10 == 12940  # and not 12850


def test_175_billion_parameters_are_built_at_once_and_take_no_memory():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    model = on_meta(GPT3, "175B")
    assert time.process_time() - began < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 * 1024  # KB
    assert all(tensor.is_meta for tensor in [*model.parameters(), *model.buffers()])


def model_of(kind=GPT3, **options):
    torch.manual_seed(0)
    sizes = dict(d_model=8, heads=2, layers=4, max_length=80, window=4) | options
    model = kind(kind.Config(19, bos=1, eos=2, **sizes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.double().eval()


def ids(rows: int, length: int) -> torch.Tensor:
    return torch.randint(3, 19, (rows, length), generator=torch.Generator().manual_seed(1))


def test_a_window_as_long_as_the_text_is_gpt2():
    wide = model_of(window=70)
    torch.manual_seed(0)
    plain = GPT2(GPT2Config(19, d_model=8, heads=2, layers=4, max_length=80)).double().eval()
    plain.load_state_dict(wide.state_dict())
    texts = ids(2, 70)
    with torch.no_grad():
        assert torch.equal(wide(texts).hidden, plain(texts).hidden)
        assert not torch.allclose(model_of(window=69)(texts).hidden, plain(texts).hidden)


@pytest.mark.parametrize("kind", [GPT3, GPTNeo])
@pytest.mark.parametrize("length", [9, 70])
def test_captured_weights_are_those_of_dense_and_of_local_layers_in_turn(kind, length):
    model = model_of(kind)
    texts = Sequences.full(ids(2, length))
    with torch.no_grad(), regard.look(model) as attention:
        shown = model.encode(texts)
    with torch.no_grad():
        torch.testing.assert_close(shown, model.encode(texts), atol=1e-10, rtol=0)
    rows = torch.arange(length)
    causal = rows <= rows[:, None]
    local = causal & (rows > rows[:, None] - 4)
    layers = list(attention.passes[-1].attentions.values())
    assert len(layers) == 4
    for layer, allowed in zip(layers, (causal, local, causal, local), strict=True):
        (weights,) = layer.parts
        assert torch.equal(weights > 0, allowed.expand(2, 2, length, length))


@pytest.mark.parametrize("kinds", [("local",), ("global", "local"), ("local", "local", "global")])
@pytest.mark.parametrize("kind", [GPT3, GPTNeo])
def test_steps_far_beyond_the_window_equal_one_pass_by_blocks(kind, kinds):
    model, texts = model_of(kind, attention_kinds=kinds), ids(3, 60)
    with torch.no_grad():
        state, first = start(model, None)
        rows = torch.cat([first.expand(3, 1), texts], 1)
        state, found = model.empty(3), []
        for part in rows.split([20, 1, 1, 7, 1, 31], dim=1):
            scores, state = model.step(part, state)
            found.append(scores)
        whole = model.head.logits(model(rows).hidden)
    torch.testing.assert_close(torch.cat(found, 1), whole, atol=1e-10, rtol=0)
