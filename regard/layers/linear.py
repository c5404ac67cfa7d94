"""Linear layers, by oneDNN on x86.

For float32 on an x86 CPU torch calls MKL, which is slow on processors that are not Intel's. oneDNN,
which every torch for x86 also contains, is not: one core of an AMD EPYC (Zen 5) computes
250 GFLOP/s instead of 105. Other types, processors and devices use torch's own function: on AArch64
it calls the Arm Compute Library or SVE code, where `_linear_pointwise` is oneDNN's reference code.
"""

import platform
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from regard import ops
from regard.ops import autocast_dtype, autocasts_to_bfloat16, cast, operation

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
    return _Linear.apply(x, weight, bias, weight.detach())


def _under_autocast(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    """Whether autocast on a CPU turns this product of float32 weights into one of bfloat16."""
    return (
        weight.dtype == torch.float32
        and x.dtype in (torch.float32, torch.bfloat16)
        and not torch.compiler.is_compiling()
        and autocasts_to_bfloat16(x)
    )


def _in_bfloat16(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """With the copies of `ops.weight_copies`, and gradients in the type of the parameters."""
    x, copy = x.to(torch.bfloat16), cast(weight, torch.bfloat16)
    if not torch.is_grad_enabled():
        return F.linear(x, copy, None if bias is None else cast(bias, torch.bfloat16))
    return _Linear.apply(x, weight, bias, copy)


class _Linear(torch.autograd.Function):
    """`copy` is the weight in the dtype of x; gradients have the dtype of their parameters."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, copy: Tensor) -> Tensor:
        ctx.save_for_backward(x, copy)
        ctx.dtype = weight.dtype
        return linear_no_grad(x, copy, None if bias is None else cast(bias, x.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        x, weight = ctx.saved_tensors
        flat = torch.atleast_2d(grad).flatten(0, -2)  # (..., d_out) -> (M, d_out)
        needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
        inputs = torch.atleast_2d(x).flatten(0, -2)  # (..., d_in) -> (M, d_in)
        return (
            linear_no_grad(grad, weight.t()) if needs_x else None,
            weight_gradient(flat, inputs, ctx.dtype) if needs_weight else None,
            flat.sum(0, dtype=ctx.dtype) if needs_bias else None,
            None,
        )


def weight_gradient(grad: Tensor, x: Tensor, dtype: torch.dtype) -> Tensor:
    """The gradient of a weight, (d_out, d_in), from the gradient of the outputs (M, d_out) and the
    inputs (M, d_in).
    """
    return linear_no_grad(grad.t(), x.t()).to(dtype)


ops.register(linear_no_grad, "onednn", _onednn_product, when=_takes_onednn_product)
ops.register(ops.linear, "onednn", _by_onednn, when=_in_float32)
ops.register(ops.linear, "bfloat16", _in_bfloat16, when=_under_autocast)


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
