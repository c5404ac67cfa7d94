"""A decoder's blocks as one list of operations for the compiled kernels.

The list is found by running each block's own `forward` once on symbols: the layers that it calls
are stood in for by others that write down what they would do. So the wiring stands in the model's
file alone. What cannot be written down so (an unknown layer, another arithmetic) has no program.
"""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.attention.multihead import CrossAttention, SelfAttention
from regard.attention.scores import Dot
from regard.layers.dropout import Dropout
from regard.layers.feedforward import (
    ACTIVATIONS,
    FeedForward,
    gelu_tanh,
    quick_gelu,
    relu_squared,
)
from regard.layers.quantized import NarrowLinear
from regard.native.products import WEIGHTS, pointer, threads_for
from regard.state import KeyValueCache, SourceMemory

# The numbers that kernels.cpp gives them.
NORM, LINEAR, SELF, CROSS, ADD = range(5)
ACTIVATION: dict[Any, int] = {
    ACTIVATIONS["linear"]: 0,
    F.relu: 1,
    F.gelu: 2,
    gelu_tanh: 3,
    quick_gelu: 4,
    F.silu: 5,
    relu_squared: 6,
    torch.tanh: 7,
    torch.sigmoid: 8,
}
NUMBERS = {torch.float32: 0, torch.float16: 1}  # keys and values
ABSENT = -1


class CannotRecord(Exception):
    """A block does something that has no operation."""


@dataclass(frozen=True)
class Op:
    """target = kind(source), and `other` is added: numbers of registers, 0 in and out."""

    kind: int
    target: int
    source: int
    other: int = ABSENT
    layer: int = 0
    heads: int = 0
    head_dim: int = 0
    activation: int = 0
    number: float = 0.0  # the scale of scores, or the epsilon of a norm
    linear: NarrowLinear | None = None
    norm: nn.LayerNorm | None = None

    @property
    def reads(self) -> tuple[int, int]:
        return self.source, self.other


class Symbol:
    """What a register holds while a block is recorded. It can be added, and given to layers."""

    def __init__(self, recorder: Recorder, register: int):
        self.recorder, self.register = recorder, register

    def __add__(self, other: Any) -> Symbol:
        recorder = self.recorder
        if not isinstance(other, Symbol):
            raise CannotRecord("something that is no hidden state is added")
        width = recorder.widths[self.register]
        return recorder.write(ADD, self, width, other=recorder.register(other, width))


class Given:
    """What a block passes on without looking: masks, a cache, a memory's keys and values."""


class GivenMemory:
    """A memory of which a block passes on the parts."""

    def __init__(self) -> None:
        self.key, self.value, self.allowed = Given(), Given(), Given()


