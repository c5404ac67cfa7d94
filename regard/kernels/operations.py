"""The compiled kernels as implementations of the operations in `regard.ops`, gradients included.

Each has a condition on the arguments, for most of them `fit`: type, device and layout. The calls of
the kernels stand first (cpp/training.h and lstm.h): nothing in them has a gradient of its
own, and the autograd functions behind them call them in both passes.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard import ops
from regard.errors import RegardError
from regard.kernels import build, products, program, signatures, tensors
from regard.kernels.compiled_models import CompiledGenerator, compiled_encoder
from regard.kernels.tensors import (
    address,
    argument_error,
    checked_shape,
    contiguous,
    is_cpu_strided,
    raw_address,
    row_strided_address,
)
from regard.layers import quantized
from regard.layers.linear import linear_no_grad, weight_gradient
from regard.models import wrappers
from regard.ops import (
    ALL_KEYS,
    NO_DROP,
    Drop,
    KeyMask,
    RecurrentWeights,
    SequenceOffsets,
    autocast_dtype,
    autocasts_to_bfloat16,
    cast,
)

NUMBERS = {torch.float32: 0, torch.bfloat16: 1}
GROUP_ROWS = 64  # rows of one partial sum, as in training.h
NUMBERS_PER_THREAD = 1 << 14  # from which a further thread pays
PRODUCTS_PER_THREAD = 1 << 19  # multiplications from which one pays


def fit(*tensors: Tensor) -> bool:
    """Whether there are kernels for these: on the CPU, of one type that they know, not empty.

    Not inside what torch compiles, which cannot see through them.
    """
    first = tensors[0]
    if not first.is_cpu or torch.compiler.is_compiling():
        return False
    same = all(is_cpu_strided(t, first.dtype) for t in tensors)
    return same and first.dtype in NUMBERS and first.numel() > 0 and build.available()


def dropped(x: Tensor, seed: int, threshold: int) -> Tensor:
    """Numbers dropped and scaled as `regard.layers.dropout` says: (..., D) -> (..., D)."""
    x = contiguous(x)
    out = torch.empty_like(x)
    width = x.size(-1) if x.dim() else 1
    if x.numel():
        addresses = address("x", x, x.dtype, x.shape), raw_address(out)
        job = signatures.DroppingStruct(
            *addresses, x.numel() // width, width, _drop(seed, threshold)
        )
        _run("regard_drop", x, job)
    return out


def _drop(seed: int, threshold: int) -> signatures.DropStruct:
    if not 0 <= threshold < 1 << 15:
        raise RegardError(f"`threshold` must be from 0 to 32767, but is {threshold}.")
    return signatures.DropStruct(seed, threshold)


def add_norm(
    hidden: Tensor, update: Tensor, gain: Tensor, bias: Tensor, eps: float, seed_threshold: Any
) -> tuple[Tensor, Tensor]:
    """norm(hidden + drop(update)) of (..., D), and for each row what `add_norm_back` wants of it.

    gain and bias (D,) are float32.
    """
    width = checked_shape("hidden", hidden, hidden.dim())[-1]
    hidden, update = contiguous(hidden), contiguous(update)
    out = torch.empty_like(hidden)
    stats = torch.empty(hidden.numel() // width, 2)
    job = _norm_job((hidden, update, gain, bias, stats), eps, seed_threshold)
    job.out = raw_address(out)
    _run("regard_add_norm", hidden, job)
    return out, stats


def add_norm_back(
    grad: Tensor, inputs: Sequence[Tensor], eps: float, seed_threshold: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of hidden, update, gain and bias; `inputs` are these four and the statistics."""
    hidden, update, gain, bias, stats = inputs
    width = checked_shape("hidden", hidden, hidden.dim())[-1]
    hidden, update, grad = map(contiguous, (hidden, update, grad))
    dropping = bool(seed_threshold[1])
    out, kind, shape = torch.empty_like(hidden), hidden.dtype, hidden.shape
    # Where nothing is dropped, the two gradients are one.
    update_grad = torch.empty_like(update) if dropping else out
    parts = -(-hidden.numel() // width // GROUP_ROWS)
    sums, parameter_grads = torch.empty(parts, 2, width), torch.empty(2, width)
    job = _norm_job((hidden, update, gain, bias, stats), eps, seed_threshold)
    job.out, job.grad = raw_address(out), address("grad", grad, kind, shape)
    if dropping:
        job.update_grad = raw_address(update_grad)
    job.sums, job.parameters = raw_address(sums), raw_address(parameter_grads)
    _run("regard_add_norm_back", hidden, job)
    return out, update_grad, parameter_grads[0], parameter_grads[1]


def _norm_job(
    inputs: Sequence[Tensor], eps: float, seed_threshold: Any
) -> signatures.AddNormStruct:
    hidden, update, gain, bias, stats = inputs
    shape, real = hidden.shape, torch.float32
    width = shape[-1]
    rows = hidden.numel() // width
    return signatures.AddNormStruct(
        address("hidden", hidden, hidden.dtype, shape),
        address("update", update, hidden.dtype, shape),
        *(address("gain", gain, real, (width,)), address("bias", bias, real, (width,))),
        *(address("stats", stats, real, (rows, 2)), rows, width, _drop(*seed_threshold), eps, 0.0),
    )


def cross_entropy(logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """The losses (n,) of logits (n, V), in float64; the gradient overwrites the logits.

    Raises:
        IndexError: there is no such target.
        RegardError: there is not one target, int64, for each row of logits.
    """
    rows, vocab_size = checked_shape("logits", logits)
    if targets.dtype is torch.int64 and targets.is_cpu:
        targets = contiguous(targets)
    losses = torch.empty(rows, dtype=torch.float64)
    job = signatures.EntropyStruct(
        address("logits", logits, logits.dtype, (rows, vocab_size)),
        address("targets", targets, torch.int64, (rows,)),
        *(raw_address(losses), rows, vocab_size, smoothing),
    )
    if _run("regard_entropy", logits, job):
        low, high = map(int, targets.aminmax())
        raise IndexError(f"targets are {low} to {high}, but must be 0 to {vocab_size - 1}")
    return losses


def attends(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether `attend` takes these heads, (B, H, T, K) and (B, H, S, K): bfloat16 on the CPU."""
    same = key.shape == value.shape and query.shape[:2] == key.shape[:2]
    side_by_side = all(x.stride(-1) == 1 for x in (query, key, value))
    return (
        query.dtype == torch.bfloat16
        and fit(query, key, value)
        and query.dim() == 4
        and same
        and side_by_side
        and query.size(-1) == key.size(-1)
        and key.numel() > 0
        and bool(build.library().regard_attention_is_fast())
    )


@dataclass(frozen=True)
class AttentionCall:
    """The arguments of attention beside heads: `mask` (B, H, T, S) boolean, by expansion.

    offsets: of queries and of keys, for sequences without padding (1, H, N, K).
    """

    mask: Tensor | None
    causal: bool
    scale: float
    drop: Drop
    offsets: tuple[SequenceOffsets, SequenceOffsets] | None = None


def attend(query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> tuple[Tensor, Tensor]:
    """The context (B, H, T, K) and the logarithms of the softmax's sums, for `attend_back`."""
    rows, heads, queries, width = _head_sizes(query, key)[:4]
    context = query.new_empty(rows, queries, heads, width).transpose(1, 2)
    norms = torch.empty(rows, heads, queries)
    job = _attention_job((query, key, value, context), norms, call)
    _start("regard_attend", query, job)
    return context, norms


def attend_back(
    grad: Tensor,
    heads: Sequence[Tensor],
    norms: Tensor,
    call: AttentionCall,
    out: Sequence[Tensor],
) -> None:
    """Write the gradients of query, key and value into `out`; `heads` are these and the context."""
    grad = grad if grad.stride(-1) == 1 else grad.contiguous()
    job = _attention_job(heads, norms, call)
    job.context_grad = _heads("grad", grad, heads[0].shape)
    for name, x, like in zip(("query", "key", "value"), out, heads, strict=False):
        if 0 in x.stride():
            raise RegardError(f"The gradient of `{name}` must have memory for each of its numbers.")
        setattr(job, f"{name}_grad", _heads(f"{name}_grad", x, like.shape))
    _start("regard_attend_back", grad, job)


def _head_sizes(query: Tensor, key: Tensor) -> tuple[int, int, int, int, int]:
    """B, H, T, K and S of heads (B, H, T, K) and (B, H, S, K).

    Raises:
        RegardError: they are none.
    """
    match tuple(query.shape), tuple(key.shape):
        case (rows, heads, queries, width), (_, _, keys, _) if min(rows, heads, width, keys) > 0:
            return rows, heads, queries, width, keys
    raise RegardError(
        "`query` and `key` must be (B, H, T, K) and (B, H, S, K), but are "
        f"{tuple(query.shape)} and {tuple(key.shape)}."
    )


def _heads(name: str, x: Tensor, shape: Sequence[int]) -> signatures.HeadsStruct:
    """Heads (B, H, T, K), contiguous in the last dimension."""
    data = row_strided_address(name, x, torch.bfloat16, shape)
    row, head, position, _ = x.stride()
    return signatures.HeadsStruct(data, row, position, head)


def _attention_job(
    heads: Sequence[Tensor], norms: Tensor, call: AttentionCall
) -> signatures.AttentionStruct:
    query, key, value, context = heads
    rows, n_heads, queries, width, keys = _head_sizes(query, key)
    sizes = (rows, n_heads, queries, width), (rows, n_heads, keys, width)
    job = signatures.AttentionStruct(
        *(_heads("query", query, sizes[0]), _heads("key", key, sizes[1])),
        *(_heads("value", value, sizes[1]), _heads("context", context, sizes[0])),
    )
    if call.mask is not None:
        grid = rows, n_heads, queries, keys
        job.mask = row_strided_address("mask", call.mask, torch.bool, grid)
        job.mask_row, job.mask_head, job.mask_query, _ = call.mask.stride()
    job.norms = address("norms", norms, torch.float32, (rows, n_heads, queries))
    job.causal, job.scale, job.drop = call.causal, call.scale, _drop(*call.drop)
    job.rows, job.heads, job.queries, job.width, job.keys = rows, n_heads, queries, width, keys
    if call.offsets is not None:
        _set_offsets(job, *call.offsets, alone=rows == 1 and call.mask is None)
    return job


def _set_offsets(
    job: signatures.AttentionStruct, queries: SequenceOffsets, keys: SequenceOffsets, *, alone: bool
) -> None:
    """Sequences without padding, in the only row of the heads."""
    shape = queries.starts.shape
    if not alone or len(shape) != 1 or not shape[0]:
        raise argument_error("starts", queries.starts, torch.int64, (job.rows + 1,), "contiguous")
    job.query_starts = address("query_starts", queries.starts, torch.int64, shape)
    job.key_starts = address("key_starts", keys.starts, torch.int64, shape)
    job.all_queries, job.all_keys = job.queries, job.keys
    job.rows, job.queries, job.keys = shape[0] - 1, queries.longest, keys.longest


def _start(name: str, query: Tensor, job: signatures.AttentionStruct) -> None:
    threads = max(1, min(torch.get_num_threads(), query.numel() * job.keys // PRODUCTS_PER_THREAD))
    getattr(build.library(), name)(threads, ctypes.byref(job))


def _run(name: str, x: Tensor, job: ctypes.Structure) -> int:
    if x.dtype not in NUMBERS:
        raise RegardError(f"Kernels compute in float32 and bfloat16, but not in {x.dtype}.")
    return getattr(build.library(), name)(NUMBERS[x.dtype], _threads(x), ctypes.byref(job))


def _threads(x: Tensor) -> int:
    return max(1, min(torch.get_num_threads(), x.numel() // NUMBERS_PER_THREAD))


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
    return bias is None and _reads(mask) and attends(query, key, value)


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
        context, norms = attend(query, key, value, call)
        ctx.save_for_backward(query, key, value, context, norms)
        ctx.call = call
        return context

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        *heads, norms = ctx.saved_tensors
        gradients = [torch.empty_like(x.transpose(1, 2)).transpose(1, 2) for x in heads[:3]]
        attend_back(grads[0], heads, norms, ctx.call, gradients)
        return *gradients, None


# ----------------------------------------------------------------------- dropout and norm


class _Dropout(torch.autograd.Function):
    """Keeps no mask for the backward pass, which draws again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, drop: Drop) -> Tensor:
        ctx.drop = drop
        return dropped(x, *drop)

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
        and fit(hidden)
        and fit(update)
        and autocast_dtype(update) in NUMBERS
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
        out, stats = add_norm(hidden, update, weight, bias, eps, drop)
        ctx.save_for_backward(hidden, update, weight, bias, stats)
        ctx.eps, ctx.drop = eps, drop
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        gradients = add_norm_back(grads[0], ctx.saved_tensors, ctx.eps, ctx.drop)
        return *gradients, None, None


# --------------------------------------------------------------- activations, sums, losses


def _cross_entropy_gradient(
    logits: Tensor, targets: Tensor, smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The gradient takes the memory of the logits."""
    return cross_entropy(logits, targets, smoothing).sum(), logits


def _ranks(logits: Tensor) -> bool:
    return fit(logits) and logits.dtype == torch.float32 and not logits.requires_grad


# ------------------------------------------------------------------------- recurrent layers


def _reads_sequence(x: Tensor, hidden: Tensor, cell: Tensor, weights: RecurrentWeights) -> bool:
    """Whether autocast computes in bfloat16, and everything is float32 on the CPU."""
    tensors = x, hidden, cell, weights.input, weights.recurrent
    plain = all(tensor.dtype == torch.float32 and tensor.device.type == "cpu" for tensor in tensors)
    supported = x.size(1) > 1 and weights.recurrent_bias is None
    return plain and supported and autocasts_to_bfloat16(x) and products.lstm_available()


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
        output = products.lstm_forward(
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
        output = products.LSTMOutput(*saved)
        d_hiddens, d_hidden, d_cell = grads
        d_gates, d_bias, d_first, d_cell = products.lstm_backward(
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
    implementations: tuple[tuple[Any, Any, Any], ...] = (
        (ops.attention, _attention, _attends),
        (ops.dropout, _dropout, lambda x, drop: fit(x)),
        (ops.add_norm, _add_norm, _adds),
        (
            ops.cross_entropy_gradient,
            _cross_entropy_gradient,
            lambda logits, targets, smoothing=0.0: (
                fit(logits) and logits.is_contiguous() and not logits.requires_grad
            ),
        ),
        (
            ops.negative_log_likelihood,
            products.negative_log_likelihood,
            lambda logits, targets: _ranks(logits),
        ),
        (
            ops.topk,
            products.topk,
            lambda logits, count: _ranks(logits) and count <= logits.size(-1),
        ),
        (quantized.quantized_linear, products.quantized_linear, products.fits),
        (wrappers.generator, CompiledGenerator, program.fits),
        (wrappers.encoder, compiled_encoder, program.fits),
        (quantized.quantized_recurrence, products.quantized_recurrence, products.fits_recurrence),
        (ops.lstm, _lstm, _reads_sequence),
        (ops.large_empty, tensors.large_empty, None),
    )
    for operation, run, when in implementations:
        ops.register(operation, "compiled", run, when=when)
