"""The operations of training by the compiled kernels: see cpp/training.h, lstm.h and adam.h.

Nothing here has a gradient of its own: autograd functions call these in both passes. The arguments
of each function must `fit`; for others the definitions in `regard.ops` compute the same.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.errors import RegardError
from regard.kernels import build
from regard.kernels.signatures import (
    AdamStruct,
    AddNormStruct,
    AttentionStruct,
    DroppingStruct,
    DropStruct,
    EntropyStruct,
    HeadsStruct,
    LstmLayerStruct,
    ParameterStruct,
)
from regard.kernels.tensors import (
    address,
    argument_error,
    checked_shape,
    contiguous,
    is_contiguous,
    is_cpu_strided,
    optional_address,
    raw_address,
    row_strided_address,
)
from regard.ops import AdamUpdate, Drop, SequenceOffsets

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
    x = contiguous(x)
    out = torch.empty_like(x)
    width = x.size(-1) if x.dim() else 1
    if x.numel():
        addresses = address("x", x, x.dtype, x.shape), raw_address(out)
        job = DroppingStruct(*addresses, x.numel() // width, width, _drop(seed, threshold))
        _run("regard_drop", x, job)
    return out


def _drop(seed: int, threshold: int) -> DropStruct:
    if not 0 <= threshold < 1 << 15:
        raise RegardError(f"`threshold` must be from 0 to 32767, but is {threshold}.")
    return DropStruct(seed, threshold)


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
    job = EntropyStruct(
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
    if x.dtype not in NUMBERS:
        raise RegardError(f"Kernels compute in float32 and bfloat16, but not in {x.dtype}.")
    return getattr(build.library(), name)(NUMBERS[x.dtype], _threads(x), ctypes.byref(job))


def _threads(x: Tensor) -> int:
    return max(1, min(torch.get_num_threads(), x.numel() // NUMBERS_PER_THREAD))


HALVES = ("inputs", "d_gates")  # in bfloat16; all others are float32


def lstm_available() -> bool:
    """Whether there are kernels for this processor."""
    library = build.kernels()
    return library is not None and bool(library.regard_lstm_available())


@dataclass(frozen=True)
class LSTMOutput:
    """What a layer leaves: `hiddens` (B, T, D), `cells` (B, T, D), squashed `gates` (B, T, 4D).

    Where no gradient is needed there are no gates, and `cells` are the last, (B, 1, D).
    """

    hiddens: Tensor
    cells: Tensor
    gates: Tensor | None


def lstm_forward(
    weight: Tensor, inputs: Tensor, bias: Tensor, hidden: Tensor, cell: Tensor, *, keep: bool
) -> LSTMOutput:
    """All hidden states and cells, in float32.

    Args:
        weight: U, (4D, D).
        inputs: W x, (B, T, 4D), in bfloat16.
        bias: (4D).
        hidden, cell: before the first step, (B, D).
        keep: for `lstm_backward`.
    """
    rows, steps, width = _lstm_shapes(inputs, keep)["hiddens"]
    hiddens = hidden.new_empty(rows, steps, width)
    cells = hidden.new_empty(rows, steps if keep else 1, width)
    gates = hidden.new_empty(inputs.shape) if keep else None
    output = LSTMOutput(hiddens, cells, gates)
    arguments = dict(weight=weight, inputs=inputs, bias=bias, hidden=hidden, cell=cell)
    _call_lstm("regard_lstm_forward", inputs, keep, **arguments, **vars(output))
    return output


def lstm_backward(
    weight: Tensor,
    output: LSTMOutput,
    cell: Tensor,
    grads: tuple[Tensor, Tensor, Tensor],
    *,
    first: bool,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Gradients by the gates before they were squashed, (B, T, 4D) in bfloat16, by the bias, by the
    first hidden state (if `first`) and by the first cell.

    Args:
        cell: before the first step.
        grads: by all hidden states (B, T, D), by the last one beside that, by the last cell.
    """
    d_hiddens, d_end, d_cell = grads
    checked_shape("cells", output.cells, 3)
    d_gates = cell.new_empty(*output.cells.shape[:2], 4 * cell.size(1), dtype=torch.bfloat16)
    d_bias = cell.new_zeros(4 * cell.size(1))
    d_cell = d_cell.clone(memory_format=torch.contiguous_format)  # it is written to
    d_hidden = cell.new_empty(cell.shape) if first else None
    arguments = dict(weight=weight, cell=cell, cells=output.cells, gates=output.gates)
    gradients = dict(d_gates=d_gates, d_bias=d_bias, d_cell=d_cell, d_hidden=d_hidden)
    arguments |= dict(d_hiddens=d_hiddens, d_end=d_end)
    _call_lstm("regard_lstm_backward", d_gates, True, **arguments, **gradients)
    return d_gates, d_bias, d_hidden, d_cell


