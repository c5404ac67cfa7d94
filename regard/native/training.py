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

from regard.native import build
from regard.native.products import pointer

NUMBERS = {torch.float32: 0, torch.bfloat16: 1}
TOGETHER = 64  # rows of one partial sum, as in training.h
A_THREADS_NUMBERS = 1 << 14  # numbers that pay for a further thread
A_THREADS_PRODUCTS = 1 << 19  # multiplications
DROP_NONE = (0, 0)  # a seed and a threshold

_address, _count = ctypes.c_void_p, ctypes.c_int64


class _Drop(ctypes.Structure):
    _fields_ = [("seed", ctypes.c_uint64), ("threshold", _count)]


class _Dropping(ctypes.Structure):
    _fields_ = [("x", _address), ("y", _address), ("rows", _count), ("width", _count)]
    _fields_ += [("drop", _Drop)]


class _AddNorm(ctypes.Structure):
    _fields_ = [(name, _address) for name in ("hidden", "update", "gain", "bias", "stats")]
    _fields_ += [("rows", _count), ("width", _count), ("drop", _Drop)]
    _fields_ += [("eps", ctypes.c_float), ("unused", ctypes.c_float)]
    _fields_ += [(name, _address) for name in ("out", "slope", "update_slope", "sums")]
    _fields_ += [("parameters", _address)]


class _Gelu(ctypes.Structure):
    _fields_ = [("x", _address), ("slope", _address), ("out", _address)]
    _fields_ += [("count", _count), ("tanh", _count)]


class _Sums(ctypes.Structure):
    _fields_ = [("x", _address), ("sums", _address), ("out", _address)]
    _fields_ += [("rows", _count), ("width", _count)]


class _Entropy(ctypes.Structure):
    _fields_ = [(name, _address) for name in ("scores", "targets", "losses")]
    _fields_ += [("rows", _count), ("words", _count), ("smoothing", ctypes.c_double)]


class _Step(ctypes.Structure):
    _fields_ = [("sums", _address), ("more", _address), ("step", _count)]
    _fields_ += [(name, _address) for name in ("before", "gates", "hidden", "after")]
    _fields_ += [(name, _address) for name in ("d_hidden", "d_after", "d_sums", "d_before")]
    _fields_ += [("rows", _count), ("width", _count)]


class _Place(ctypes.Structure):
    _fields_ = [("data", _address), ("row", _count), ("position", _count), ("head", _count)]

    @classmethod
    def of(cls, x: Tensor) -> _Place:
        """(B, H, T, K), the last side by side."""
        row, head, position, _ = x.stride()
        return cls(pointer(x), row, position, head)


_PLACES = ("query", "key", "value", "context")


class _Attention(ctypes.Structure):
    _fields_ = [(name, _Place) for name in _PLACES]
    _fields_ += [(f"{name}_slope", _Place) for name in ("context", "query", "key", "value")]
    _fields_ += [("allowed", _address)]
    _fields_ += [(f"allowed_{name}", _count) for name in ("row", "head", "query")]
    _fields_ += [("norms", _address)]
    _fields_ += [(name, _count) for name in ("rows", "heads", "queries", "keys", "width", "causal")]
    _fields_ += [("drop", _Drop), ("scale", ctypes.c_float), ("unused", ctypes.c_float)]
    _fields_ += [("query_starts", _address), ("key_starts", _address)]


def fit(*tensors: Tensor) -> bool:
    """Whether there are kernels for these: on the CPU, of one type that they know, not empty.

    Not inside what torch compiles, which cannot see through them.
    """
    one = tensors[0]
    if one.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    alike = all(t.dtype == one.dtype and t.device.type == "cpu" for t in tensors)
    return alike and one.dtype in NUMBERS and one.numel() > 0 and build.available()


