"""What a decoder does, as a list of operations for the compiled kernels.

The list is found by running the model's own code once on symbols: the layers that it calls are
stood in for by others that write down what they would do. So the wiring stands in the model's file
alone. What cannot be written down so (an unknown layer, another arithmetic) has no program.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
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
    gelu,
    gelu_tanh,
    quick_gelu,
    relu_squared,
)
from regard.layers.norm import AddNorm
from regard.layers.panels import PANEL
from regard.layers.quantized import QuantizedEmbedding, QuantizedLinear, QuantizedMatrix
from regard.positions import LearnedPositions, SinusoidalPositions

# The numbers that programs.h gives them.
NORM, LINEAR, SELF, CROSS, ADD, LINES, TABLE, PLACES, SCALED = range(9)
COUNTED, FIRST, SELF_FIRST, BEFORE, AFTER, JOINED, STATE, KEEP = range(9, 17)
POSITIONS = LearnedPositions, SinusoidalPositions
ACTIVATION: dict[Any, int] = {
    ACTIVATIONS["linear"]: 0,
    F.relu: 1,
    gelu: 2,
    gelu_tanh: 3,
    quick_gelu: 4,
    F.silu: 5,
    relu_squared: 6,
    torch.tanh: 7,
    torch.sigmoid: 8,
}
ABSENT = -1


class CannotRecord(Exception):
    """A model does something that has no operation."""


@dataclass(frozen=True, eq=False)
class Op:
    """target = kind(source), and `other` is added: numbers of registers.

    matrix: of a product, with its bias, or of rows.  gain, bias: of a norm.  table: (N, D)
    float32 lines of ids or of positions.
    """

    kind: int
    target: int
    source: int = ABSENT
    other: int = ABSENT
    layer: int = 0
    heads: int = 0
    head_dim: int = 0
    activation: int = 0
    number: float = 0.0  # the scale of scores or of states, or the epsilon of a norm
    matrix: QuantizedMatrix | None = None
    gain: Tensor | None = None
    bias: Tensor | None = None
    table: Tensor | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells it from others: weights by who they are."""
        values = vars(self).values()
        return tuple(id(v) if isinstance(v, Tensor | QuantizedMatrix) else v for v in values)

    @property
    def reads(self) -> tuple[int, int]:
        return self.source, self.other


@dataclass(frozen=True)
class Recording:
    """Operations over registers of these widths; the first is what comes in and goes out."""

    ops: list[Op]
    widths: list[int]

    def same(self, other: Recording) -> bool:
        """Whether both do the same with the same weights."""
        if self.widths != other.widths or len(self.ops) != len(other.ops):
            return False
        pairs = zip(self.ops, other.ops, strict=True)
        return all(one.key == two.key for one, two in pairs)


def keeping(recording: Recording) -> Recording:
    """What of it is needed to fill a cache; nothing comes out.

    Raises:
        CannotRecord: it fills none.
    """
    places = [place for place, op in enumerate(recording.ops) if op.kind == SELF]
    if not places:
        raise CannotRecord("nothing that reads a cache")
    ops = recording.ops[: places[-1]]
    return Recording([*ops, replace(recording.ops[places[-1]], kind=KEEP)], recording.widths)


class Symbol:
    """What a register holds while a model is recorded. It can be added, and given to layers."""

    def __init__(self, recorder: Recorder, register: int):
        self.recorder, self.register = recorder, register

    @property
    def width(self) -> int:
        return self.recorder.widths[self.register]

    def __add__(self, other: Any) -> Symbol:
        recorder = self.recorder
        if not isinstance(other, Symbol):
            raise CannotRecord("something that is no hidden state is added")
        return recorder.write(ADD, self.width, self, other=recorder.register(other, self.width))

    def __mul__(self, other: Any) -> Symbol:
        if not isinstance(other, int | float):
            raise CannotRecord("something that is no number is multiplied with")
        return self.recorder.write(SCALED, self.width, self, number=float(other))

    def __getitem__(self, places: Any) -> Symbol:
        return self.recorder.chosen(self, places)


