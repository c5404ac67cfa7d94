"""The fast products against torch's plain ones, and low-rank updates against their equation."""

from __future__ import annotations

import math
import platform
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from regard.attention.multihead import PackedLinear
from regard.layers.linear import (
    Linear,
    LowRankLinear,
    LowRankUpdate,
    SharedWeightMatmul,
    linear_no_grad,
)
from regard.ops import linear


def tensors(*shapes, kind=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to(kind) for shape in shapes]


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("rows", [(3, 5), (2, 0), ()])
def test_linear_no_grad_equals_torch(kind, rows):
    x, weight, bias = tensors((*rows, 6), (4, 6), (4,), kind=kind)
    expected = F.linear(x.double(), weight.double(), bias.double())
    close = dict(atol=2e-2, rtol=2e-2) if kind == torch.bfloat16 else {}
    torch.testing.assert_close(linear_no_grad(x, weight, bias), expected.to(kind), **close)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [(2, 3), (), (0,)])
def test_the_linear_layer_and_its_gradients_equal_torch(rows, bias):
    torch.manual_seed(0)
    ours, theirs = Linear(6, 4, bias=bias), nn.Linear(6, 4, bias=bias)
    theirs.load_state_dict(ours.state_dict())
    (x,) = tensors((*rows, 6))
    x, y = (x.clone().requires_grad_() for _ in range(2))
    torch.testing.assert_close(ours(x), theirs(y))
    for found, at in ((ours, x), (theirs, y)):
        found(at).square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad)


PRODUCT_ON_ARM = """
import platform
platform.machine = lambda: "aarch64"
import torch
from regard.layers.linear import Linear
print(Linear(6, 4)(torch.randn(3, 6)).grad_fn.name())
"""


def test_onednn_is_asked_for_on_x86_alone():
    if platform.machine() == "x86_64" and hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        assert Linear(6, 4)(torch.randn(3, 6)).grad_fn.name() == "_LinearBackward"
    there = subprocess.check_output([sys.executable, "-c", PRODUCT_ON_ARM], text=True)
    assert there.strip() == "AddmmBackward0"


def test_only_required_gradients_are_computed():
    x, weight, bias = tensors((3, 6), (4, 6), (4,))
    for chosen in (x, weight, bias):
        chosen.requires_grad_()
        linear(x, weight, bias).sum().backward()
        assert [t.grad is not None for t in (x, weight, bias)].count(True) == 1
        assert chosen.grad is not None
        chosen.requires_grad_(False).grad = None


def test_autocast_decides_the_type_of_the_output():
    (x,) = tensors((3, 6))
    with torch.autocast("cpu", torch.bfloat16):
        assert Linear(6, 4)(x).dtype == torch.bfloat16


def test_a_repeated_product_has_no_second_derivative():
    weight, x = (torch.randn(4, 4, requires_grad=True) for _ in range(2))
    loop = SharedWeightMatmul(weight)
    found = loop(loop(x)).square().sum()
    gradients = torch.autograd.grad(found, (x, weight), create_graph=True)
    for gradient in gradients:
        with pytest.raises(RuntimeError, match="once_differentiable"):
            gradient.sum().backward()


SAME = dict(atol=1e-6, rtol=1e-5)


def adapted(base: Linear, *rows: slice, dropout: float = 0.0) -> LowRankLinear:
    """With updates that are not zero."""
    updates = {
        str(i): LowRankUpdate(base.weight, part, rank=2, scale=1.5, dropout=dropout)
        for i, part in enumerate(rows)
    }
    for update in updates.values():
        torch.nn.init.normal_(update.B)
    return LowRankLinear(base, updates)


def test_an_update_starts_at_zero_and_within_the_bound_of_a_linear_layer():
    torch.manual_seed(0)
    update = LowRankUpdate(torch.empty(300, 100), slice(0, 300), rank=50, scale=2.0)
    assert not update.B.any() and not update.delta().any()
    start = update.A.detach()
    assert 0.099 < start.max() <= 1 / math.sqrt(100)
    assert start.std().item() == pytest.approx(0.1 / math.sqrt(3), rel=0.05)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "rows", [(slice(0, 12),), (slice(8, 12),), (slice(8, 12), slice(0, 4)), (slice(4, 8),)], ids=str
)
def test_outputs_are_those_of_the_changed_matrix(rows, bias):
    torch.manual_seed(0)
    base = PackedLinear(5, 4, parts=3, bias=bias)
    layer, x = adapted(base, *rows), torch.randn(2, 3, 5)
    weight = base.weight.detach().clone()
    for part, update in zip(
        sorted(rows, key=lambda one: one.start), layer.ordered_updates(), strict=True
    ):
        weight[part] += 1.5 * (update.B @ update.A).detach()
    expected = F.linear(x, weight, base.bias)
    torch.testing.assert_close(layer(x), expected, **SAME)
    plain = layer.merged()
    assert type(plain) is PackedLinear and plain.parts == 3
    torch.testing.assert_close(plain(x), expected, **SAME)
    assert not torch.equal(plain.weight, base.weight)  # the base keeps its own


def test_dropout_zeroes_inputs_of_the_update_alone():
    """Outputs of one input are the base's, or the update of the scaled input added to them."""
    torch.manual_seed(0)
    base = Linear(1, 3)
    layer, x = adapted(base, slice(0, 3), dropout=0.25), torch.ones(400, 1)
    full = F.linear(x, layer.ordered_updates()[0].delta()) / 0.75
    added = layer.train()(x) - base(x)
    kept = added.abs().sum(1) > 1e-6
    torch.testing.assert_close(added[kept], full[kept], atol=1e-5, rtol=1e-4)
    assert 0.65 < kept.float().mean() < 0.85
    torch.testing.assert_close(layer.eval()(x) - base(x), full * 0.75, atol=1e-5, rtol=1e-4)
