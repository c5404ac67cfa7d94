"""What a training does besides its matrix products, by the compiled kernels: see cpp/training.h.

Nothing here has a gradient of its own: the layers' autograd functions call these for both passes.
Each function asks for tensors that `fit`, which tells whether there are kernels for them; where
there are none, the layers compute the same by torch.
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
    LstmStepStruct,
    PlaceStruct,
    SumsStruct,
)
from regard.ops import Drop, SequenceOffsets

NUMBERS = {torch.float32: 0, torch.bfloat16: 1}
TOGETHER = 64  # rows of one partial sum, as in training.h
A_THREADS_NUMBERS = 1 << 14  # numbers that pay for a further thread
A_THREADS_PRODUCTS = 1 << 19  # multiplications


def fit(*tensors: Tensor) -> bool:
    """Whether there are kernels for these: on the CPU, of one type that they know, not empty.

    Not inside what torch compiles, which cannot see through them.
    """
    one = tensors[0]
    if not one.is_cpu or torch.compiler.is_compiling():
        return False
    alike = all(is_cpu_strided(t, one.dtype) for t in tensors)
    return alike and one.dtype in NUMBERS and one.numel() > 0 and build.available()


def drop(x: Tensor, seed: int, threshold: int) -> Tensor:
    """Numbers dropped and scaled as `regard.layers.dropout` says: (..., D) -> (..., D)."""
    _check_numbers("x", x)
    x = contiguous(x)
    out = torch.empty_like(x)
    width = x.size(-1) if x.dim() else 1
    if x.numel():
        places = (address(name, y, x.dtype, x.shape) for name, y in (("x", x), ("out", out)))
        job = DroppingStruct(*places, x.numel() // width, width, _drop(seed, threshold))
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
    parts = -(-hidden.numel() // width // TOGETHER)
    sums, found = torch.empty(parts, 2, width), torch.empty(2, width)
    job = _norm_job((hidden, update, gain, bias, stats), eps, seed_threshold)
    job.out, job.grad = address("out", out, kind, shape), address("grad", grad, kind, shape)
    if dropping:
        job.update_grad = address("update_grad", update_grad, kind, shape)
    job.sums = address("sums", sums, torch.float32, (parts, 2, width))
    job.parameters = address("parameters", found, torch.float32, (2, width))
    _run("regard_add_norm_back", hidden, job)
    return out, update_grad, found[0], found[1]


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


def cross_entropy(scores: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """The losses (n,) of scores (n, V), in float64; the scores become their gradient.

    Raises:
        IndexError: there is no such target.
        RegardError: there is not one target, int64, for each row of scores.
    """
    _check_numbers("scores", scores)
    rows, words = checked_shape("scores", scores)
    if targets.dtype is torch.int64 and targets.is_cpu:
        targets = contiguous(targets)
    losses = torch.empty(rows, dtype=torch.float64)
    job = EntropyStruct(
        address("scores", scores, scores.dtype, (rows, words)),
        address("targets", targets, torch.int64, (rows,)),
        *(address("losses", losses, torch.float64, (rows,)), rows, words, smoothing),
    )
    if _run("regard_entropy", scores, job):
        least, most = map(int, targets.aminmax())
        raise IndexError(f"targets are {least} to {most}, but must be 0 to {words - 1}")
    return losses


def lstm_step(sums: Tensor, more: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden state and cell (B, D) after a step whose gates are sums + more, (B, 4D), and those.

    All are float32; rows of `sums` may be one and the same.
    """
    more, cell = contiguous(more), contiguous(cell)
    rows, width = checked_shape("cell", cell)
    one, gate, real = (rows, width), (rows, 4 * width), torch.float32
    if sums.dim() == 2 and sums.stride(1) != 1:
        sums = contiguous(sums)
    gates, hidden, after = cell.new_empty(gate), torch.empty_like(cell), torch.empty_like(cell)
    job = LstmStepStruct(
        *(row_strided_address("sums", sums, real, gate), address("more", more, real, gate)),
        sums.stride(0),
        *(address("cell", cell, real, one), address("gates", gates, real, gate)),
        *(address("hidden", hidden, real, one), address("after", after, real, one)),
        *(None, None, None, None, rows, width),
    )
    _run_float("regard_lstm_step", more, job)
    return hidden, after, gates


