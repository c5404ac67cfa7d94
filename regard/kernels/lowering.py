"""From the graph of a method to a list of operations.

Each node of the graph has a value: a register of the program, or a symbol such as a mask, of which
only its identity matters. `regard.kernels.leaves` says what each layer becomes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeGuard

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from regard.attention.attend import Dot
from regard.attention.cache import KeyValueCache, SourceMemory
from regard.attention.relative import RelativeBias
from regard.kernels.tracer import (
    ADVANCED,
    CACHE,
    COUNT,
    INPUTS,
    MASK,
    NOTHING,
    SOURCE,
    SOURCE_MASK,
    SUBSET,
    Built,
    CannotCompile,
    Register,
    Symbol,
    needed_for,
    require,
    where_of,
)
from regard.layers.feedforward import (
    ACTIVATIONS,
    gelu,
    gelu_tanh,
    quick_gelu,
    relu_squared,
)
from regard.layers.positions import RobertaPositions, SinusoidalPositions
from regard.layers.quantized import (
    QuantizedLinear,
    QuantizedMatrix,
)
from regard.state import State

MAX_DISTANCES = 2**14  # of which a table has the biases, for each head


def table_of(positions: Any) -> Tensor:
    """The vectors of positions, (N, D), from the first; of RoBERTa's, those of padding, too."""
    if isinstance(positions, SinusoidalPositions):
        return positions.table
    weight: Tensor = positions.vectors.weight
    counted = isinstance(positions, RobertaPositions)
    return weight if counted else weight[positions.offset :]


def readable_table(table: Tensor) -> Tensor:
    """The same, where kernels can read it.

    Raises:
        CannotCompile: they cannot.
    """
    fits = table.dtype == torch.float32 and table.is_contiguous()
    require(fits, "a table of embeddings or positions must be contiguous, in float32")
    return table


def bias_table(bias: RelativeBias, heads: Sequence[int], scale: float) -> Tensor:
    """What is added to the scores of these heads before they are scaled, by distance: (H, 2 N - 1);
    from N - 1 positions on the biases on a side are equal. See `Op.table`.

    Raises:
        CannotCompile: too many distances have a bias of their own.
    """
    limit = bias.max_distance
    require(limit <= MAX_DISTANCES, f"more than {MAX_DISTANCES:,} distances with a bias")
    with torch.no_grad():
        biases = bias.by_distance(torch.arange(limit, -limit - 1, -1))  # (2 N - 1, H)
    return readable_table((biases[:, list(heads)].t() / scale).contiguous())


# The numbers that programs.h gives them.
NORM, LINEAR, SELF, CROSS, ADD, EMBEDDING, TABLE, POSITIONS, SCALE = range(9)
TOKEN_POSITIONS, FIRST_TOKEN, SELF_FIRST_TOKEN = range(9, 12)
READ_STATE, WRITE_STATE, CONCAT, CELL, CACHE_ONLY = range(12, 17)
RMS_NORM, GATED, GROUPED = range(17, 20)
RNN_CELL, GRU_CELL, LSTM_CELL, LSTM_HIDDEN = range(4)  # of CELL, as cells.h has them
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
        at = [number for number, op in enumerate(self.ops) if op.kind in (SELF, GROUPED)]
        require(at, "a model without self-attention has no cache to fill")
        last = replace(self.ops[at[-1]], kind=CACHE_ONLY)
        return OpList([*self.ops[: at[-1]], last], self.widths)


