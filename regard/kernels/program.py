"""Operations over registers, in the form that the kernels run, and the programs of a model."""

from __future__ import annotations

import ctypes
import operator
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.cache import PAGE, KeyValueCache, PagedCache, SourceMemory
from regard.attention.capture import captured_or_gated
from regard.errors import RegardError, warn
from regard.kernels import build, signatures
from regard.kernels.products import WORK_PER_THREAD, packed_matrix, threads_for
from regard.kernels.signatures import BeamsStruct
from regard.kernels.tensors import (
    address,
    contiguous,
    is_contiguous,
    is_cpu_strided,
    optional_address,
    raw_address,
    strided_address,
)
from regard.kernels.tracer import CannotCompile, require
from regard.layers.quantized import QuantizedMatrix
from regard.models.protocols import Model, SearchPlan, SearchResults

Kind = IntEnum(  # of operations, in the order of programs.h
    "Kind",
    "NORM LINEAR SELF CROSS ADD EMBEDDING TABLE POSITIONS SCALE TOKEN_POSITIONS FIRST_TOKEN "
    "SELF_FIRST_TOKEN READ_STATE WRITE_STATE CONCAT CELL CACHE_ONLY RMS_NORM GATED GROUPED",
    start=0,
)
ABSENT = -1


@dataclass(frozen=True, eq=False)
class Op:
    """target = kind(source), and `other` is added: numbers of registers.

    matrix: of a product, with its bias, or of an embedding.  gain, bias: of a norm.
    table: (N, D) float32, of ids or of positions; of self-attention (H, 2 N - 1), what is added to
        the scores of keys N - 1 positions before the query, ..., at it, ..., N - 1 behind it; of
        GROUPED (N, K), the cosines and sines of positions.
    number: the scale of scores or of states, or the epsilon of a norm.
    window: of self-attention, how many positions a token sees, its own included; 0: all.
    """

    kind: int
    target: int
    source: int = ABSENT
    other: int = ABSENT
    layer: int = 0
    heads: int = 0
    head_dim: int = 0
    activation: int = 0
    number: float = 0.0
    window: int = 0
    matrix: QuantizedMatrix | None = None
    gain: Tensor | None = None
    bias: Tensor | None = None
    table: Tensor | None = None

    @property
    def reads(self) -> tuple[int, int]:
        return self.source, self.other


@dataclass(frozen=True)
class OpList:
    """Operations over registers of these widths; the first is what comes in and goes out."""

    ops: list[Op]
    widths: list[int]

    def cache_only(self) -> OpList:
        """What of it fills a cache; no hidden states come out.

        Raises:
            CannotCompile: it fills none.
        """
        at = [number for number, op in enumerate(self.ops) if op.kind in (Kind.SELF, Kind.GROUPED)]
        require(at, "a model without self-attention has no cache to fill")
        last = replace(self.ops[at[-1]], kind=Kind.CACHE_ONLY)
        return OpList([*self.ops[: at[-1]], last], self.widths)


def fuse_additions(ops: list[Op], last: int) -> list[Op]:
    """Additions that follow a product directly become part of it."""
    fused: list[Op] = []
    for at, op in enumerate(ops):
        before = fused[-1] if fused else None
        later = {register for other in ops[at + 1 :] for register in other.reads} | {last}
        if (
            op.kind == Kind.ADD
            and before is not None
            and (before.kind, before.other) == (Kind.LINEAR, ABSENT)
            and before.target in op.reads
            and before.target not in later
            and op.source != op.other
        ):
            added = next(register for register in op.reads if register != before.target)
            fused[-1] = replace(before, target=op.target, other=added)
        else:
            fused.append(op)
    return fused


def allocate_registers(ops: list[Op], widths: list[int], last: int) -> OpList:
    """Reuse registers that are not read any more; the result is in the first.

    Raises:
        CannotCompile: the last product still reads what came in, or there is nothing.
    """
    end = ops[-1] if ops else None
    fits = end and end.target == last and (end.kind == Kind.ADD or 0 not in end.reads)
    require(fits, "the result must be that of the last layer")
    final = {register: at for at, op in enumerate(ops) for register in op.reads}
    register_of, packed = {ABSENT: ABSENT, 0: 0}, [widths[last]]
    free: dict[int, list[int]] = {}  # by width
    allocated = []
    for at, op in enumerate(ops):
        width = widths[op.target]
        spare = free.setdefault(width, [])
        if op is end:
            register_of[last] = 0
        elif spare:
            register_of[op.target] = spare.pop()
        else:
            register_of[op.target] = len(packed)
            packed.append(width)
        allocated.append(
            replace(
                op,
                target=register_of[op.target],
                source=register_of[op.source],
                other=register_of[op.other],
            )
        )
        for register in {
            register for register in op.reads if register > 0 and final[register] == at
        }:
            free.setdefault(widths[register], []).append(register_of[register])
    return OpList(allocated, packed)


