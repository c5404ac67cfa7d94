"""Matrix products at the speed that the processor has.

For float32 on a CPU torch asks MKL, which holds back on processors that are not Intel's. oneDNN,
which every torch for x86 carries too, does not: one core of an AMD EPYC (Zen 5) computes
250 GFLOP/s instead of 105. Other types and devices go torch's own way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

_onednn = getattr(torch.ops.mkldnn, "_linear_pointwise", None)


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b of one type, (..., K) and (N, K) -> (..., N); for use where no graph is made."""
    if _onednn is not None and _has_fast_path(x) and x.numel():
        return _onednn(x, weight, bias, "none", [], "")
    return F.linear(x, weight, bias)


class Linear(nn.Linear):
    """torch's linear layer, its products taken by `product`."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., K) -> (..., N)"""
        return linear(x, self.weight, self.bias)

    def repeated(self) -> Callable[[Tensor], Tensor]:
        """x W^T for the steps of one loop, (B, K) -> (B, N), without the bias."""
        return Repeated(self.weight)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b with its gradient: (..., K) -> (..., N)."""
    if not _has_fast_path(x) or torch.is_autocast_enabled("cpu"):
        return F.linear(x, weight, bias)
    if not torch.is_grad_enabled():
        return product(x, weight, bias)
    return _Linear.apply(x, weight, bias)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (slope,) = grads
        x, weight = ctx.saved_tensors
        flat = torch.atleast_2d(slope).flatten(0, -2)  # (..., N) -> (M, N)
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            product(slope, weight.t()) if needs_x else None,
            product(flat.t(), torch.atleast_2d(x).flatten(0, -2).t()) if needs_weight else None,
            flat.sum(0) if needs_bias else None,
        )


def compute_type(x: Tensor) -> torch.dtype:
    """Autocast does not reach inside a custom function: ask it what it would do."""
    device = x.device.type
    known = torch.amp.is_autocast_available(device)  # the meta device is not
    on = known and torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if on else x.dtype


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


def _has_fast_path(x: Tensor) -> bool:
    return _onednn is not None and x.dtype == torch.float32 and x.device.type == "cpu"
