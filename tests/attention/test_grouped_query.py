"""Rotary positions and grouped-query attention against their formulas in float64."""

from __future__ import annotations

import math

import pytest
import torch

import regard
from regard.attention.cache import KeyValueCache
from regard.attention.multihead import GroupedQueryAttention
from regard.attention.pruning import prune_heads
from regard.data.batches import Sequences
from regard.errors import ConfigError
from regard.layers.positions import RotaryAngles, RotaryPositions, rotate
from regard.models.llama import Llama, LlamaConfig
from regard.ops import KeyMask


def complex_rotation(x, positions, theta):
    """Eq. 34: pair i as a complex number, times e^(i position theta^(-2i/K))."""
    half = x.size(-1) // 2
    pairs = torch.complex(x[..., :half].double(), x[..., half:].double())
    angles = positions[:, None].double() * theta ** (-torch.arange(half).double() * 2 / (2 * half))
    turned = pairs * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([turned.real, turned.imag], -1)


@pytest.mark.parametrize("width, theta", [(2, 10.0), (6, 10_000.0), (64, 500_000.0)])
def test_rotation_is_a_product_of_complex_numbers_to_position_10_000(width, theta):
    table, positions = RotaryPositions(width, RotaryAngles(theta)), torch.arange(9_980, 10_000)
    x = torch.randn(2, 3, 20, width, dtype=torch.float64)
    found = rotate(x, table(20, start=9_980))
    torch.testing.assert_close(found, complex_rotation(x, positions, theta), atol=1e-6, rtol=0)


def test_scores_depend_on_distances_alone():
    table = RotaryPositions(8, RotaryAngles(100.0))
    query, key = torch.randn(2, 1, 1, 5, 8, dtype=torch.float64).unbind()
    near = rotate(query, table(5)) @ rotate(key, table(5)).mT
    far = rotate(query, table(5, 700)) @ rotate(key, table(5, 700)).mT
    torch.testing.assert_close(near, far, atol=1e-5, rtol=0)


def test_llama3_keeps_fast_pairs_and_slows_down_slow_ones():
    angles = RotaryAngles(500_000.0, "llama3", 8.0, 1.0, 4.0, 8192)
    plain, found = RotaryAngles(500_000.0).frequencies(128), angles.frequencies(128)
    for one, other in zip(plain.tolist(), found.tolist(), strict=True):
        wavelength = 2 * math.pi / one
        if wavelength < 8192 / 4:
            expected = one
        elif wavelength > 8192 / 1:
            expected = one / 8
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            expected = (1 - smooth) * one / 8 + smooth * one
        assert other == pytest.approx(expected, rel=1e-12)
    assert RotaryAngles(10.0, "linear", 4.0).frequencies(2).tolist() == [0.25]


def naive(part: GroupedQueryAttention, hidden, theta):
    """Loops over heads, queries and keys in float64."""
    count, width = hidden.size(1), part.head_dim
    positions, sharing = torch.arange(count), part.heads // part.key_value_heads
    query = part.query(hidden)[0].unflatten(-1, (part.heads, width))
    both = part.key_value(hidden)[0].unflatten(-1, (2, part.key_value_heads, width))
    rows = []
    for t in range(count):
        context = []
        for head in range(part.heads):
            q = complex_rotation(query[:, head], positions, theta)[t]
            keys = complex_rotation(both[:, 0, head // sharing], positions, theta)[: t + 1]
            weights = torch.softmax(keys @ q / math.sqrt(width), 0)
            context.append(weights @ both[: t + 1, 1, head // sharing])
        rows.append(torch.cat(context))
    return part.output(torch.stack(rows))[None]


@pytest.mark.parametrize("heads, shared, width", [(4, 4, None), (6, 2, 4), (3, 1, 2)])
def test_attention_and_its_gradients_equal_loops_in_float64(heads, shared, width):
    torch.manual_seed(0)
    part = GroupedQueryAttention(
        24, heads, shared, kind="decoder", head_dim=width, projection_bias=True
    ).double()
    table = RotaryPositions(part.head_dim, RotaryAngles(30.0)).double()
    table.table = RotaryAngles(30.0)(torch.arange(9), part.head_dim).double()
    hidden = torch.randn(1, 7, 24, dtype=torch.float64, requires_grad=True)
    found = part(hidden, KeyMask.causal(7), angles=table(7))
    wanted = naive(part, hidden, 30.0)
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=0)
    ours = torch.autograd.grad(found.square().sum(), [hidden, *part.parameters()])
    theirs = torch.autograd.grad(wanted.square().sum(), [hidden, *part.parameters()])
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-5)


def llama(**changes):
    torch.manual_seed(0)
    options = dict(d_model=12, d_ff=16, heads=6, key_value_heads=2, layers=2, eos=2)
    return Llama(LlamaConfig(20, **(options | changes))).eval()


def test_the_cache_holds_shared_heads_alone():
    model = llama()
    state = model.prefill(torch.randint(3, 20, (2, 5)), model.empty(2))
    assert isinstance(state, KeyValueCache)
    assert state.keys.shape[:3] == (2, 2, 2)  # rows, layers, heads


def test_weights_of_every_head_of_queries_are_captured():
    model, texts = llama(), Sequences.of([[3, 4, 5], [6]], 0)
    with torch.no_grad(), regard.look(model) as seen:
        shown = model.encode(texts)
    torch.testing.assert_close(shown, model.encode(texts), atol=1e-5, rtol=0)
    (one, other) = seen.passes[-1].attentions.values()
    for attention in (one, other):
        (weights,) = attention.parts
        assert weights.shape == (2, 6, 3, 3)
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 6, 3), atol=1e-5, rtol=0)


def test_heads_that_share_keys_are_not_pruned():
    with pytest.raises(ConfigError, match="Llama cannot be pruned"):
        prune_heads(llama(), {1: [1]})
