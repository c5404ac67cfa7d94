"""The compiled kernels as implementations of the operations in `regard.ops`, gradients included.

Each has a condition on the arguments, for most of them `training.fit`: type, device and layout.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard import ops
from regard.kernels import products, program, tensors, training
from regard.kernels.compiled_models import CompiledGenerator, compiled_encoder
from regard.kernels.tensors import is_cpu_strided
from regard.kernels.training import AttentionCall
from regard.layers import quantized
from regard.layers.linear import linear_no_grad, weight_gradient
from regard.models import wrappers
from regard.ops import (
    ALL_KEYS,
    NO_DROP,
    Drop,
    KeyMask,
    RecurrentWeights,
    autocast_dtype,
    autocasts_to_bfloat16,
    cast,
)

# ------------------------------------------------------------------------------ attention


def _attends(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: KeyMask = ALL_KEYS,
    bias: Tensor | None = None,
    scale: float | None = None,
    drop: Drop = NO_DROP,
) -> bool:
    return bias is None and _reads(mask) and training.attends(query, key, value)


def _reads(mask: KeyMask) -> bool:
    """Whether the kernels read masks of this kind: blocks are others' work, and sequences without
    padding have no window.
    """
    return mask.sparse is None and (mask.unpadded is None or mask.unpadded.window is None)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: KeyMask = ALL_KEYS,
    bias: Tensor | None = None,
    scale: float | None = None,
    drop: Drop = NO_DROP,
) -> Tensor:
    return _Attention.apply(query, key, value, _attending(query, key, mask, scale, drop))


def _attends_packed(
    projected: Tensor, mask: KeyMask = ALL_KEYS, scale: float | None = None, drop: Drop = NO_DROP
) -> bool:
    return _reads(mask) and training.attends(*ops.unstack_qkv(projected))


def _packed_attention(
    projected: Tensor, mask: KeyMask = ALL_KEYS, scale: float | None = None, drop: Drop = NO_DROP
) -> Tensor:
    query, key, _ = ops.unstack_qkv(projected)
    return _PackedAttention.apply(projected, _attending(query, key, mask, scale, drop))


def _attending(
    query: Tensor, key: Tensor, mask: KeyMask, scale: float | None, drop: Drop
) -> AttentionCall:
    """The arguments of one call for heads (B, H, T, K) and (B, H, S, K)."""
    scale = query.size(-1) ** -0.5 if scale is None else scale
    if (rows := mask.unpadded) is not None:
        return AttentionCall(None, rows.causal, scale, drop, (rows.queries, rows.keys))
    grid = None if mask.is_causal else mask.grid
    if grid is not None:
        grid = grid.expand(*query.shape[:3], key.size(2))
        if grid.stride(-1) != 1:
            grid = grid.contiguous()
    return AttentionCall(grid, mask.is_causal, scale, drop)


class _Attention(torch.autograd.Function):
    """Queries (B, H, T, K), keys and values (B, H, S, K) -> (B, H, T, K)."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        context, norms = training.attend(query, key, value, call)
        ctx.save_for_backward(query, key, value, context, norms)
        ctx.call = call
        return context

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        *heads, norms = ctx.saved_tensors
        gradients = [torch.empty_like(x.transpose(1, 2)).transpose(1, 2) for x in heads[:3]]
        training.attend_back(grads[0], heads, norms, ctx.call, gradients)
        return *gradients, None


class _PackedAttention(torch.autograd.Function):
    """The same with one gradient: (B, T, 3, H, K) -> (B, H, T, K)."""

    @staticmethod
    def forward(ctx: Any, projected: Tensor, call: AttentionCall) -> Tensor:
        context, norms = training.attend(*ops.unstack_qkv(projected), call)
        ctx.save_for_backward(projected, context, norms)
        ctx.call = call
        return context

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        projected, context, norms = ctx.saved_tensors
        gradient = torch.empty_like(projected)
        heads = (*ops.unstack_qkv(projected), context)
        training.attend_back(grads[0], heads, norms, ctx.call, ops.unstack_qkv(gradient))
        return gradient, None


# ----------------------------------------------------------------------- dropout and norm


def _drops(x: Tensor, drop: Drop) -> bool:
    return training.fit(x)


class _Dropout(torch.autograd.Function):
    """Keeps no mask for the backward pass, which draws again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, drop: Drop) -> Tensor:
        ctx.drop = drop
        return training.drop(x, *drop)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ops.dropout(grads[0], ctx.drop), None


def _dropout(x: Tensor, drop: Drop) -> Tensor:
    return _Dropout.apply(x, drop) if drop.threshold else x


def _adds(
    hidden: Tensor, update: Tensor, weight: Tensor, bias: Tensor, eps: float, drop: Drop = NO_DROP
) -> bool:
    return (
        torch.is_grad_enabled()
        and all(is_cpu_strided(tensor) and tensor.is_contiguous() for tensor in (weight, bias))
        and hidden.shape == update.shape
        and training.fit(hidden)
        and training.fit(update)
        and autocast_dtype(update) in training.NUMBERS
    )


def _add_norm(
    hidden: Tensor, update: Tensor, weight: Tensor, bias: Tensor, eps: float, drop: Drop = NO_DROP
) -> Tensor:
    """What comes out has autocast's type."""
    dtype = autocast_dtype(update)
    hidden, update = hidden.to(dtype).contiguous(), update.to(dtype).contiguous()
    return _AddNorm.apply(hidden, update, weight, bias, eps, drop)


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        update: Tensor,
        weight: Tensor,
        bias: Tensor,
        eps: float,
        drop: Drop,
    ) -> Tensor:
        out, stats = training.add_norm(hidden, update, weight, bias, eps, drop)
        ctx.save_for_backward(hidden, update, weight, bias, stats)
        ctx.eps, ctx.drop = eps, drop
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        gradients = training.add_norm_back(grads[0], ctx.saved_tensors, ctx.eps, ctx.drop)
        return *gradients, None, None