def fuse_additions(ops: list[Op], last: int) -> list[Op]:
    """Additions that follow a product directly become part of it."""
    fused: list[Op] = []
    for at, op in enumerate(ops):
        before = fused[-1] if fused else None
        later = {register for other in ops[at + 1 :] for register in other.reads} | {last}
        if (
            op.kind == ADD
            and before is not None
            and (before.kind, before.other) == (LINEAR, ABSENT)
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
    fits = end and end.target == last and (end.kind == ADD or 0 not in end.reads)
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


ONE_LAYER = "a state may be indexed by one layer alone, as in `[:, layer]`"
NOT_QUANTIZED = "the weights of a matrix product must be quantized"
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


class Lowering:
    """Of one graph.

    Args:
        model: whose method it is of.
        leaves: what each layer becomes.
    """

    def __init__(self, model: nn.Module, leaves: Mapping[type, Callable[..., Any]]):
        self.model, self.leaves = model, leaves
        self.modules = dict(model.named_modules())
        self.ops: list[Op] = []
        self.widths = [0]
        self.values: dict[fx.Node, Any] = {}
        self.parts = 0  # of a recurrent state

    def lowered(self, graph: fx.Graph, result: fx.Node | None = None) -> Any:
        """The value of a node, or of the graph's output.

        Raises:
            CannotCompile: something has no operation; the message says where.
        """
        target = list(graph.nodes)[-1] if result is None else result
        needed = needed_for(target)
        for node in graph.nodes:
            if node in needed or node.op == "placeholder":
                try:
                    self.values[node] = self._value(node)
                except CannotCompile as error:
                    raise CannotCompile(error.reason, where_of(node)) from None
                except (AttributeError, TypeError, IndexError, ValueError) as error:
                    raise CannotCompile(str(error), where_of(node)) from error
        return self.values[target]

    def finished(self, result: Any) -> OpList:
        """All operations; `result` is what goes out."""
        last = self.register(result)
        return allocate_registers(fuse_additions(self.ops, last), self.widths, last)

    def step(self, graph: fx.Graph, state: State) -> OpList:
        """The operations of a method that reads tokens behind a state: scores, or hidden states.

        Raises:
            CannotCompile: something has no operation, or the next state is not as expected.
        """
        output = self.lowered(graph)
        if isinstance(output, Built):  # an `Output`
            output = output.values["hidden"], output.values["state"]
        result, after = output
        parts = list(registers_of(after))
        fits = _follows(after, state) and len(parts) == self.parts
        require(fits, "the next state must be the advanced cache, or of the same class")
        for number, part in enumerate(parts):
            self.write(WRITE_STATE, self.width(part), part, layer=number)
        if parts:  # the state is stored before the last product
            last = self.register(result)
            end = next(op for op in self.ops if op.target == last)
            self.ops.remove(end)
            self.ops.append(end)
        return self.finished(result)

    # ---- nodes

    def _value(self, node: fx.Node) -> Any:
        if node.op == "output":
            return self._resolved(node.args[0])
        if node.op == "placeholder":
            return self._input(node)
        if node.op == "get_attr":
            return operator.attrgetter(str(node.target))(self.model)
        arguments, options = self._resolved(node.args), self._resolved(node.kwargs)
        if node.op == "call_module":
            module = self.modules[str(node.target)]
            lower = self.leaves.get(type(module))
            if lower is None:
                raise CannotCompile(f"the layer {type(module).__name__} has no compiled form")
            return lower(self, module, *arguments, **options)
        if isinstance(node.target, type) and is_dataclass(node.target):
            symbolic = bool(node.all_input_nodes)
            return Built(node.target, dict(options)) if symbolic else node.target(**options)
        table: Any = METHODS if node.op == "call_method" else FUNCTIONS
        name: Any = node.target
        function = name if isinstance(name, str) else getattr(name, "__name__", name)
        require(name in table, f"the function `{function}` has no compiled form")
        return table[name](self, *arguments, **options)

    def _input(self, node: fx.Node) -> Any:
        name = str(node.target)
        if not name.startswith("part_"):
            return INPUTS[name]
        shape = node.meta["shape"]
        if not shape[-1]:
            return NOTHING
        count = shape[1] if len(shape) == 3 else 1
        registers = []
        for _ in range(count):
            registers.append(self.write(READ_STATE, shape[-1], layer=self.parts))
            self.parts += 1
        return registers if len(shape) == 3 else registers[0]

    def _resolved(self, argument: Any) -> Any:
        if isinstance(argument, fx.Node):
            return self.values[argument]
        if isinstance(argument, tuple | list):
            return type(argument)(self._resolved(item) for item in argument)
        if isinstance(argument, dict):
            return {name: self._resolved(item) for name, item in argument.items()}
        return argument

    # ---- registers

    def write(self, kind: int, width: int, source: Any = None, **details: Any) -> Register:
        """One more operation, into a new register."""
        self.widths.append(width)
        target = len(self.widths) - 1
        source_register = ABSENT if source is None else self.register(source)
        self.ops.append(Op(kind, target, source_register, **details))
        return Register(target)

    def register(self, value: Any, width: int | None = None) -> int:
        """Where hidden states are, of this width."""
        require(isinstance(value, Register), "an operation reads what is no hidden state")
        fits = width in (None, self.widths[value.number])
        require(fits, "an operation reads hidden states of different widths")
        return value.number

    def width(self, value: Any) -> int:
        """Of hidden states."""
        return self.widths[self.register(value)]

    def change(self, value: Any, **details: Any) -> Any:
        """Another form of the product that made these hidden states, which nothing else reads.

        Raises:
            CannotCompile: they come from no product, or from one of a kind that cannot be changed.
        """
        number = self.register(value)
        products = [n for n, op in enumerate(self.ops) if (op.kind, op.target) == (LINEAR, number)]
        fits = products and not any(number in other.reads for other in self.ops)
        require(fits, "activations and biases must follow a product that is read once")
        op = self.ops[products[0]]
        changed = op.activation or ("bias" in details and op.bias is not None)
        require(not changed, "a matrix product has two activations or biases")
        self.ops[products[0]] = replace(op, **details)
        return value

    # ---- what several layers have in common

    def add(self, hidden: Any, other: Any) -> Register:
        """The sum of two."""
        width = self.width(hidden)
        return self.write(ADD, width, hidden, other=self.register(other, width))

    def scaled(self, hidden: Any, number: Any) -> Register:
        """A product with a number."""
        require(isinstance(number, int | float), "hidden states are multiplied by a number alone")
        if number == 1:
            return Register(self.register(hidden))
        return self.write(SCALE, self.width(hidden), hidden, number=float(number))

    def product(self, matrix: Any, bias: Tensor | None, x: Any, activation: int = 0) -> Register:
        """With a quantized matrix."""
        require(isinstance(matrix, QuantizedMatrix), NOT_QUANTIZED)
        rows, columns = matrix.shape
        self.register(x, columns)
        return self.write(LINEAR, rows, x, activation=activation, matrix=matrix, bias=bias)

    def linear(self, layer: Any, x: Any, activation: int = 0) -> Register:
        """By a quantized layer."""
        require(isinstance(layer, QuantizedLinear), NOT_QUANTIZED)
        return self.product(layer.matrix, layer.bias, x, activation)

    def norm(self, layer: nn.LayerNorm | nn.RMSNorm, hidden: Any) -> Register:
        """Of a sub-layer's input, or of its sum with the output."""
        width = self.width(hidden)
        fits = layer.normalized_shape == (width,) and layer.weight is not None
        require(fits and layer.eps is not None, "a norm must be over all features, with a weight")
        if isinstance(layer, nn.RMSNorm):
            return self.write(RMS_NORM, width, hidden, number=layer.eps, gain=layer.weight)
        parts = dict(gain=layer.weight, bias=layer.bias)
        return self.write(NORM, width, hidden, number=layer.eps, **parts)

    def attention(
        self,
        kind: int,
        layer: Any,
        projected: Register,
        layer_number: int,
        other: int = ABSENT,
        bias: RelativeBias | None = None,
        window: int | None = None,
    ) -> Register:
        """Heads that read, and their output."""
        score = layer.score
        fits = type(score) is Dot and layer.heads
        require(fits, "attention must have dot-product scores and at least one head")
        heads, head_dim = layer.heads, layer.head_dim
        scale = head_dim**-0.5 if score.scale is None else score.scale
        require(scale > 0, "the scale of the attention scores must be above 0")
        sizes: dict[str, Any] = dict(heads=heads, head_dim=head_dim, number=scale, other=other)
        sizes["window"] = window or 0
        if bias is not None:
            sizes["table"] = bias_table(bias, layer.remaining_heads, scale)
        context = self.write(kind, heads * head_dim, projected, layer=layer_number, **sizes)
        return self.linear(layer.output, context)

    def first_of(self, hidden: Any) -> Register:
        """The first token of each text."""
        number = self.register(hidden)
        targets = (op.target for op in self.ops if (op.kind, op.source) == (FIRST_TOKEN, number))
        target = next(targets, None)
        if target is not None:
            return Register(target)
        return self.write(FIRST_TOKEN, self.width(hidden), hidden)

    def state(self, kind: int, width: int, gates: Any, before: Any = None) -> Register:
        """What a cell makes of its gates."""
        other = {} if before is None else {"other": self.register(before)}
        return self.write(CELL, width, gates, activation=kind, **other)

    def lstm(self, gates: Any, cell: Any) -> tuple[Register, Register]:
        """The next hidden state and cell."""
        width = self.width(cell)
        self.register(gates, 4 * width)
        after = self.state(LSTM_CELL, width, gates, cell)
        return self.state(LSTM_HIDDEN, width, gates, after), after


# --------------------------------------------------------------------- functions and methods


def _look(lowering: Lowering, look: Any, hidden: Any) -> Register:
    is_look = isinstance(look, Symbol) and look.name == "look"
    require(is_look, "a call of something that is neither a layer nor a known function")
    width, scale = lowering.width(hidden), look.parts[0]
    number = width**-0.5 if scale is None else scale
    return lowering.write(CROSS, width, hidden, heads=1, head_dim=width, number=number)


def _cache_method(name: str, result: Any) -> Callable[..., Any]:
    """Of a cache, which must be asked for as many tokens as are read."""

    def method(lowering: Lowering, cache: Any, count: Any) -> Any:
        fits = cache == CACHE and count == COUNT
        require(fits, f"`{name}` of the cache must be called with the number of tokens read")
        return result

    return method


def _mask(lowering: Lowering, cache: Any, count: Any, window: Any = None) -> Symbol:
    """Of the tokens that are read; of a layer that sees a window, the window is a part of it."""
    _cache_method("mask", MASK)(lowering, cache, count)
    return Symbol("mask", (CACHE, window))


def _layer(lowering: Lowering, of: Any, number: Any, heads: object = None) -> Symbol:
    fits = of in (CACHE, SOURCE) and isinstance(number, int)
    require(fits, "`layer` must be that of the cache or the source, with a number")
    return Symbol("layer", (of, number))


def _attribute(lowering: Lowering, of: Any, name: str) -> Any:
    if (of, name) == (SOURCE, "mask"):
        return SOURCE_MASK
    return Symbol(name, (of,))


def _item(lowering: Lowering, of: Any, index: Any) -> Any:
    """One of several values; of the parts of a recurrent state one layer's, (R, L, D)."""
    if isinstance(index, tuple):
        fits = len(index) == 2 and index[0] == slice(None) and isinstance(of, list | Symbol)
        require(fits, ONE_LAYER)
        index = index[1]
    if of is NOTHING:
        return of
    if isinstance(of, Symbol):
        return Symbol(of.name, (*of.parts, index))
    if isinstance(of, Register):  # one token a row
        require(index == 0, "hidden states may not be sliced")
        return of
    return of[index]


def _same(lowering: Lowering, value: Any, *details: Any, **more: Any) -> Any:
    """What only lies in another way, for one token a row; or another type of the same numbers."""
    return value


def _unbind(lowering: Lowering, value: Any, dim: int = 0) -> Any:
    if isinstance(value, list):
        require(dim == 1, ONE_LAYER)
        return value
    return [value]


def _stack(lowering: Lowering, values: Any, dim: int = 0) -> Any:
    require(dim == 1, "hidden states may be stacked along dimension 1 alone")
    if NOTHING in values:
        return NOTHING
    return list(values) if len(values) > 1 else values[0]  # one layer, or one token


def concatenate(lowering: Lowering, values: Any, dim: int = 0) -> Register:
    """Two hidden states side by side."""
    fits = dim in (1, -1) and len(values) == 2
    require(fits, "two hidden states may be concatenated, along their last dimension")
    first, other = values
    width = lowering.width(first) + lowering.width(other)
    return lowering.write(CONCAT, width, first, other=lowering.register(other))


def _tokens_of(lowering: Lowering, tokens: Any, hidden: Any) -> Register:
    require(tokens == SUBSET, "other hidden states than those of the subset are selected")
    return lowering.first_of(hidden)


METHODS: dict[Any, Callable[..., Any]] = {
    "size": lambda low, value, dim=0: Symbol("size", (value, dim)),
    "reserve": _cache_method("reserve", CACHE),
    "mask": _mask,
    "advance": _cache_method("advance", ADVANCED),
    "consume": lambda low, state: None,
    "layer": _layer,
    "of": _tokens_of,
    "unbind": _unbind,
    "__call__": _look,
    **dict.fromkeys(["to", "transpose", "contiguous", "expand"], _same),
}
FUNCTIONS: dict[Any, Callable[..., Any]] = {
    operator.add: Lowering.add,
    operator.mul: Lowering.scaled,
    operator.getitem: _item,
    getattr: _attribute,
    torch.tanh: lambda low, value: low.change(value, activation=ACTIVATION[torch.tanh]),
    torch.stack: _stack,
    torch.cat: concatenate,
    torch.zeros_like: lambda low, like: Symbol("zeros", (like,)),
}


def is_part(value: Any, name: str, of: Symbol) -> TypeGuard[Symbol]:
    """Whether a value is what an object gave under this name."""
    return isinstance(value, Symbol) and value.name == name and value.parts[0] == of


def _follows(after: Any, state: State) -> bool:
    """Whether a symbol stands for the state that follows this one."""
    if isinstance(state, KeyValueCache):
        return after == ADVANCED
    if type(state) is SourceMemory:
        return after == SOURCE
    if not isinstance(after, Built) or after.kind is not type(state):
        return False
    states = [(name, part) for name, part in state.parts().items() if isinstance(part, State)]
    return all(_follows(after.values[name], part) for name, part in states)


def registers_of(state: object) -> Iterator[Any]:
    """The parts of a recurrent state that a step made, in the order of its fields."""
    if isinstance(state, Built):
        for field in fields(state.kind):
            yield from registers_of(state.values[field.name])
    elif isinstance(state, list):
        yield from state
    elif isinstance(state, Register):
        yield state
