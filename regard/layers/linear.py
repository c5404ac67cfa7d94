"""Matrix products at the speed that the processor has.

For float32 on a CPU torch asks MKL, which holds back on processors that are not Intel's. oneDNN,
which every torch for x86 carries too, does not: one core of an AMD EPYC (Zen 5) computes
250 GFLOP/s instead of 105. Other types and devices go torch's own way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils.weak import WeakTensorKeyDictionary

from regard.native import training as native

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
    if _is_narrowed(x, weight):
        x, narrow = x.to(torch.bfloat16), narrowed(weight)
        if not torch.is_grad_enabled():
            return F.linear(x, narrow, None if bias is None else narrowed(bias))
        return _Linear.apply(x, weight, bias, narrow)
    if not _has_fast_path(x) or torch.is_autocast_enabled("cpu"):
        return F.linear(x, weight, bias)
    if not torch.is_grad_enabled():
        return product(x, weight, bias)
    return _Linear.apply(x, weight, bias, weight.detach())


class _Linear(torch.autograd.Function):
    """`here` is the weight in the type of x; gradients of parameters have the parameters' type."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, here: Tensor) -> Tensor:
        ctx.save_for_backward(x, here)
        ctx.kind = weight.dtype
        return product(x, here, None if bias is None else narrowed(bias, x.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (slope,) = grads
        x, weight = ctx.saved_tensors
        flat = torch.atleast_2d(slope).flatten(0, -2)  # (..., N) -> (M, N)
        needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
        return (
            product(slope, weight.t()) if needs_x else None,
            outer(flat, torch.atleast_2d(x).flatten(0, -2), ctx.kind) if needs_weight else None,
            sum_rows(flat, ctx.kind) if needs_bias else None,
            None,
        )


def outer(slope: Tensor, x: Tensor, kind: torch.dtype) -> Tensor:
    """The gradient of a weight: (M, N) and (M, K) -> (N, K)."""
    return (product(slope.t(), x.t()) if _has_fast_path(x) else slope.t() @ x).to(kind)


def sum_rows(x: Tensor, kind: torch.dtype) -> Tensor:
    """(M, N) -> (N,), added up in float32 at least."""
    if kind == torch.float32 and native.fit(x):
        return native.sum_rows(x)
    return x.sum(0, dtype=kind)


# The narrow copies of parameters, each with the version of the values that it was made of.
Copies = WeakTensorKeyDictionary
_kept: Copies | None = None


@contextmanager
def keeping_narrow(copies: Copies) -> Iterator[None]:
    """Inside, the narrow copy of a parameter is made once, and again when the parameter changes.

    Values that are changed through `.data` leave no trace; so this is for those who do not.
    """
    global _kept
    before, _kept = _kept, copies
    try:
        yield
    finally:
        _kept = before


def narrowed(weight: Tensor, kind: torch.dtype = torch.bfloat16) -> Tensor:
    """A tensor in another type, without its graph; see `keeping_narrow`."""
    if weight.dtype == kind:
        return weight.detach()
    if _kept is None or not weight.is_leaf:
        return weight.detach().to(kind)
    version, copy = _kept.get(weight, (None, None))
    if version != weight._version:
        copy = weight.detach().to(kind)
        _kept[weight] = (weight._version, copy)
    return copy


def kept_copy(weight: Tensor) -> Tensor | None:
    """The narrow copy that is kept of a parameter, for whoever changes both."""
    version, copy = (None, None) if _kept is None else _kept.get(weight, (None, None))
    return copy if version == weight._version else None


def _is_narrowed(x: Tensor, weight: Tensor) -> bool:
    """Whether autocast on a CPU turns this product of float32 weights into one of bfloat16."""
    return (
        x.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and weight.dtype == torch.float32
        and x.dtype in (torch.float32, torch.bfloat16)
        and torch.is_autocast_enabled("cpu")
        and torch.get_autocast_dtype("cpu") == torch.bfloat16
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
    plain = x.dtype == torch.float32 and x.device.type == "cpu"
    return plain and _onednn is not None and not torch.compiler.is_compiling()