class Given:
    """What is passed on without a look: masks, a cache, a memory's keys and values."""

    def __add__(self, other: Any) -> Given:
        return Given()


class GivenTokens:
    """Of which only the size is asked."""

    def __init__(self) -> None:
        self.rows, self.count = Given(), Given()

    def size(self, dim: int) -> Given:
        return (self.rows, self.count)[dim]


class GivenMemory:
    """A memory of which a block passes on the parts."""

    def __init__(self) -> None:
        self.key, self.value, self.allowed = Given(), Given(), Given()


class StandIn:
    """In the place of a module: it is called, and may have further methods."""

    def __init__(self, call: Callable[..., Any], **methods: Callable[..., Any]):
        self._call = call
        self.__dict__ |= methods

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments)


@contextmanager
def symbols_alone() -> Iterator[None]:
    """What symbols cannot do raises `CannotRecord`."""
    try:
        yield
    except (AttributeError, TypeError) as error:
        raise CannotRecord(str(error)) from error


class Recorder:
    """Writes down what is done to hidden states, each time into a new register."""

    symbol = Symbol  # what it gives to layers

    def __init__(self, width: int):
        self.layer = 0
        self.ops: list[Op] = []
        self.widths = [width]
        self.allowed, self.remember, self.memory = Given(), Given(), GivenMemory()

    def of_blocks(self, blocks: Iterable[nn.Module], *, cross: bool) -> Recording:
        """Blocks one behind the other, with or without a memory.

        Raises:
            CannotRecord: one of them does something that has no operation.
        """
        return self.finished(self.blocks(blocks, Symbol(self, 0), cross=cross))

    def blocks(self, blocks: Iterable[nn.Module], hidden: Any, *, cross: bool) -> Any:
        """Blocks one behind the other."""
        width = self.widths[self.register(hidden)]
        for self.layer, block in enumerate(blocks):
            with symbols_alone():
                hidden = self.twin(block).forward(hidden, *self.given(cross))
            self.register(hidden, width)
        return hidden

    def given(self, cross: bool) -> tuple[Any, ...]:
        """What a block is given beside hidden states."""
        memory = (self.memory,) if cross else ()
        return self.allowed, *memory, self.remember

    def twin(self, module: nn.Module) -> Any:
        """It shares everything with the module but its parts, which stand-ins take the place of."""
        twin = copy.copy(module)
        twin.__dict__["_modules"] = {
            name: self.stand_in(part) for name, part in module.named_children()
        }
        return twin

    def write(self, kind: int, width: int, source: Any = None, **details: Any) -> Symbol:
        """One more operation, into a new register."""
        self.widths.append(width)
        target = len(self.widths) - 1
        read = ABSENT if source is None else self.register(source)
        self.ops.append(Op(kind, target, read, **{"layer": self.layer} | details))
        return self.symbol(self, target)

    def chosen(self, symbol: Symbol, places: Any) -> Symbol:
        """Some of the tokens: `symbol[places]`."""
        raise CannotRecord("tokens are chosen")

    def register(self, symbol: Any, width: int | None = None) -> int:
        """Where a symbol is held."""
        if not isinstance(symbol, Symbol) or symbol.recorder is not self:
            raise CannotRecord("a layer is given something that is no hidden state")
        if width not in (None, symbol.width):
            raise CannotRecord("hidden states of different widths meet")
        return symbol.register

    def finished(self, last: Any) -> Recording:
        """All of it; `last` is the result."""
        result = self.register(last)
        return _in_few_registers(_joined(self.ops, result), self.widths, result)

    # ---- layers

    def stand_in(self, module: nn.Module) -> StandIn:
        """For a part of what is recorded."""
        kinds: dict[type, Callable[..., Any]] = {
            nn.LayerNorm: self._norm,
            AddNorm: lambda norm, hidden, update: self._norm(norm, hidden + update),
            SelfAttention: self.self_attention,
            CrossAttention: self._cross_attention,
            FeedForward: self._feed,
            QuantizedLinear: self.linear,
            Dropout: lambda module, hidden: hidden,
        }
        known = kinds.get(type(module), self.unknown)
        return StandIn(lambda *arguments: known(module, *arguments))

    def unknown(self, module: nn.Module, *arguments: Any) -> Any:
        """What a layer gives that has no operation of its own."""
        raise CannotRecord(f"{type(module).__name__} is not known")

    def _norm(self, norm: nn.LayerNorm, hidden: Any) -> Symbol:
        width = self.widths[self.register(hidden)]
        if norm.normalized_shape != (width,) or norm.weight is None:
            raise CannotRecord("a norm of another kind")
        return self.write(NORM, width, hidden, number=norm.eps, gain=norm.weight, bias=norm.bias)

    def linear(self, linear: Any, x: Any, activation: int = 0) -> Symbol:
        """A layer with a `matrix` and a `bias`."""
        if not isinstance(getattr(linear, "matrix", None), QuantizedMatrix):
            raise CannotRecord("a matrix that is not quantized")
        lines, columns = linear.matrix.shape
        self.register(x, columns)
        parts = dict(activation=activation, matrix=linear.matrix, bias=linear.bias)
        return self.write(LINEAR, lines, x, **parts)

    def lines(self, linear: Any, first: int, end: int, x: Any) -> Symbol:
        """Those of the numbers that a layer would give."""
        matrix, bias = getattr(linear, "matrix", None), linear.bias
        if not isinstance(matrix, QuantizedMatrix) or first % PANEL or end % PANEL:
            raise CannotRecord("a matrix that cannot be cut")
        self.register(x, matrix.columns)
        cut = None if bias is None else bias[first:end]
        return self.write(LINEAR, end - first, x, matrix=matrix.part(first, end), bias=cut)

    def _feed(self, feed: FeedForward, hidden: Any) -> Symbol:
        if feed.activation not in ACTIVATION:
            raise CannotRecord("an activation that is not known")
        inner = self.linear(feed.inner, hidden, ACTIVATION[feed.activation])
        return self.linear(feed.outer, inner)

    def self_attention(
        self, attention: SelfAttention, hidden: Any, allowed: Any, remember: Any = None
    ) -> Symbol:
        """Of a layer on all tokens."""
        if allowed is not self.allowed or remember is not self.remember:
            raise CannotRecord("a mask or a cache of its own")
        joined = self.linear(attention.query_key_value, hidden)
        return self.attend(SELF, attention, joined, attention.score)

    def _cross_attention(
        self, attention: CrossAttention, hidden: Any, key: Any, value: Any, allowed: Any
    ) -> Symbol:
        memory = self.memory
        if (key, value, allowed) != (memory.key, memory.value, memory.allowed):
            raise CannotRecord("a memory of its own")
        return self.attend(CROSS, attention, self.linear(attention.query, hidden), Dot())

    def attend(
        self, kind: int, attention: Any, projected: Symbol, score: Any, other: int = ABSENT
    ) -> Symbol:
        """Heads that read, and their output."""
        if type(score) is not Dot or not attention.heads:
            raise CannotRecord("a score of another kind, or no heads")
        heads, head_dim = attention.heads, attention.head_dim
        scale = head_dim**-0.5 if score.scale is None else score.scale
        if scale <= 0:
            raise CannotRecord("a scale that turns scores around")
        sizes = dict(heads=heads, head_dim=head_dim, number=scale, other=other)
        context = self.write(kind, heads * head_dim, projected, **sizes)
        return self.linear(attention.output, context)