def lstm_step_back(
    grads: tuple[Tensor, Tensor], gates: Tensor, cell: Tensor, after: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of the sums (B, 4D) and of the cell before, from those of both results."""
    d_hidden, d_after, gates, cell, after = map(contiguous, (*grads, gates, cell, after))
    rows, width = checked_shape("after", after)
    one, gate, real = (rows, width), (rows, 4 * width), torch.float32
    d_sums, d_before = after.new_empty(gate), torch.empty_like(after)
    job = LstmStepStruct(
        *(None, None, 0, address("cell", cell, real, one), address("gates", gates, real, gate)),
        *(None, address("after", after, real, one), address("d_hidden", d_hidden, real, one)),
        *(address("d_after", d_after, real, one), address("d_sums", d_sums, real, gate)),
        *(address("d_before", d_before, real, one), rows, width),
    )
    _run_float("regard_lstm_step_back", gates, job)
    return d_sums, d_before


def sum_rows(x: Tensor) -> Tensor:
    """(M, N) -> (N,) in float32."""
    _check_numbers("x", x)
    rows, width = checked_shape("x", x)
    x = contiguous(x)
    groups = -(-rows // TOGETHER)
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
    alike = key.shape == value.shape and query.shape[:2] == key.shape[:2]
    side_by_side = all(x.stride(-1) == 1 for x in (query, key, value))
    return (
        query.dtype == torch.bfloat16
        and fit(query, key, value)
        and query.dim() == 4
        and alike
        and side_by_side
        and query.size(-1) == key.size(-1)
        and key.numel() > 0
        and bool(build.library().regard_attention_is_fast())
    )


@dataclass(frozen=True)
class Attending:
    """What attention is asked for beside heads: `allowed` (B, H, T, S) boolean, by expansion.

    extents: of queries and of keys, where rows lie end to end (1, H, N, K).
    """

    allowed: Tensor | None
    causal: bool
    scale: float
    drop: Drop
    extents: tuple[SequenceOffsets, SequenceOffsets] | None = None


def attend(query: Tensor, key: Tensor, value: Tensor, asked: Attending) -> tuple[Tensor, Tensor]:
    """The context (B, H, T, K), whose heads lie side by side, and what `attend_back` wants."""
    rows, heads, queries, width = _head_sizes(query, key)[:4]
    context = query.new_empty(rows, queries, heads, width).transpose(1, 2)
    norms = torch.empty(rows, heads, queries)
    job = _attention((query, key, value, context), norms, asked)
    _start("regard_attend", query, job)
    return context, norms


def attend_back(
    grad: Tensor,
    heads: Sequence[Tensor],
    norms: Tensor,
    asked: Attending,
    out: Sequence[Tensor],
) -> None:
    """Write the gradients of query, key and value into `out`; `heads` are these and the context."""
    grad = grad if grad.stride(-1) == 1 else grad.contiguous()
    job = _attention(heads, norms, asked)
    job.context_grad = _place("grad", grad, heads[0].shape)
    for name, x, like in zip(("query", "key", "value"), out, heads, strict=False):
        if 0 in x.stride():
            raise RegardError(f"The gradient of `{name}` must have memory for each of its numbers.")
        setattr(job, f"{name}_grad", _place(f"{name}_grad", x, like.shape))
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


def _place(name: str, x: Tensor, shape: Sequence[int]) -> PlaceStruct:
    """Heads (B, H, T, K), the last side by side."""
    data = row_strided_address(name, x, torch.bfloat16, shape)
    row, head, position, _ = x.stride()
    return PlaceStruct(data, row, position, head)


def _attention(heads: Sequence[Tensor], norms: Tensor, asked: Attending) -> AttentionStruct:
    query, key, value, context = heads
    rows, several, queries, width, keys = _head_sizes(query, key)
    sizes = (rows, several, queries, width), (rows, several, keys, width)
    job = AttentionStruct(
        *(_place("query", query, sizes[0]), _place("key", key, sizes[1])),
        *(_place("value", value, sizes[1]), _place("context", context, sizes[0])),
    )
    if asked.allowed is not None:
        grid = rows, several, queries, keys
        job.allowed = row_strided_address("allowed", asked.allowed, torch.bool, grid)
        job.allowed_row, job.allowed_head, job.allowed_query, _ = asked.allowed.stride()
    job.norms = address("norms", norms, torch.float32, (rows, several, queries))
    job.causal, job.scale, job.drop = asked.causal, asked.scale, _drop(*asked.drop)
    job.rows, job.heads, job.queries, job.width, job.keys = rows, several, queries, width, keys
    if asked.extents is not None:
        _end_to_end(job, *asked.extents, alone=rows == 1 and asked.allowed is None)
    return job


def _end_to_end(
    job: AttentionStruct, queries: SequenceOffsets, keys: SequenceOffsets, *, alone: bool
) -> None:
    """Rows lie end to end in the only row of the heads."""
    shape = queries.starts.shape
    if not alone or len(shape) != 1 or not shape[0]:
        raise argument_error("starts", queries.starts, torch.int64, (job.rows + 1,), "contiguous")
    job.query_starts = address("query_starts", queries.starts, torch.int64, shape)
    job.key_starts = address("key_starts", keys.starts, torch.int64, shape)
    job.all_queries, job.all_keys = job.queries, job.keys
    job.rows, job.queries, job.keys = shape[0] - 1, queries.longest, keys.longest


def _start(name: str, query: Tensor, job: AttentionStruct) -> None:
    threads = max(1, min(torch.get_num_threads(), query.numel() * job.keys // A_THREADS_PRODUCTS))
    getattr(build.library(), name)(threads, ctypes.byref(job))


def _run(name: str, x: Tensor, job: ctypes.Structure) -> int:
    function = getattr(build.library(), name)
    return function(NUMBERS[x.dtype], _threads(x), ctypes.byref(job))


def _run_float(name: str, x: Tensor, job: ctypes.Structure) -> None:
    getattr(build.library(), name)(_threads(x), ctypes.byref(job))


def _threads(x: Tensor) -> int:
    return max(1, min(torch.get_num_threads(), x.numel() // A_THREADS_NUMBERS))
