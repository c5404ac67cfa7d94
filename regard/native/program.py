"""A recording in the form that the compiled kernels read, and a call of them."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import torch
from torch import Tensor

from regard.native.beams import Found, Plan, search
from regard.native.pace import Pace
from regard.native.products import WEIGHTS, pointer, threads_for
from regard.native.recorder import ABSENT, COUNTED, LINEAR, PLACES, CannotRecord, Op, Recording
from regard.native.words import Leaders
from regard.state import KeyValueCache, SourceMemory

NO_TOKEN = "a token is not in the vocabulary"
NUMBERS = {torch.float32: 0, torch.float16: 1}  # keys and values


class _Matrix(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("weights", "n", "k")),
        *((name, ctypes.c_void_p) for name in ("data", "scale", "bias")),
    ]


class _Op(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in ("kind", "target", "source", "other")),
        *((name, ctypes.c_int32) for name in ("layer", "heads", "head_dim", "activation")),
        ("number", ctypes.c_float),
        ("lines", ctypes.c_int32),
        *((name, ctypes.c_void_p) for name in ("matrix", "gain", "bias", "table")),
    ]


class _Memory(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("keys", "values")),
        *((name, ctypes.c_int64) for name in ("numbers", "line", "layer", "head", "position")),
        ("lengths", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("sharing", "longest")),
        ("origin", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("origin_row", "origin_position")),
    ]


class Part(ctypes.Structure):
    """Of a recurrent state: where it is, and where what follows it shall be."""

    _fields_ = [("before", ctypes.c_void_p), ("before_step", ctypes.c_int64)]
    _fields_ += [("after", ctypes.c_void_p), ("after_step", ctypes.c_int64)]


class _Program(ctypes.Structure):
    _fields_ = [
        ("ops", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("widths", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("registers", "widest")),
    ]


class Program:
    """What was recorded, in one call for a token of each row or several.

    It keeps the addresses of the weights: where these are moved, a new program is needed.

    Raises:
        CannotRecord: some numbers are not those that the kernels read.
    """

    def __init__(self, recording: Recording):
        ops, widths = recording.ops, recording.widths
        self._kept = [tensor.detach() for op in ops for tensor in _read(op)]  # whoever moves them
        self.width = widths[0]  # of what comes out
        self.end = min(map(_positions, ops), default=sys.maxsize)
        self._matrices = [_matrix(op) for op in ops]
        self._ops = (_Op * len(ops))(*map(_op, ops, self._matrices))
        self._widths = (ctypes.c_int64 * len(widths))(*widths)
        linears = [op.matrix for op in ops if op.kind == LINEAR and op.matrix is not None]
        self._program = _Program(
            ctypes.addressof(self._ops),
            len(ops),
            ctypes.addressof(self._widths),
            len(widths),
            max((matrix.columns for matrix in linears), default=0),
        )
        self._address = ctypes.addressof(self._program)
        self._paces: dict[Any, Pace] = {}
        work = sum(matrix.weight.numel() for matrix in linears)
        self._work = work // max(len(linears), 1)
        last = ops[-1]
        self._scores = (last.kind, last.other, last.activation) == (LINEAR, ABSENT, 0)

    def decode(
        self, library: Any, hidden: Tensor, cache: KeyValueCache, source: SourceMemory | None
    ) -> Tensor:
        """(R, T, D) -> (R, T, D); keys and values go into the cache."""
        out = hidden.clone(memory_format=torch.contiguous_format)
        self._run(library, out, None, cache, source)
        return out

    def step(
        self,
        library: Any,
        tokens: Tensor,
        cache: KeyValueCache | None,
        source: SourceMemory | None,
        parts: Any = None,
    ) -> Tensor:
        """Tokens (R, T) -> scores (R, T, V); keys and values go into the cache.

        parts: an array of `Part`, where the state is recurrent.

        Raises:
            IndexError: there is no such token.
        """
        out = torch.empty(*tokens.shape, self.width)
        if self._run(library, out, tokens.data_ptr(), cache, source, parts):
            raise IndexError(NO_TOKEN)
        return out

    def leading(
        self,
        library: Any,
        tokens: Tensor,
        cache: KeyValueCache | None,
        source: SourceMemory | None,
        count: int,
        parts: Any = None,
    ) -> Leaders | None:
        """The `count` most probable words after each of the tokens (R, 1), as `words.leading` finds
        them among the scores, but nobody stores those. None where that cannot be done.

        Raises:
            IndexError: there is no such token.
        """
        if not self._scores or self.width < count:
            return None
        words = torch.empty(tokens.size(0), count, dtype=torch.int64)
        log_probs = torch.empty(words.shape)
        found = (count, words.data_ptr(), log_probs.data_ptr())
        run = library.regard_run_leading
        wrong = self._call(run, tokens.shape, (tokens.data_ptr(),), found, cache, source, parts)
        if wrong > 0:
            raise IndexError(NO_TOKEN)
        return None if wrong else Leaders(words, log_probs, self.width)

    def beams(
        self, library: Any, tokens: Tensor, cache: KeyValueCache, source: SourceMemory, plan: Plan
    ) -> Found | None:
        """A search from the first tokens (A, 1) on; None where that cannot be done in one call. The
        cache tells the size of keys and values, and stays as it is.
        """
        if not self._scores or self.width < plan.count or self.end < plan.most:
            return None
        _, layers, heads, _, width = cache.keys.shape
        read, sizes = _memory(source, source.keys.size(3), 1), (layers, heads, width)

        def call(beams: Any) -> int:
            given = (self._address, beams, tokens.data_ptr(), ctypes.byref(read))
            return library.regard_beams(*given, NUMBERS[cache.keys.dtype], *sizes)

        return search(plan, self.width, self._work, call)

    def _run(
        self,
        library: Any,
        out: Tensor,
        tokens: int | None,
        cache: KeyValueCache | None,
        source: SourceMemory | None,
        parts: Any = None,
    ) -> int:
        if not out.numel():
            return 0
        given = (out.data_ptr(), tokens)
        return self._call(library.regard_run, out.shape[:2], given, (), cache, source, parts)

    def _call(
        self,
        run: Any,
        shape: torch.Size,
        given: tuple[int | None, ...],
        found: tuple[int, ...],
        cache: KeyValueCache | None,
        source: SourceMemory | None,
        parts: Any,
    ) -> int:
        rows, count = shape
        read = None
        if source is not None:
            read = _memory(source, source.keys.size(3), rows // source.lengths.size(0))
        arguments = (
            *(self._address, *given, rows, count),
            None if cache is None else ctypes.byref(_memory(cache, cache.longest, 1)),
            None if read is None else ctypes.byref(read),
            *(parts, *found),
        )
        pace = self._paces.setdefault((run.__name__, (rows * count).bit_length()), Pace())
        threads = threads_for(rows * count * self._work)
        return pace.timed(threads, lambda some: run(*arguments, some), size=rows * count)


def _positions(op: Op) -> int:
    """How many an operation has."""
    if op.table is None or op.kind not in (PLACES, COUNTED):
        return sys.maxsize
    return len(op.table) - (op.layer + 1 if op.kind == COUNTED else 0)


def readable(state: KeyValueCache | SourceMemory) -> bool:
    """Whether the kernels can read these keys and values: (·, L, H, S, K)."""
    keys, values, lengths = state.keys, state.values, state.lengths
    return (
        keys.dtype == values.dtype
        and keys.dtype in NUMBERS
        and lengths.dtype == torch.int64
        and keys.device.type == lengths.device.type == "cpu"
        and keys.stride(-1) == 1
        and keys.stride() == values.stride()
        and lengths.is_contiguous()
    )


def _memory(state: KeyValueCache | SourceMemory, longest: int, sharing: int) -> _Memory:
    keys, values = state.keys, state.values
    origin = state.origin
    return _Memory(
        *(keys.data_ptr(), values.data_ptr(), NUMBERS[keys.dtype], *keys.stride()[:4]),
        *(state.lengths.data_ptr(), sharing, longest, pointer(origin)),
        *((0, 0) if origin is None else (*origin.stride(), 0)[:2]),
    )


def _read(op: Op) -> list[Tensor]:
    """The tensors of an operation.

    Raises:
        CannotRecord: one has another type.
    """
    numbers = [tensor for tensor in (op.gain, op.bias, op.table) if tensor is not None]
    if any(tensor.dtype != torch.float32 or not tensor.is_contiguous() for tensor in numbers):
        raise CannotRecord("numbers of another type")
    if op.matrix is not None:
        numbers += [x for x in (op.matrix.weight, op.matrix.scale) if x is not None]
    return numbers


def _matrix(op: Op) -> _Matrix | None:
    matrix = op.matrix
    if matrix is None:
        return None
    parts = (matrix.weight, matrix.scale, op.bias)
    return _Matrix(WEIGHTS[matrix.weight.dtype], *matrix.shape, *map(pointer, parts))


def _op(op: Op, matrix: _Matrix | None) -> _Op:
    table = op.matrix if op.table is None else op.table
    return _Op(
        *(op.kind, op.target, op.source, op.other),
        *(op.layer, op.heads, op.head_dim, op.activation),
        *(op.number, 0 if table is None else table.shape[0]),
        None if matrix is None else ctypes.addressof(matrix),
        *map(pointer, (op.gain, op.bias, op.table)),
    )