class InputRecorder(Recorder, ABC):
    """Of what begins with tokens: their embeddings, and those of their positions."""

    @abstractmethod
    def which(self, asked: Any) -> int:
        """The number of the ids that an embedding is asked for, as programs have it.

        Raises:
            CannotRecord: they are none of those that are given.
        """

    @abstractmethod
    def check_places(self, count: Any, start: Any) -> None:
        """Raises CannotRecord: `count` positions from `start` are not those of the tokens."""

    def stand_in(self, module: nn.Module) -> StandIn:
        """See `Recorder.stand_in`."""
        if isinstance(module, POSITIONS):
            return StandIn(partial(self.places, module))
        if isinstance(module, QuantizedEmbedding | nn.Embedding):
            return StandIn(partial(self._embedding, module))
        return super().stand_in(module)

    def places(self, positions: Any, count: Any, start: Any = 0) -> Symbol:
        """The vectors of positions."""
        self.check_places(count, start)
        table = readable_table(table_of(positions))
        return self.write(PLACES, table.size(1), table=table)

    def _embedding(self, embedding: Any, asked: Any) -> Symbol:
        which = self.which(asked)
        if isinstance(embedding, QuantizedEmbedding):
            return self.write(LINES, embedding.matrix.columns, matrix=embedding.matrix, heads=which)
        table = readable_table(embedding.weight)
        return self.write(TABLE, table.size(1), table=table, heads=which)