def _call_lstm(name: str, like: Tensor, keep: bool, /, **tensors: Tensor | None) -> None:
    """`like` is (B, T, 4D); there are gates if `keep`."""
    library = build.kernels()
    if library is None or not library.regard_lstm_available():
        raise RegardError("There are no compiled kernels for LSTMs on this processor.")
    absent = {"d_hidden"} if keep else {"gates"}  # these may be
    prepared = {
        key: x if x is None else contiguous(x)
        for key, x in tensors.items()
        if x is not None or key not in absent
    }
    shapes = _lstm_shapes(like, keep)
    addresses = {
        key: address(key, x, torch.bfloat16 if key in HALVES else torch.float32, shapes[key])
        for key, x in prepared.items()
    }
    rows, steps, gate_rows = like.shape
    arguments = LstmLayerStruct(rows, steps, gate_rows // 4, **addresses)
    getattr(library, name)(ctypes.byref(arguments), torch.get_num_threads())


def _lstm_shapes(like: Tensor, keep: bool) -> dict[str, tuple[int, ...]]:
    """Of each tensor that lstm.h names, where one is (B, T, 4D)."""
    if like.dim() != 3 or like.size(2) % 4 or not like.size(1):
        raise RegardError(f"`inputs` must be (B, T, 4D), T > 0, but is {tuple(like.shape)}.")
    rows, steps, gate_rows = like.shape
    width = gate_rows // 4
    states, state, gates = (rows, steps, width), (rows, width), (rows, steps, gate_rows)
    return {
        "weight": (gate_rows, width),
        "inputs": gates,
        "bias": (gate_rows,),
        "hidden": state,
        "cell": state,
        "gates": gates,
        "cells": states if keep else (rows, 1, width),
        "hiddens": states,
        "d_hiddens": states,
        "d_end": state,
        "d_cell": state,
        "d_hidden": state,
        "d_gates": gates,
        "d_bias": (gate_rows,),
    }


PIECE = 1 << 15  # numbers of a piece, as in adam.h


def adam_fits(
    updates: Sequence[AdamUpdate], scale: float, betas: tuple[float, float], eps: float
) -> bool:
    """Whether there are kernels for these parameters and their gradients: float32 on the CPU."""
    tensors = [x for update in updates for x in (update.parameter, update.gradient)]
    return build.available() and all(map(_plain, tensors))


def _plain(tensor: Tensor) -> bool:
    return is_cpu_strided(tensor) and is_contiguous(tensor)


def adam(
    updates: Sequence[AdamUpdate], scale: float, betas: tuple[float, float], eps: float
) -> None:
    """One step of all parameters and of their low-precision copies."""
    by_step: dict[int, list[AdamUpdate]] = {}
    for update in updates:
        update.step.add_(1)
        by_step.setdefault(int(update.step), []).append(update)
    for step, group in by_step.items():
        _update_together(group, step, scale, betas, eps)


def _update_together(
    updates: Sequence[AdamUpdate], step: int, scale: float, betas: tuple[float, float], eps: float
) -> None:
    first, second = betas
    table = (ParameterStruct * len(updates))()
    for row, update in zip(table, updates, strict=True):
        real, shape = torch.float32, update.parameter.shape
        row.values = address("parameter", update.parameter, real, shape)
        row.grads = address("gradient", update.gradient, real, shape)
        row.means = address("exp_avg", update.exp_avg, real, shape)
        row.squares = address("exp_avg_sq", update.exp_avg_sq, real, shape)
        row.copy = optional_address("copy", update.copy, torch.bfloat16, shape)
        row.count = update.parameter.numel()
        row.decay_factor, row.l2 = update.decay_factor, update.l2
        row.learning_rate = update.learning_rate / (1 - first**step)
    numbers = [(i, at) for i, row in enumerate(table) for at in range(0, row.count, PIECE)]
    pieces = np.array(numbers, np.int64).reshape(-1, 2)
    if not len(pieces):
        return
    job = AdamStruct(ctypes.addressof(table), pieces.ctypes.data, len(pieces))
    job.grad_scale, job.beta1, job.beta2, job.eps = scale, first, second, eps
    job.root_scale = (1 - second**step) ** -0.5
    threads = max(1, min(torch.get_num_threads(), job.count))
    build.library().regard_adam(threads, ctypes.byref(job))