class Recorder:
    """Writes down what one block does to hidden states."""

    def __init__(self, layer: int, width: int):
        self.layer = layer
        self.ops: list[Op] = []
        self.widths = [width]
        self.allowed, self.remember, self.memory = Given(), Given(), GivenMemory()

    def record(self, block: nn.Module, cross: bool) -> list[Op]:
        """The operations of a block, with or without a memory.

        Raises:
            CannotRecord: it does something else.
        """
        twin = copy.copy(block)  # shares everything with the block but the table of its layers
        twin.__dict__["_modules"] = {
            name: self._stand_in(module) for name, module in block.named_children()
        }
        try:
            out = twin.forward(Symbol(self, 0), *self.given(cross))
        except (AttributeError, TypeError) as error:  # what symbols cannot do
            raise CannotRecord(str(error)) from error
        return self._ending_in_zero(self._joined(self.register(out, self.widths[0])))

    def given(self, cross: bool) -> tuple[Any, ...]:
        """What a block is given beside hidden states."""
        memory = (self.memory,) if cross else ()
        return self.allowed, *memory, self.remember

    def write(self, kind: int, source: Any, width: int, **details: Any) -> Symbol:
        """One more operation, into a new register."""
        self.widths.append(width)
        target = len(self.widths) - 1
        read = self.register(source)
        self.ops.append(Op(kind, target, read, layer=self.layer, **details))
        return Symbol(self, target)

    def register(self, symbol: Any, width: int | None = None) -> int:
        """Where a symbol is held."""
        if not isinstance(symbol, Symbol) or symbol.recorder is not self:
            raise CannotRecord("a layer is given something that is no hidden state")
        if width not in (None, self.widths[symbol.register]):
            raise CannotRecord("hidden states of different widths meet")
        return symbol.register

    # ---- layers

    def _stand_in(self, module: nn.Module) -> Callable[..., Any]:
        kinds: dict[type, Callable[..., Any]] = {
            nn.LayerNorm: self._norm,
            SelfAttention: self._self_attention,
            CrossAttention: self._cross_attention,
            FeedForward: self._feed,
            NarrowLinear: self._linear,
            Dropout: lambda module, hidden: hidden,
        }
        known = kinds.get(type(module))
        if known is None:
            raise CannotRecord(f"{type(module).__name__} is not known")
        return lambda *arguments: known(module, *arguments)

    def _norm(self, norm: nn.LayerNorm, hidden: Any) -> Symbol:
        width = self.widths[self.register(hidden)]
        if norm.normalized_shape != (width,) or norm.weight is None:
            raise CannotRecord("a norm of another kind")
        return self.write(NORM, hidden, width, number=norm.eps, norm=norm)

    def _linear(self, linear: Any, x: Any, activation: int = 0) -> Symbol:
        if not isinstance(linear, NarrowLinear):
            raise CannotRecord("a matrix that is not narrow")
        lines, columns = linear.matrix.shape
        self.register(x, columns)
        return self.write(LINEAR, x, lines, activation=activation, linear=linear)

    def _feed(self, feed: FeedForward, hidden: Any) -> Symbol:
        if feed.activation not in ACTIVATION:
            raise CannotRecord("an activation that is not known")
        inner = self._linear(feed.inner, hidden, ACTIVATION[feed.activation])
        return self._linear(feed.outer, inner)

    def _self_attention(
        self, attention: SelfAttention, hidden: Any, allowed: Any, remember: Any = None
    ) -> Symbol:
        if allowed is not self.allowed or remember is not self.remember:
            raise CannotRecord("a mask or a cache of its own")
        joined = self._linear(attention.query_key_value, hidden)
        return self._attend(SELF, attention, joined, attention.score)

    def _cross_attention(
        self, attention: CrossAttention, hidden: Any, key: Any, value: Any, allowed: Any
    ) -> Symbol:
        memory = self.memory
        if (key, value, allowed) != (memory.key, memory.value, memory.allowed):
            raise CannotRecord("a memory of its own")
        return self._attend(CROSS, attention, self._linear(attention.query, hidden), Dot())

    def _attend(self, kind: int, attention: Any, projected: Symbol, score: Any) -> Symbol:
        if type(score) is not Dot or not attention.heads:
            raise CannotRecord("a score of another kind, or no heads")
        heads, head_dim = attention.heads, attention.head_dim
        scale = head_dim**-0.5 if score.scale is None else score.scale
        if scale <= 0:
            raise CannotRecord("a scale that turns scores around")
        sizes = dict(heads=heads, head_dim=head_dim, number=scale)
        return self._linear(
            attention.output, self.write(kind, projected, heads * head_dim, **sizes)
        )

    # ---- fewer operations

    def _joined(self, last: int) -> tuple[list[Op], int]:
        """Sums that follow a product directly become part of it."""
        found: list[Op] = []
        for place, op in enumerate(self.ops):
            before = found[-1] if found else None
            later = {read for other in self.ops[place + 1 :] for read in other.reads} | {last}
            if (
                op.kind == ADD
                and before is not None
                and (before.kind, before.other) == (LINEAR, ABSENT)
                and before.target in op.reads
                and before.target not in later
                and op.source != op.other
                and 0 not in op.reads[op.target != last :]
            ):
                added = next(read for read in op.reads if read != before.target)
                found[-1] = replace(before, target=op.target, other=added)
            else:
                found.append(op)
        return found, last

    def _ending_in_zero(self, recorded: tuple[list[Op], int]) -> list[Op]:
        """The result goes where the hidden states came from, so that blocks follow each other."""
        ops, last = recorded
        end = ops[-1] if ops else None
        if end is None or end.target != last or (end.kind == LINEAR and 0 in end.reads):
            raise CannotRecord("a result in the middle")
        return [*ops[:-1], replace(end, target=0)]