def table_of(positions: Any) -> Tensor:
    """The vectors of positions, (N, D)."""
    known = isinstance(positions, SinusoidalPositions)
    return positions.table if known else positions.vectors.weight


def readable_table(table: Tensor) -> Tensor:
    """The same, where kernels can read it.

    Raises:
        CannotRecord: they cannot.
    """
    if table.dtype != torch.float32 or not table.is_contiguous():
        raise CannotRecord("a table of other numbers")
    return table


class Recorded(nn.Module):
    """A part of a model that keeps what was recorded of it; None: it could not be."""

    programs: dict[Any, Any]

    def recorded(self, key: Any, record: Callable[[], Any]) -> Any:
        """What `record` gives, or gave before."""
        if key not in self.programs:
            try:
                self.programs[key] = record()
            except CannotRecord:
                self.programs[key] = None
        return self.programs[key]

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Weights that move have other addresses."""
        self.programs.clear()
        return super()._apply(fn, recurse)

    def _load_from_state_dict(self, *arguments: Any) -> None:
        """Weights may be given away for others."""
        self.programs.clear()
        super()._load_from_state_dict(*arguments)

    def __getstate__(self) -> dict[str, Any]:
        """Copies have weights of their own."""
        return self.__dict__ | {"programs": {}}


def _joined(ops: list[Op], last: int) -> list[Op]:
    """Sums that follow a product directly become part of it."""
    found: list[Op] = []
    for place, op in enumerate(ops):
        before = found[-1] if found else None
        later = {read for other in ops[place + 1 :] for read in other.reads} | {last}
        if (
            op.kind == ADD
            and before is not None
            and (before.kind, before.other) == (LINEAR, ABSENT)
            and before.target in op.reads
            and before.target not in later
            and op.source != op.other
        ):
            added = next(read for read in op.reads if read != before.target)
            found[-1] = replace(before, target=op.target, other=added)
        else:
            found.append(op)
    return found


def _in_few_registers(ops: list[Op], widths: list[int], last: int) -> Recording:
    """Registers whose numbers nobody reads any more are written again; the result is in the first.

    Raises:
        CannotRecord: the last product still reads what came in, or there is nothing.
    """
    end = ops[-1] if ops else None
    if end is None or end.target != last or (end.kind != ADD and 0 in end.reads):
        raise CannotRecord("a result in the middle")
    final = {read: place for place, op in enumerate(ops) for read in op.reads}
    here, packed = {ABSENT: ABSENT, 0: 0}, [widths[last]]
    free: dict[int, list[int]] = {}  # by width
    found = []
    for place, op in enumerate(ops):
        width = widths[op.target]
        spare = free.setdefault(width, [])
        if op is end:
            here[last] = 0
        elif spare:
            here[op.target] = spare.pop()
        else:
            here[op.target] = len(packed)
            packed.append(width)
        found.append(
            replace(op, target=here[op.target], source=here[op.source], other=here[op.other])
        )
        for read in {read for read in op.reads if read > 0 and final[read] == place}:
            free.setdefault(widths[read], []).append(here[read])
    return Recording(found, packed)
