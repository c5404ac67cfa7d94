"""The elementwise operations of training by the compiled kernels: see cpp/training.h.

Nothing here has a gradient of its own: autograd functions call these in both passes. The arguments
of each function must `fit`; for others the definitions in `regard.ops` compute the same.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.kernels import build
from regard.kernels.arguments import (
    address,
    argument_error,
    checked_shape,
    contiguous,
    is_cpu_strided,
    optional_address,
    row_strided_address,
)
from regard.kernels.signatures import (
    AddNormStruct,
    AttentionStruct,
    DroppingStruct,
    DropStruct,
    EntropyStruct,
    GeluStruct,
    HeadsStruct,
    LstmStepStruct,
    SumsStruct,
)
from regard.ops import Drop, SequenceOffsets

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


def drop(x: Tensor, seed: int, threshold: int) -> Tensor:
    """Numbers dropped and scaled as `regard.layers.dropout` says: (..., D) -> (..., D)."""
    _check_numbers("x", x)
    x = contiguous(x)
    out = torch.empty_like(x)
    width = x.size(-1) if x.dim() else 1
    if x.numel():
        addresses = (address(name, y, x.dtype, x.shape) for name, y in (("x", x), ("out", out)))
        job = DroppingStruct(*addresses, x.numel() // width, width, _drop(seed, threshold))
        _run("regard_drop", x, job)
    return out


def _drop(seed: int, threshold: int) -> DropStruct:
    if not 0 <= threshold < 1 << 15:
        raise RegardError(f"`threshold` must be from 0 to 32767, but is {threshold}.")
    return DropStruct(seed, threshold)


def _check_numbers(name: str, x: Tensor) -> None:
    """Raises RegardError: x is not of a type that kernels compute in, or not on the CPU."""
    if x.dtype not in NUMBERS or not is_cpu_strided(x, x.dtype):
        raise RegardError(
            f"`{name}` must be float32 or bfloat16 on the CPU, but is {x.dtype} on {x.device}."
        )


def add_norm(
    hidden: Tensor, update: Tensor, gain: Tensor, bias: Tensor, eps: float, seed_threshold: Any
) -> tuple[Tensor, Tensor]:
    """norm(hidden + drop(update)) of (..., D), and for each row what `add_norm_back` wants of it.

    gain and bias (D,) are float32.
    """
    _check_numbers("hidden", hidden)
    width = checked_shape("hidden", hidden, hidden.dim())[-1]
    hidden, update = contiguous(hidden), contiguous(update)
    out = torch.empty_like(hidden)
    stats = torch.empty(hidden.numel() // width, 2)
    job = _norm_job((hidden, update, gain, bias, stats), eps, seed_threshold)
    job.out = address("out", out, hidden.dtype, hidden.shape)
    _run("regard_add_norm", hidden, job)
    return out, stats


def add_norm_back(
    grad: Tensor, inputs: Sequence[Tensor], eps: float, seed_threshold: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of hidden, update, gain and bias; `inputs` are these four and the statistics."""
    hidden, update, gain, bias, stats = inputs
    _check_numbers("hidden", hidden)
    width = checked_shape("hidden", hidden, hidden.dim())[-1]
    hidden, update, grad = map(contiguous, (hidden, update, grad))
    dropping = bool(seed_threshold[1])
    out, kind, shape = torch.empty_like(hidden), hidden.dtype, hidden.shape
    # Where nothing is dropped, the two gradients are one.
    update_grad = torch.empty_like(update) if dropping else out
    parts = -(-hidden.numel() // width // GROUP_ROWS)
    sums, parameter_grads = torch.empty(parts, 2, width), torch.empty(2, width)
    job = _norm_job((hidden, update, gain, bias, stats), eps, seed_threshold)
    job.out, job.grad = address("out", out, kind, shape), address("grad", grad, kind, shape)
    if dropping:
        job.update_grad = address("update_grad", update_grad, kind, shape)
    job.sums = address("sums", sums, torch.float32, (parts, 2, width))
    job.parameters = address("parameters", parameter_grads, torch.float32, (2, width))
    _run("regard_add_norm_back", hidden, job)
    return out, update_grad, parameter_grads[0], parameter_grads[1]


def _norm_job(inputs: Sequence[Tensor], eps: float, seed_threshold: Any) -> AddNormStruct:
    hidden, update, gain, bias, stats = inputs
    shape, real = hidden.shape, torch.float32
    width = shape[-1]
    rows = hidden.numel() // width
    return AddNormStruct(
        address("hidden", hidden, hidden.dtype, shape),
        address("update", update, hidden.dtype, shape),
        *(address("gain", gain, real, (width,)), address("bias", bias, real, (width,))),
        *(address("stats", stats, real, (rows, 2)), rows, width, _drop(*seed_threshold), eps, 0.0),
    )


def gelu(x: Tensor, grad: Tensor | None = None, *, tanh: bool) -> Tensor:
    """gelu(x), or its derivative times a gradient."""
    _check_numbers("x", x)
    x = contiguous(x)
    grad = None if grad is None else contiguous(grad)
    out, kind, shape = torch.empty_like(x), x.dtype, x.shape
    job = GeluStruct(
        *(address("x", x, kind, shape), optional_address("grad", grad, kind, shape)),
        *(address("out", out, kind, shape), x.numel(), tanh),
    )
    _run("regard_gelu", x, job)
    return out


def cross_entropy(logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """The losses (n,) of logits (n, V), in float64; the gradient overwrites the logits.

    Raises:
        IndexError: there is no such target.
        RegardError: there is not one target, int64, for each row of logits.
    """
    _check_numbers("logits", logits)
    rows, vocab_size = checked_shape("logits", logits)
    if targets.dtype is torch.int64 and targets.is_cpu:
        targets = contiguous(targets)
    losses = torch.empty(rows, dtype=torch.float64)
    job = EntropyStruct(
        address("logits", logits, logits.dtype, (rows, vocab_size)),
        address("targets", targets, torch.int64, (rows,)),
        *(address("losses", losses, torch.float64, (rows,)), rows, vocab_size, smoothing),
    )
    if _run("regard_entropy", logits, job):
        low, high = map(int, targets.aminmax())
        raise IndexError(f"targets are {low} to {high}, but must be 0 to {vocab_size - 1}")
    return losses


def lstm_step(below: Tensor, recurrent: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden state and cell (B, D) after a step, and its gates (B, 4D): see `ops.lstm_step`.

    All are float32; the rows of `below` may be the same memory.
    """
    recurrent, cell = contiguous(recurrent), contiguous(cell)
    rows, width = checked_shape("cell", cell)
    state, gate, real = (rows, width), (rows, 4 * width), torch.float32
    if below.dim() == 2 and below.stride(1) != 1:
        below = contiguous(below)
    gates, hidden, after = cell.new_empty(gate), torch.empty_like(cell), torch.empty_like(cell)
    job = LstmStepStruct(
        *(row_strided_address("below", below, real, gate),),
        *(address("recurrent", recurrent, real, gate), below.stride(0)),
        *(address("cell", cell, real, state), address("gates", gates, real, gate)),
        *(address("hidden", hidden, real, state), address("after", after, real, state)),
        *(None, None, None, None, rows, width),
    )
    _run_float("regard_lstm_step", recurrent, job)
    return hidden, after, gates


def lstm_step_back(
    grads: tuple[Tensor, Tensor], gates: Tensor, cell: Tensor, after: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of the gates (B, 4D) and of the cell before, from those of both results."""
    d_hidden, d_after, gates, cell, after = map(contiguous, (*grads, gates, cell, after))
    rows, width = checked_shape("after", after)
    state, gate, real = (rows, width), (rows, 4 * width), torch.float32
    d_sums, d_before = after.new_empty(gate), torch.empty_like(after)
    job = LstmStepStruct(
        *(None, None, 0, address("cell", cell, real, state), address("gates", gates, real, gate)),
        *(None, address("after", after, real, state), address("d_hidden", d_hidden, real, state)),
        *(address("d_after", d_after, real, state), address("d_sums", d_sums, real, gate)),
        *(address("d_before", d_before, real, state), rows, width),
    )
    _run_float("regard_lstm_step_back", gates, job)
    return d_sums, d_before


def sum_rows(x: Tensor) -> Tensor:
    """(M, N) -> (N,) in float32."""
    _check_numbers("x", x)
    rows, width = checked_shape("x", x)
    x = contiguous(x)
    groups = -(-rows // GROUP_ROWS)
    parts, out = torch.empty(groups, width), torch.empty(width)
    job = SumsStruct(
        address("x", x, x.dtype, (rows, width)),
        address("parts", parts, torch.float32, (groups, width)),
        *(address("out", out, torch.float32, (width,)), rows, width),
    )
    _run("regard_sum_rows", x, job)
    return out


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
    job = _attention((query, key, value, context), norms, call)
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
    job = _attention(heads, norms, call)
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


def _heads(name: str, x: Tensor, shape: Sequence[int]) -> HeadsStruct:
    """Heads (B, H, T, K), contiguous in the last dimension."""
    data = row_strided_address(name, x, torch.bfloat16, shape)
    row, head, position, _ = x.stride()
    return HeadsStruct(data, row, position, head)


def _attention(heads: Sequence[Tensor], norms: Tensor, call: AttentionCall) -> AttentionStruct:
    query, key, value, context = heads
    rows, n_heads, queries, width, keys = _head_sizes(query, key)
    sizes = (rows, n_heads, queries, width), (rows, n_heads, keys, width)
    job = AttentionStruct(
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
    job: AttentionStruct, queries: SequenceOffsets, keys: SequenceOffsets, *, alone: bool
) -> None:
    """Sequences without padding, in the only row of the heads."""
    shape = queries.starts.shape
    if not alone or len(shape) != 1 or not shape[0]:
        raise argument_error("starts", queries.starts, torch.int64, (job.rows + 1,), "contiguous")
    job.query_starts = address("query_starts", queries.starts, torch.int64, shape)
    job.key_starts = address("key_starts", keys.starts, torch.int64, shape)
    job.all_queries, job.all_keys = job.queries, job.keys
    job.rows, job.queries, job.keys = shape[0] - 1, queries.longest, keys.longest


def _start(name: str, query: Tensor, job: AttentionStruct) -> None:
    threads = max(1, min(torch.get_num_threads(), query.numel() * job.keys // PRODUCTS_PER_THREAD))
    getattr(build.library(), name)(threads, ctypes.byref(job))


def _run(name: str, x: Tensor, job: ctypes.Structure) -> int:
    function = getattr(build.library(), name)
    return function(NUMBERS[x.dtype], _threads(x), ctypes.byref(job))


def _run_float(name: str, x: Tensor, job: ctypes.Structure) -> None:
    getattr(build.library(), name)(_threads(x), ctypes.byref(job))


def _threads(x: Tensor) -> int:
    return max(1, min(torch.get_num_threads(), x.numel() // NUMBERS_PER_THREAD))
