"""Linear layers, and low-rank adapters of them."""

from __future__ import annotations

import copy
import math
import platform
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from regard import ops
from regard.layers.dropout import Dropout
from regard.ops import autocast_dtype, linear, operation

# -------------------------------------------------------------------------- linear layers by oneDNN
#
# Linear layers, by oneDNN on x86.
#
# For float32 on an x86 CPU torch calls MKL, which is slow on processors that are not Intel's.
# oneDNN, which every torch for x86 also contains, is not: one core of an AMD EPYC (Zen 5) computes
# 250 GFLOP/s instead of 105. Other types, processors and devices use torch's own function: on
# AArch64 it calls the Arm Compute Library or SVE code, where `_linear_pointwise` is oneDNN's
# reference code.


_X86 = platform.machine() in ("x86_64", "AMD64")
_onednn: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if _X86 else None


@operation
def linear_no_grad(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b without autograd, all of one dtype: (..., d_in) and W (d_out, d_in) -> (...,
    d_out).
    """
    return F.linear(x, weight, bias)


class Linear(nn.Linear):
    """`nn.Linear` computed by `ops.linear`."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., d_in) -> (..., d_out)"""
        return ops.linear(x, self.weight, self.bias)

    def step_matmul(self) -> Callable[[Tensor], Tensor]:
        """x W^T without the bias, for the steps of one loop: (B, d_in) -> (B, d_out)."""
        return SharedWeightMatmul(self.weight)


# ----------------------------------------- implementations of linear_no_grad and ops.linear


def _takes_onednn(x: Tensor) -> bool:
    plain = x.dtype == torch.float32 and x.device.type == "cpu"
    return plain and _onednn is not None and not torch.compiler.is_compiling()


def _takes_onednn_product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    return _takes_onednn(x) and x.numel() > 0


def _onednn_product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    # oneDNN would read a strided bias as if it were contiguous.
    bias = None if bias is None else bias.contiguous()
    return _onednn(x, weight, bias, "none", [], "")


def _in_float32(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    return _takes_onednn(x) and not torch.is_autocast_enabled("cpu")


def _by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if not torch.is_grad_enabled():
        return linear_no_grad(x, weight, bias)
    return _Linear.apply(x, weight, bias)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return linear_no_grad(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        x, weight = ctx.saved_tensors
        flat = torch.atleast_2d(grad).flatten(0, -2)  # (..., d_out) -> (M, d_out)
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        inputs = torch.atleast_2d(x).flatten(0, -2)  # (..., d_in) -> (M, d_in)
        return (
            linear_no_grad(grad, weight.t()) if needs_x else None,
            weight_gradient(flat, inputs, weight.dtype) if needs_weight else None,
            flat.sum(0) if needs_bias else None,
        )


def weight_gradient(grad: Tensor, x: Tensor, dtype: torch.dtype) -> Tensor:
    """The gradient of a weight, (d_out, d_in), from the gradient of the outputs (M, d_out) and the
    inputs (M, d_in).
    """
    return linear_no_grad(grad.t(), x.t()).to(dtype)


ops.register(linear_no_grad, "onednn", _onednn_product, when=_takes_onednn_product)
ops.register(ops.linear, "onednn", _by_onednn, when=_in_float32)


# ------------------------------------------------------------------- one weight, many steps


class SharedWeightMatmul:
    """x W^T = `SharedWeightMatmul(weight)(x)` for all steps of one loop.

    The weight is cast once, and its gradient is one product over all steps instead of one for each
    step. Each pass over a sequence needs a new object.
    """

    def __init__(self, weight: Tensor):
        self.weight = weight.detach().to(autocast_dtype(weight))
        self.dtype = weight.dtype
        self.inputs: list[Tensor] = []
        self.grads: list[Tensor] = []
        self.token = _SharedWeight.apply(weight, self)

    def __call__(self, x: Tensor) -> Tensor:
        """(B, d_in) -> (B, d_out)"""
        return _SharedProduct.apply(x, self.token, self)

    def gradient(self) -> Tensor | None:
        """The gradient of the weight, (d_out, d_in), over the recorded steps; None: no step."""
        if not self.grads:
            return None
        # (T * B, d_out) and (T * B, d_in)
        grads, inputs = torch.cat(self.grads), torch.cat(self.inputs)
        self.grads, self.inputs = [], []
        return linear_no_grad(grads.t(), inputs.t()).to(self.dtype)


class _SharedWeight(torch.autograd.Function):
    """A common input of all steps, so that its backward pass runs after theirs."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, loop: SharedWeightMatmul) -> Tensor:
        ctx.loop = loop
        return weight.new_empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None]:
        return ctx.loop.gradient(), None


class _SharedProduct(torch.autograd.Function):
    """The product of one step, which records its input and gradient for `_SharedWeight`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, token: Tensor, loop: SharedWeightMatmul) -> Tensor:
        ctx.loop, ctx.dtype = loop, x.dtype
        x = x.to(loop.weight.dtype)
        ctx.save_for_backward(x)
        return linear_no_grad(x, loop.weight).to(ctx.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        loop = ctx.loop
        grad = grads[0].to(loop.weight.dtype)
        needs_x, needs_weight, _ = ctx.needs_input_grad
        if needs_weight:
            loop.inputs.append(ctx.saved_tensors[0])
            loop.grads.append(grad)
        return (
            linear_no_grad(grad, loop.weight.t()).to(ctx.dtype) if needs_x else None,
            # Empty; with it a second derivative of the weight raises an error, and is not zero.
            loop.token.detach() if needs_weight else None,
            None,
        )


# -------------------------------------------------------------------------------- low-rank adapters
#
# Low-rank adapters of linear layers (Hu et al. 2021, "LoRA", section 4.1).
#
# y = W x + b + (alpha / r) B A x
#
# W (d_out, d_in) and b (d_out,) are frozen. A (r, d_in) is random and B (d_out, r) zero at first,
# so training starts from the function of the layer. After training, (alpha / r) B A can be added to
# W: the result is a plain layer.


class LowRankUpdate(nn.Module):
    """(alpha / r) B A dropout(x), the update of N rows of a matrix W.

    Args:
        weight: W, (d_out, d_in), whose dtype and device A and B get.
        rows: the rows of W that are updated: the outputs of one projection.
        rank: r.
        scale: alpha / r.
        dropout: the dropout probability of the input, in training.
    """

    def __init__(
        self, weight: Tensor, rows: slice, rank: int, *, scale: float, dropout: float = 0.0
    ):
        super().__init__()
        self.rows, self.scale = rows, scale
        self.dropout = Dropout(dropout)
        self.A = nn.Parameter(weight.new_empty(rank, weight.size(1)))
        self.B = nn.Parameter(weight.new_zeros(rows.stop - rows.start, rank))
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))  # bound 1 / sqrt(d_in), as in `nn.Linear`

    @property
    def rank(self) -> int:
        """r."""
        return self.A.size(0)

    def forward(self, x: Tensor) -> Tensor:
        """(..., d_in) -> (..., N)"""
        return linear(linear(self.dropout(x), self.A) * self.scale, self.B)

    def delta(self) -> Tensor:
        """(alpha / r) B A, (N, d_in)."""
        return self.scale * (self.B @ self.A)

    def extra_repr(self) -> str:
        return f"rows {self.rows.start}:{self.rows.stop}, rank {self.rank}, scale {self.scale:g}"


class LowRankLinear(nn.Module):
    """A `Linear` with low-rank updates.

    A packed matrix holds the rows of several projections; each projection may have its own update,
    which is added to the outputs of its rows.

    Args:
        base: the layer.
        updates: the updates of its projections, by name; their rows do not overlap.
    """

    def __init__(self, base: Linear, updates: Mapping[str, LowRankUpdate]):
        super().__init__()
        self.base = base
        self.in_features, self.out_features = base.in_features, base.out_features
        ordered = sorted(updates.items(), key=lambda item: item[1].rows.start)
        self.updates = nn.ModuleDict(dict(ordered))

    def forward(self, x: Tensor) -> Tensor:
        """(..., d_in) -> (..., d_out)"""
        y, parts, end = self.base(x), [], 0
        for update in self.ordered_updates():
            rows = update.rows
            parts += [y[..., end : rows.start], y[..., rows] + update(x)]
            end = rows.stop
        return torch.cat([*parts, y[..., end:]], -1)

    def ordered_updates(self) -> list[LowRankUpdate]:
        """The updates in the order of their rows."""
        return list(self.updates.values())  # type: ignore[arg-type]

    @torch.no_grad()
    def merged(self) -> Linear:
        """A new plain layer with the matrix W + (alpha / r) B A."""
        merged = copy.deepcopy(self.base)
        for update in self.ordered_updates():
            merged.weight[update.rows] += update.delta()
        return merged

    def new_around(self, base: Linear) -> LowRankLinear:
        """Another layer of the same size with new updates of the same rows, ranks and options."""
        updates = {
            name: LowRankUpdate(
                base.weight,
                update.rows,
                update.rank,
                scale=update.scale,
                dropout=update.dropout.probability,
            )
            for name, update in zip(self.updates, self.ordered_updates(), strict=True)
        }
        return LowRankLinear(base, updates)