# ------------------------------------------------------------------------ for the kernels


class _Matrix(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("weights", "n", "k")),
        *((name, ctypes.c_void_p) for name in ("data", "scale", "bias")),
    ]


class _Op(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in ("kind", "target", "source", "other")),
        *((name, ctypes.c_int32) for name in ("layer", "heads", "head_dim", "activation")),
        *((name, ctypes.c_float) for name in ("number", "unused")),
        *((name, ctypes.c_void_p) for name in ("matrix", "gain", "bias")),
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


class _Program(ctypes.Structure):
    _fields_ = [
        ("ops", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("widths", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("registers", "widest")),
    ]


class Program:
    """Blocks that run in one call, for a token of each row or several.

    It keeps the addresses of the weights: where these are moved, a new program is needed.

    Raises:
        CannotRecord: a block does something that has no operation.
    """

    recorder: type[Recorder] = Recorder

    def __init__(self, blocks: Iterable[nn.Module], width: int, *, cross: bool):
        places: dict[tuple[int, int], int] = {(0, width): 0}  # registers that blocks share
        ops: list[Op] = []
        for layer, block in enumerate(blocks):
            recorder = self.recorder(layer, width)
            here: dict[int, int] = {ABSENT: ABSENT}
            recorded = recorder.record(block, cross)
            for register, wide in enumerate(recorder.widths):
                here[register] = places.setdefault((register, wide), len(places))
            ops += (_moved(op, here) for op in recorded)
        linears = [op.linear for op in ops if op.linear is not None]
        self.width = width
        self._kept = [_matrix(linear) for linear in linears]
        self._ops = _as_array(ops, self._kept)
        self._widths = (ctypes.c_int64 * len(places))(*(wide for _, wide in places))
        widest = max((linear.matrix.columns for linear in linears), default=0)
        self._program = _Program(
            ctypes.addressof(self._ops),
            len(ops),
            ctypes.addressof(self._widths),
            len(places),
            widest,
        )
        self._layers = linears, [op.norm for op in ops]  # so that the addresses stay theirs
        work = sum(linear.matrix.weight.numel() for linear in linears)
        self._work = work // max(len(linears), 1)

    def run(
        self, library: Any, hidden: Tensor, cache: KeyValueCache, source: SourceMemory | None
    ) -> Tensor:
        """(R, T, D) -> (R, T, D); keys and values go into the cache."""
        rows, count = hidden.shape[:2]
        out = hidden.clone(memory_format=torch.contiguous_format)
        if not out.numel():
            return out
        read = None
        if source is not None:
            read = _memory(source, source.keys.size(3), rows // source.lengths.size(0))
        library.regard_run(
            ctypes.byref(self._program),
            out.data_ptr(),
            rows,
            count,
            ctypes.byref(_memory(cache, cache.longest, 1)),
            None if read is None else ctypes.byref(read),
            threads_for(rows * count * self._work),
        )
        return out


def recorded(blocks: Iterable[nn.Module], width: int, *, cross: bool) -> Program | None:
    """The program of these blocks; None where they have none."""
    try:
        return Program(blocks, width, cross=cross)
    except CannotRecord:
        return None


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


def _moved(op: Op, here: dict[int, int]) -> Op:
    return replace(op, target=here[op.target], source=here[op.source], other=here[op.other])


def _matrix(linear: NarrowLinear) -> _Matrix:
    matrix = linear.matrix
    parts = (matrix.weight, matrix.scale, linear.bias)
    return _Matrix(WEIGHTS[matrix.weight.dtype], *matrix.shape, *map(pointer, parts))


def _as_array(ops: list[Op], matrices: list[_Matrix]) -> Any:
    array = (_Op * len(ops))()
    left = iter(matrices)
    for place, op in enumerate(ops):
        norm = op.norm
        array[place] = _Op(
            *(op.kind, op.target, op.source, op.other),
            *(op.layer, op.heads, op.head_dim, op.activation),
            *(op.number, 0.0),
            None if op.linear is None else ctypes.addressof(next(left)),
            None if norm is None else pointer(norm.weight),
            None if norm is None else pointer(norm.bias),
        )
    return array