# The stopping rules, as beams.h numbers them.
RULES = {True: 0, False: 1, "never": 2}


class SearchResult:
    """The finished hypotheses of A sentences, best first; those behind `counts` are undefined.

    counts: (A,).  scores, log_probs: (A, size) float64.  ended: (A, size) whether with an end.
    lengths: (A, size).  tokens: (A, size, max_tokens).
    """

    def __init__(self, plan: SearchPlan):
        rows, integer = (plan.limits.numel(), plan.size), torch.int64
        self.counts = torch.empty(rows[0], dtype=integer)
        self.scores, self.log_probs = torch.empty(2, *rows, dtype=torch.float64)
        self.ended, self.lengths = torch.empty(2, *rows, dtype=integer)
        self.tokens = torch.empty(*rows, plan.longest, dtype=integer)

    def rows(self, count: int) -> SearchResults:
        """The best `count` of each sentence, or fewer if fewer are finished."""
        scores, log_probs, lengths = (
            part[:, :count].tolist() for part in (self.scores, self.log_probs, self.lengths)
        )
        ended, tokens = (self.ended[:, :count] > 0).tolist(), self.tokens[:, :count].tolist()
        return [
            [
                (tokens[row][at][: lengths[row][at]], scores[row][at], log_probs[row][at], end)
                for at, end in enumerate(ended[row][:finished])
            ]
            for row, finished in enumerate(self.counts.tolist())
        ]


def search(
    plan: SearchPlan, vocab_size: int, work: int, call: Callable[[Any], int]
) -> SearchResult | None:
    """The search, or None where it cannot be done in one call.

    work: multiplications of a row in a step.  call: makes the compiled call with the address of the
    options; returns whether the search was completed.
    """
    if not plan.limits.numel() or plan.longest < 1 or plan.early_stopping not in RULES:
        return None
    result, max_tokens, double = SearchResult(plan), plan.longest, torch.float64
    lengths = range(1, max_tokens + 2)
    penalties = torch.tensor([1.0, *(plan.penalty(n) for n in lengths)], dtype=double)
    bounds = torch.tensor([1.0, *(plan.penalty(float(n)) for n in lengths)], dtype=double)
    limits = contiguous(plan.limits)
    limit_penalties = contiguous(plan.penalty(plan.limits.double()))
    eos, forbidden = (torch.tensor(ids, dtype=torch.int64) for ids in (plan.eos, plan.forbidden))
    beams = BeamsStruct(
        *(limits.numel(), plan.size, plan.n_best, plan.count, RULES[plan.early_stopping]),
        *(plan.bits(plan.size, vocab_size), plan.bits(1, vocab_size), max_tokens),
        *(eos.numel(), forbidden.numel(), plan.normalized, plan.forced),
        *map(raw_address, (eos, forbidden)),
        address("limits", limits, torch.int64, (limits.numel(),)),
        *map(raw_address, (penalties, bounds)),
        address("limit_penalties", limit_penalties, double, (limits.numel(),)),
        *(work, torch.get_num_threads(), WORK_PER_THREAD),
        *map(raw_address, vars(result).values()),  # in the order of beams.h
    )
    return result if call(ctypes.byref(beams)) else None


NUMBERS = {torch.float32: 0, torch.float16: 1}  # keys and values
ALL_BITS = -1  # of a position: it is the same in its slot


