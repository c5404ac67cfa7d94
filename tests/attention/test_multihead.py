"""Multi-head attention against torch's own module and against loops; rotary positions."""

from __future__ import annotations

import math

import pytest
import torch
from beartype import beartype
from captured_weights import captured
from jaxtyping import Float, jaxtyped
from torch import Tensor, nn

from regard.attention.attend import attend
from regard.attention.masks import causal, padding
from regard.attention.multihead import (
    CrossAttention,
    GroupedQueryAttention,
    PackedLinear,
    SelfAttention,
)
from regard.attention.pruning import prune_heads
from regard.errors import ConfigError
from regard.layers.positions import RotaryAngles, RotaryPositions, rotate
from regard.models.llama import Llama, LlamaConfig
from regard.ops import KeyMask


def torchs(ours: SelfAttention, d_model: int) -> nn.MultiheadAttention:
    """torch's module with our weights: it fuses query, key and value in our order."""
    theirs = nn.MultiheadAttention(d_model, ours.heads, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(ours.query_key_value.weight)
        theirs.in_proj_bias.copy_(ours.query_key_value.bias.normal_())
        theirs.out_proj.weight.copy_(ours.output.weight)
        theirs.out_proj.bias.copy_(ours.output.bias.normal_())
    return theirs


def test_self_attention_equals_that_of_torch():
    ours = SelfAttention(12, 3, kind="encoder")
    theirs = torchs(ours, 12)
    x, lengths = torch.randn(2, 5, 12), torch.tensor([5, 3])
    allowed = (causal() & padding(lengths)).resolve(5, 5, sequences=2)
    blocked = ~allowed.grid.expand(2, 3, 5, 5).flatten(0, 1)
    judge, weights = theirs(x, x, x, attn_mask=blocked, average_attn_weights=False)
    out, _, taken = captured(lambda: ours(x, allowed))
    torch.testing.assert_close(out, judge)
    torch.testing.assert_close(ours(x, allowed), judge)
    torch.testing.assert_close(taken[0], weights)


def test_cross_attention_equals_its_formula():
    ours = CrossAttention(6, 2)
    hidden, memory = torch.randn(2, 3, 6), torch.randn(2, 4, 6)
    out = ours(hidden, ours.read(memory))
    q = hidden @ ours.query.weight.T + ours.query.bias
    k, v = (memory @ ours.key_value.weight.T + ours.key_value.bias).split(6, -1)
    context = []
    for h in (slice(0, 3), slice(3, 6)):
        scores = q[..., h] @ k[..., h].transpose(1, 2) / math.sqrt(3)
        context.append(scores.softmax(-1) @ v[..., h])
    torch.testing.assert_close(out, torch.cat(context, -1) @ ours.output.weight.T)


def test_each_part_of_a_packed_linear_is_initialized_as_if_alone():
    torch.manual_seed(0)
    bound = math.sqrt(6 / (64 + 64))
    for part in PackedLinear(64, 64, parts=3).weight.chunk(3):
        assert part.abs().max() <= bound
        assert part.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)


@pytest.mark.parametrize("heads", [0, 3, -2])
def test_heads_that_do_not_divide_d_model_raise_an_error(heads):
    with pytest.raises(ValueError, match=f"`heads` must divide `d_model`, but they are {heads}"):
        SelfAttention(8, heads, kind="encoder")


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


def test_heads_that_share_keys_are_not_pruned():
    with pytest.raises(ConfigError, match="Llama cannot be pruned"):
        prune_heads(llama(), {1: [1]})


@jaxtyped(typechecker=beartype)
def checked_attend(
    query: Float[Tensor, "*lead T K"], key: Float[Tensor, "*lead S K"],
    value: Float[Tensor, "*lead S W"],
) -> Float[Tensor, "*lead T W"]:  # fmt: skip
    return attend(query, key, value)


@jaxtyped(typechecker=beartype)
def checked_self(ours: SelfAttention, hidden: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
    return ours(hidden)


def test_attention_functions_have_the_documented_shapes():
    checked_attend(torch.randn(2, 3, 4, 6), torch.randn(2, 3, 7, 6), torch.randn(2, 3, 7, 3))
    checked_self(SelfAttention(8, 2, kind="encoder"), torch.randn(3, 5, 8))