# --------------------------------------------------------------- activations, sums, losses


def _has_loss(logits: Tensor, targets: Tensor, smoothing: float = 0.0) -> bool:
    return training.fit(logits) and logits.is_contiguous() and not logits.requires_grad


def _cross_entropy_gradient(
    logits: Tensor, targets: Tensor, smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The gradient takes the memory of the logits."""
    return training.cross_entropy(logits, targets, smoothing).sum(), logits


def _ranks(logits: Tensor) -> bool:
    return training.fit(logits) and logits.dtype == torch.float32 and not logits.requires_grad


def _ranks_targets(logits: Tensor, targets: Tensor) -> bool:
    return _ranks(logits)


def _ranks_several(logits: Tensor, count: int) -> bool:
    return _ranks(logits) and count <= logits.size(-1)


# ------------------------------------------------------------------------------------ memory


def _on_cpu(shape: Sequence[int], like: Tensor) -> bool:
    return like.is_cpu


# ------------------------------------------------------------------------- recurrent layers


def _reads_sequence(x: Tensor, hidden: Tensor, cell: Tensor, weights: RecurrentWeights) -> bool:
    """Whether autocast computes in bfloat16, and everything is float32 on the CPU."""
    tensors = x, hidden, cell, weights.input, weights.recurrent
    plain = all(tensor.dtype == torch.float32 and tensor.device.type == "cpu" for tensor in tensors)
    supported = x.size(1) > 1 and weights.recurrent_bias is None
    return plain and supported and autocasts_to_bfloat16(x) and training.lstm_available()


def _lstm(
    x: Tensor, hidden: Tensor, cell: Tensor, weights: RecurrentWeights
) -> tuple[Tensor, Tensor, Tensor]:
    bias = weights.input_bias
    bias = torch.zeros_like(weights.input[:, 0]) if bias is None else bias
    learning = torch.is_grad_enabled()  # inside the function it is always off
    return _LSTM.apply(x, hidden, cell, weights.input, weights.recurrent, bias, learning)


class _LSTM(torch.autograd.Function):
    """One product for the inputs of all steps, then the compiled chain of steps."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        hidden: Tensor,
        cell: Tensor,
        weight: Tensor,
        recurrent: Tensor,
        bias: Tensor,
        learning: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        x, weight = x.to(torch.bfloat16), cast(weight, torch.bfloat16)
        output = training.lstm_forward(
            recurrent, linear_no_grad(x, weight), bias, hidden, cell, keep=learning
        )
        if learning:
            ctx.save_for_backward(x, hidden, cell, weight, recurrent, *vars(output).values())
        return output.hiddens, output.hiddens[:, -1].clone(), output.cells[:, -1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, hidden, cell, weight, recurrent, *saved = ctx.saved_tensors
        needs_x, needs_hidden, _, needs_weight, needs_recurrent, *_ = ctx.needs_input_grad
        output = training.LSTMOutput(*saved)
        d_hiddens, d_hidden, d_cell = grads
        d_gates, d_bias, d_first, d_cell = training.lstm_backward(
            recurrent, output, cell, (d_hiddens, d_hidden, d_cell), first=needs_hidden
        )
        flat = d_gates.flatten(0, 1)  # (B * T, 4D)
        before = torch.cat([hidden[:, None], output.hiddens[:, :-1]], 1).to(x.dtype)
        real = torch.float32
        return (
            linear_no_grad(d_gates, weight.t()).float() if needs_x else None,
            *(d_first, d_cell),
            weight_gradient(flat, x.flatten(0, 1), real) if needs_weight else None,
            weight_gradient(flat, before.flatten(0, 1), real) if needs_recurrent else None,
            *(d_bias, None),
        )


def register() -> None:
    """Register all of them."""
    ops.register(ops.attention, "compiled", _attention, when=_attends)
    ops.register(ops.qkv_attention, "compiled", _packed_attention, when=_attends_packed)
    ops.register(ops.dropout, "compiled", _dropout, when=_drops)
    ops.register(ops.add_norm, "compiled", _add_norm, when=_adds)
    ops.register(ops.cross_entropy_gradient, "compiled", _cross_entropy_gradient, when=_has_loss)
    likelihood = products.negative_log_likelihood
    ops.register(ops.negative_log_likelihood, "compiled", likelihood, when=_ranks_targets)
    ops.register(ops.topk, "compiled", products.topk, when=_ranks_several)
    linear = quantized.quantized_linear
    ops.register(linear, "compiled", products.quantized_linear, when=products.fits)
    recur = products.quantized_recurrence
    ops.register(wrappers.generator, "compiled", CompiledGenerator, when=program.fits)
    ops.register(wrappers.encoder, "compiled", compiled_encoder, when=program.fits)
    ops.register(quantized.quantized_recurrence, "compiled", recur, when=products.fits_recurrence)
    ops.register(ops.lstm, "compiled", _lstm, when=_reads_sequence)
    ops.register(ops.adam, "compiled", training.adam, when=training.adam_fits)
    ops.register(ops.zeros, "compiled", tensors.zeros, when=_on_cpu)
    ops.register(ops.large_empty, "compiled", tensors.large_empty)