class Program:
    """What a model's method does, in one call for a token of each row or several.

    It keeps the addresses of the weights: where these are moved, a new program is needed.

    Raises:
        CannotCompile: some numbers are not those that the kernels read.
    """

    def __init__(self, listed: OpList):
        ops, widths = listed.ops, listed.widths
        self._tensors = [tensor.detach() for op in ops for tensor in _read(op)]
        self.width = widths[0]  # of what comes out
        self.end = min(map(_positions, ops), default=sys.maxsize)
        self._matrices = [_matrix(op) for op in ops]
        self._ops = (signatures.OpStruct * len(ops))(*map(_op, ops, self._matrices))
        self._widths = (ctypes.c_int64 * len(widths))(*widths)
        linears = [op.matrix for op in ops if op.kind == Kind.LINEAR and op.matrix is not None]
        self._parts = sum(op.kind == Kind.WRITE_STATE for op in ops)  # of a recurrent state
        self._program = signatures.ProgramStruct(
            ctypes.addressof(self._ops),
            len(ops),
            ctypes.addressof(self._widths),
            len(widths),
            max((matrix.in_features for matrix in linears), default=0),
        )
        self._address = ctypes.addressof(self._program)
        work = sum(matrix.weight.numel() for matrix in linears)
        self._work = work // max(len(linears), 1)
        last = ops[-1]
        self._scores = (last.kind, last.other, last.activation) == (Kind.LINEAR, ABSENT, 0)

    def step(
        self,
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
        if out.numel() and self._run(out, tokens, cache, source, parts):
            raise IndexError("a token is not in the vocabulary")
        return out

    def search(
        self,
        tokens: Tensor,
        cache: KeyValueCache,
        source: SourceMemory,
        plan: SearchPlan,
    ) -> SearchResults | None:
        """A search from the first tokens (A, 1) on; None where that cannot be done in one call. The
        cache tells the size of keys and values, and stays as it is.
        """
        if not self._scores or self.width < plan.count or self.end < plan.longest:
            return None
        _, layers, heads, _, width = cache.keys.shape
        memory, sizes = _memory(source, source.keys.size(3), 1), (layers, heads, width)
        first = address("tokens", tokens, torch.int64, (plan.limits.numel(), 1))

        def call(options: Any) -> int:
            arguments = (self._address, options, first, ctypes.byref(memory))
            return build.library().regard_beams(*arguments, NUMBERS[cache.keys.dtype], *sizes)

        result = search(plan, self.width, self._work, call)
        return None if result is None else result.rows(plan.n_best)

    def _run(
        self,
        out: Tensor,
        tokens: Tensor,
        cache: KeyValueCache | None,
        source: SourceMemory | None,
        parts: Any,
    ) -> int:
        rows, count, _ = out.shape
        if (0 if parts is None else len(parts)) != self._parts:
            raise RegardError(f"`parts` must be {self._parts} parts of a recurrent state.")
        memory = None
        if source is not None:
            sentences = source.lengths.size(0)
            memory = _memory(source, source.keys.size(3), rows // max(1, sentences))
        arguments = (
            *(self._address, raw_address(out)),
            *(address("tokens", tokens, torch.int64, (rows, count)), rows, count),
            None if cache is None else ctypes.byref(_memory(cache, cache.longest, 1)),
            None if memory is None else ctypes.byref(memory),
            parts,
        )
        return build.library().regard_run(*arguments, threads_for(rows * count * self._work))


def _positions(op: Op) -> int:
    """How many positions the table of an operation has."""
    rotates = op.kind == Kind.GROUPED or (op.kind == Kind.CACHE_ONLY and op.other != ABSENT)
    if op.table is None or not (rotates or op.kind in (Kind.POSITIONS, Kind.TOKEN_POSITIONS)):
        return sys.maxsize
    return len(op.table) - (op.layer + 1 if op.kind == Kind.TOKEN_POSITIONS else 0)


def readable(state: KeyValueCache | SourceMemory) -> bool:
    """Whether the kernels can read these keys and values: (·, L, H, S, K)."""
    keys, values, lengths = state.keys, state.values, state.lengths
    table = state.pages if isinstance(state, PagedCache) else state.origin
    kind, strides = keys.dtype, keys.stride()
    return (
        kind in NUMBERS
        and values.dtype is kind
        and lengths.dtype is torch.int64
        and keys.is_cpu
        and values.is_cpu
        and lengths.is_cpu
        and len(strides) == 5
        and strides[4] == 1
        and values.stride() == strides
        and values.shape == keys.shape
        and lengths.dim() == 1
        and lengths.is_contiguous()
        and (table is None or is_cpu_strided(table, torch.int64))
    )


def _memory(
    state: KeyValueCache | SourceMemory, longest: int, sharing: int
) -> signatures.MemoryStruct:
    """What is `readable` as kernels take it, which look at `lengths` and `origin` themselves: who
    calls a program has asked for that, since others may go on without one.
    """
    keys, rows = state.keys, state.lengths.size(0)
    slots, layers, heads, capacity, width = keys.shape
    mapping: tuple[Any, ...] = (None, 0, 0, 0, ALL_BITS)
    if isinstance(state, PagedCache):
        pages = state.pages
        at = strided_address("pages", pages, torch.int64, (rows, pages.size(1)))
        mapping = at, *pages.stride(), PAGE.bit_length() - 1, PAGE - 1
        capacity = PAGE * pages.size(1)
    elif (origin := state.origin) is not None:  # of each position of a cache, or of a whole source
        table = (rows, capacity) if isinstance(state, KeyValueCache) else (rows,)
        at = strided_address("origin", origin, torch.int64, table)
        mapping = at, *(*origin.stride(), 0)[:2], 0, ALL_BITS
    return signatures.MemoryStruct(
        *(raw_address(keys), raw_address(state.values), NUMBERS[keys.dtype], *keys.stride()[:4]),
        *(raw_address(state.lengths), sharing, longest, *mapping),
        *(rows, slots, layers, heads, capacity, width),
    )


def _read(op: Op) -> list[Tensor]:
    """The tensors of an operation.

    Raises:
        CannotCompile: one has another type.
    """
    numbers = [tensor for tensor in (op.gain, op.bias, op.table) if tensor is not None]
    fits = all(is_cpu_strided(tensor) and is_contiguous(tensor) for tensor in numbers)
    require(fits, "weights must be contiguous, in float32, on a CPU")
    if op.matrix is not None:
        numbers += [x for x in (op.matrix.weight, op.matrix.scale) if x is not None]
    return numbers


def _matrix(op: Op) -> signatures.MatrixStruct | None:
    matrix = op.matrix
    if matrix is None:
        return None
    bias = optional_address("bias", op.bias, torch.float32, (matrix.out_features,))
    return signatures.MatrixStruct(*packed_matrix(matrix.weight, matrix.scale, matrix.shape), bias)


def _op(op: Op, matrix: signatures.MatrixStruct | None) -> signatures.OpStruct:
    table = op.matrix if op.table is None else op.table
    rows = 0 if table is None else table.shape[1 if op.kind == Kind.SELF else 0]
    parts = (("gain", op.gain), ("bias", op.bias), ("table", op.table))
    addresses = (None if x is None else address(n, x, torch.float32, x.shape) for n, x in parts)
    return signatures.OpStruct(
        *(op.kind, op.target, op.source, op.other),
        *(op.layer, op.heads, op.head_dim, op.activation),
        *(op.number, rows, op.window, 0),
        None if matrix is None else ctypes.addressof(matrix),
        *addresses,
    )


CLOSE = 0.1  # of the norm of what the plain form gives: rounding to 8 bits stays far below


class Programs:
    """Those of one model, by what they were made for; None where there is none.

    They hold the addresses of the weights. Where the model has other weights or other parts now,
    they are made again.
    """

    def __init__(self, model: Model):
        self.name = type(model).__name__
        self._made: dict[Any, Program | None] = {}
        self._owners: list[dict[str, Any]] = []
        self._names: list[str] = []
        self._parts: list[Any] = []
        self._lock = threading.RLock()  # batches may be computed at the same time

    def of(
        self,
        model: Model,
        key: Any,
        make: Callable[[], Program],
        agrees: Callable[[Program], bool],
    ) -> Program | None:
        """The program for a key, made and compared with the plain form where it is the first."""
        with self._lock:
            if not all(map(operator.is_, map(dict.get, self._owners, self._names), self._parts)):
                self._made.clear()
            if key not in self._made:
                if not self._made:
                    self._remember(model)
                self._made[key] = self._compiled(make)
                self._compare(key, agrees)
            return self._made[key]

    def _compare(self, key: Any, agrees: Callable[[Program], bool]) -> None:
        """Remove a new program that does not agree with the plain form."""
        program = self._made[key]
        try:
            if program is not None and not agrees(program):
                self._made[key] = None
                self._warn("The compiled form does not agree with the model; please report this.")
        except BaseException:  # of the model, such as for a token that it does not have
            del self._made[key]
            raise

    def _compiled(self, make: Callable[[], Program]) -> Program | None:
        try:
            return make()
        except CannotCompile as error:
            self._warn(str(error))
            return None

    def _warn(self, reason: str) -> None:
        warn(f"{self.name} is not compiled and takes longer. {reason}")

    def _remember(self, model: Model) -> None:
        assert isinstance(model, nn.Module)  # see `fits`
        entries: list[tuple[Any, str, Any]] = [
            (owner, name, part)
            for module in model.modules()
            for owner in (module._parameters, module._buffers, module._modules)
            for name, part in owner.items()
        ]
        self._owners = [owner for owner, _, _ in entries]
        self._names = [name for _, name, _ in entries]
        self._parts = [part for _, _, part in entries]


_programs: weakref.WeakKeyDictionary[Model, Programs] = weakref.WeakKeyDictionary()


def programs_of(model: Model) -> Programs:
    """Those of this model."""
    if model not in _programs:
        _programs[model] = Programs(model)
    return _programs[model]


def fits(model: object) -> bool:
    """Whether kernels are loaded, and the weights of a model are those that they read."""
    if not isinstance(model, nn.Module) or not build.available():
        return False
    return any(isinstance(part, QuantizedMatrix) for part in model.modules())


def wants_results_alone(model: Model) -> bool:
    """Whether nothing but results is wanted of a model: no gradients, no capture, no gates."""
    return (
        not model.training
        and not captured_or_gated()
        and not torch.is_autocast_enabled("cpu")
        and build.kernels() is not None
    )


def agree(results: Tensor, expected: Tensor) -> bool:
    """Whether two forms give the same up to the rounding of quantized numbers."""
    finite = expected.isfinite()
    if not torch.equal(finite, results.isfinite()):
        return False
    results, expected = results[finite].double(), expected[finite].double()
    return bool((results - expected).norm() <= CLOSE * expected.norm() + 1e-6)
