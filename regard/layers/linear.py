"""Matrix products at the speed that the processor has, inside functions with their own gradient.

For float32, torch asks MKL, which holds back on processors that are not Intel's. oneDNN, which is
in every torch for x86 too, does not: on an AMD EPYC (Zen 5) it computes 2.3 times as fast.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

_onednn = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
_onednn_pack = getattr(torch.ops.mkldnn, "_reorder_linear_weight", None)


def product(x: Tensor, weight: Tensor) -> Tensor:
    """x W^T, (..., K) and (N, K) -> (..., N), of one type, without a gradient."""
    if _onednn is not None and _suits(x) and x.dtype == torch.float32:
        return _onednn(x, weight, None, "none", [], "")
    return F.linear(x, weight)


def compute_type(x: Tensor) -> torch.dtype:
    """Autocast does not reach inside a custom function: ask it what it would do."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


class Repeated:
    """A matrix that the steps of one loop multiply with: `Repeated(weight)(x)` is x W^T.

    The weight is converted once, and its gradient is one product over all steps at the end instead
    of a small one at each. Make a new one for each pass over a sequence.
    """

    def __init__(self, weight: Tensor):
        self.weight = weight.detach().to(compute_type(weight))
        self.kind = weight.dtype
        self.inputs: list[Tensor] = []
        self.slopes: list[Tensor] = []
        self.token = _Open.apply(weight, self)

    def __call__(self, x: Tensor) -> Tensor:
        """(B, K) -> (B, N)"""
        return _Use.apply(x, self.token, self)

    def gradient(self) -> Tensor | None:
        """That of the weight, from what the steps have left; None where no step was used."""
        if not self.slopes:
            return None
        slopes, inputs = torch.cat(self.slopes), torch.cat(self.inputs)  # (T * B, N), (T * B, K)
        self.slopes, self.inputs = [], []
        return product(slopes.t(), inputs.t()).to(self.kind)


class _Open(torch.autograd.Function):
    """Its backward runs when those of all steps have: their common input is its output."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, loop: Repeated) -> Tensor:
        ctx.loop = loop
        return weight.new_empty(0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None]:
        return ctx.loop.gradient(), None


class _Use(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, token: Tensor, loop: Repeated) -> Tensor:
        ctx.loop, ctx.kind = loop, x.dtype
        x = x.to(loop.weight.dtype)
        ctx.save_for_backward(x)
        return product(x, loop.weight).to(ctx.kind)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, None]:
        loop = ctx.loop
        slope = grads[0].to(loop.weight.dtype)
        if ctx.needs_input_grad[1]:
            loop.inputs.append(ctx.saved_tensors[0])
            loop.slopes.append(slope)
        if not ctx.needs_input_grad[0]:
            return None, None, None
        return product(slope, loop.weight.t()).to(ctx.kind), None, None


def _suits(x: Tensor) -> bool:
    return x.device.type == "cpu" and x.numel() > 0
