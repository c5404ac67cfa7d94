"""The fast products against torch's plain ones, forward and backward."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from regard.layers.linear import Linear, SharedWeightMatmul, linear_no_grad
from regard.ops import linear


def tensors(*shapes, kind=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to(kind) for shape in shapes]


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("rows", [(1,), (7,), (3, 5), (0,), (2, 0), ()])
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


def product_in_float32_on(machine: str) -> str:
    """Of which function a product in float32 is the output, where the processor is of this kind."""
    code = (
        f"import platform; platform.machine = lambda: {machine!r}\n"
        "import torch; from regard.layers.linear import Linear\n"
        "print(Linear(6, 4)(torch.randn(3, 6)).grad_fn.name())"
    )
    return subprocess.check_output([sys.executable, "-c", code], text=True).strip()


def test_onednn_is_asked_for_on_x86_alone():
    if getattr(torch.ops.mkldnn, "_linear_pointwise", None) is not None:
        assert product_in_float32_on("x86_64") == "_LinearBackward"
    assert product_in_float32_on("aarch64") == "AddmmBackward0"


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