def drop(x: Tensor, seed: int, threshold: int) -> Tensor:
    """Numbers dropped and scaled as `regard.layers.dropout` says: (..., D) -> (..., D)."""
    x = x.contiguous()
    out = torch.empty_like(x)
    width = x.size(-1) if x.dim() else 1
    job = _Dropping(pointer(x), pointer(out), x.numel() // width, width, _Drop(seed, threshold))
    _run("regard_drop", x, job)
    return out


def add_norm(
    hidden: Tensor, update: Tensor, gain: Tensor, bias: Tensor, eps: float, seed_threshold: Any
) -> tuple[Tensor, Tensor]:
    """norm(hidden + drop(update)) of (..., D), and for each row what `add_norm_back` wants of it.

    gain and bias (D,) are float32.
    """
    out = torch.empty_like(hidden)
    stats = torch.empty(hidden.numel() // hidden.size(-1), 2)
    job = _norm_job((hidden, update, gain, bias, stats), eps, seed_threshold)
    job.out = pointer(out)
    _run("regard_add_norm", hidden, job)
    return out, stats


def add_norm_back(
    slope: Tensor, inputs: Sequence[Tensor], eps: float, seed_threshold: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The slopes of hidden, update, gain and bias; `inputs` are these four and the statistics."""
    hidden, update, gain, bias, _ = inputs
    slope, out, dropping = slope.contiguous(), torch.empty_like(hidden), bool(seed_threshold[1])
    # Where nothing is dropped, the two slopes are one.
    update_slope = torch.empty_like(update) if dropping else out
    parts = -(-hidden.numel() // hidden.size(-1) // TOGETHER)
    sums, found = gain.new_empty(parts, 2, gain.numel()), gain.new_empty(2, gain.numel())
    job = _norm_job(inputs, eps, seed_threshold)
    job.out, job.slope, job.sums = pointer(out), pointer(slope), pointer(sums)
    job.update_slope = pointer(update_slope) if dropping else None
    job.parameters = pointer(found)
    _run("regard_add_norm_back", hidden, job)
    return out, update_slope, found[0], found[1]


def _norm_job(inputs: Sequence[Tensor], eps: float, seed_threshold: Any) -> _AddNorm:
    width = inputs[0].size(-1)
    rows = inputs[0].numel() // width
    return _AddNorm(*map(pointer, inputs), rows, width, _Drop(*seed_threshold), eps, 0.0)


def gelu(x: Tensor, slope: Tensor | None = None, *, tanh: bool) -> Tensor:
    """gelu(x), or its derivative times a slope."""
    x = x.contiguous()
    slope = None if slope is None else slope.contiguous()
    out = torch.empty_like(x)
    _run("regard_gelu", x, _Gelu(pointer(x), pointer(slope), pointer(out), x.numel(), tanh))
    return out


def cross_entropy(scores: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """The losses (n,) of scores (n, V), in float64; the scores become their slope.

    Raises:
        IndexError: there is no such target.
    """
    rows, words = scores.shape
    targets = targets.contiguous()
    least, most = map(int, targets.aminmax())
    if least < 0 or most >= words:
        raise IndexError(f"targets are {least} to {most}, but must be 0 to {words - 1}")
    losses = scores.new_empty(rows, dtype=torch.float64)
    job = _Entropy(*map(pointer, (scores, targets, losses)), rows, words, smoothing)
    _run("regard_entropy", scores, job)
    return losses


def lstm_step(sums: Tensor, more: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden state and cell (B, D) after a step whose gates are sums + more, (B, 4D), and those.

    All are float32; rows of `sums` may be one and the same.
    """
    more, cell = more.contiguous(), cell.contiguous()
    sums = sums if sums.stride(1) == 1 else sums.contiguous()
    gates, hidden, after = torch.empty_like(more), torch.empty_like(cell), torch.empty_like(cell)
    read = (pointer(sums), pointer(more), sums.stride(0))
    made = map(pointer, (cell, gates, hidden, after))
    _run("regard_lstm_step", more, _Step(*read, *made, None, None, None, None, *cell.shape))
    return hidden, after, gates


def lstm_step_back(
    slopes: tuple[Tensor, Tensor], gates: Tensor, cell: Tensor, after: Tensor
) -> tuple[Tensor, Tensor]:
    """The slopes of the sums (B, 4D) and of the cell before, from those of both results."""
    d_hidden, d_after = (slope.contiguous() for slope in slopes)
    cell, d_sums, d_before = cell.contiguous(), torch.empty_like(gates), torch.empty_like(after)
    known = map(pointer, (cell, gates, None, after, d_hidden, d_after, d_sums, d_before))
    _run("regard_lstm_step_back", gates, _Step(None, None, 0, *known, *after.shape))
    return d_sums, d_before


def sum_rows(x: Tensor) -> Tensor:
    """(M, N) -> (N,) in float32."""
    x = x.contiguous()
    rows, width = x.shape
    parts, out = torch.empty(-(-rows // TOGETHER), width), torch.empty(width)
    _run("regard_sum_rows", x, _Sums(*map(pointer, (x, parts, out)), rows, width))
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
        and bool(build.kernels().regard_attention_is_fast())  # type: ignore[union-attr]
    )


@dataclass(frozen=True)
class Attending:
    """What attention is asked for beside heads: `allowed` (B, H, T, S) boolean, by expansion.

    extents: of queries and of keys, where rows lie end to end (1, H, N, K).
    """

    allowed: Tensor | None
    causal: bool
    scale: float
    decision: tuple[int, int]
    extents: tuple[Extent, Extent] | None = None


@dataclass(frozen=True)
class Extent:
    """Of rows end to end: where each begins, and the end, (R + 1,) int64; the longest length."""

    starts: Tensor
    longest: int


def attend(query: Tensor, key: Tensor, value: Tensor, asked: Attending) -> tuple[Tensor, Tensor]:
    """The context (B, H, T, K), whose heads lie side by side, and what `attend_back` wants."""
    rows, heads, queries, width = query.shape
    context = query.new_empty(rows, queries, heads, width).transpose(1, 2)
    norms = torch.empty(rows, heads, queries)
    job = _attention((query, key, value, context), norms, asked)
    _start("regard_attend", query, job)
    return context, norms


def attend_back(
    slope: Tensor,
    heads: Sequence[Tensor],
    norms: Tensor,
    asked: Attending,
    out: Sequence[Tensor],
) -> None:
    """Write the slopes of query, key and value into `out`; `heads` are these and the context."""
    slope = slope if slope.stride(-1) == 1 else slope.contiguous()
    job = _attention(heads, norms, asked)
    job.context_slope = _Place.of(slope)
    job.query_slope, job.key_slope, job.value_slope = map(_Place.of, out)
    _start("regard_attend_back", slope, job)


def _attention(heads: Sequence[Tensor], norms: Tensor, asked: Attending) -> _Attention:
    query, key = heads[:2]
    job = _Attention(*map(_Place.of, heads))
    if asked.allowed is not None:
        job.allowed = pointer(asked.allowed)
        job.allowed_row, job.allowed_head, job.allowed_query, _ = asked.allowed.stride()
    job.norms, job.causal, job.scale = pointer(norms), asked.causal, asked.scale
    job.rows, job.heads, job.queries, job.width = query.shape
    job.keys, job.drop = key.size(2), _Drop(*asked.decision)
    if asked.extents is not None:
        queries, keys = asked.extents
        job.query_starts, job.key_starts = pointer(queries.starts), pointer(keys.starts)
        job.rows, job.queries, job.keys = len(queries.starts) - 1, queries.longest, keys.longest
    return job


def _start(name: str, query: Tensor, job: _Attention) -> None:
    threads = max(1, min(torch.get_num_threads(), query.numel() * job.keys // A_THREADS_PRODUCTS))
    getattr(build.kernels(), name)(_count(threads), ctypes.byref(job))


def _run(name: str, x: Tensor, job: ctypes.Structure) -> None:
    threads = max(1, min(torch.get_num_threads(), x.numel() // A_THREADS_NUMBERS))
    function = getattr(build.kernels(), name)
    function(_count(NUMBERS[x.dtype]), _count(threads), ctypes.byref(job))
