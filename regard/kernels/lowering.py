"""From the graph of a method to a list of operations.

Each node of the graph has a value: a register of the program, or a symbol such as a mask, of which
only its identity matters. `regard.kernels.leaves` says what each layer becomes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeGuard

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from regard.attention.cache import KeyValueCache, SourceMemory
from regard.attention.relative_protocol import RelativeBias
from regard.attention.scores import Dot
from regard.kernels.op_list import (
    ABSENT,
    ADD,
    CELL,
    CONCAT,
    CROSS,
    FIRST_TOKEN,
    LINEAR,
    LSTM_CELL,
    LSTM_HIDDEN,
    NORM,
    READ_STATE,
    RMS_NORM,
    SCALE,
    WRITE_STATE,
    Op,
    OpList,
    allocate_registers,
    bias_table,
    fuse_additions,
)
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
    where_of,
)
from regard.layers.feedforward import (
    ACTIVATIONS,
    gelu,
    gelu_tanh,
    quick_gelu,
    relu_squared,
)
from regard.layers.quantized import (
    QuantizedLinear,
    QuantizedMatrix,
)
from regard.state import State

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

    def lowered(
        self, graph: fx.Graph, result: fx.Node | None = None, start: fx.Node | None = None
    ) -> Any:
        """The value of a node, or of the graph's output.

        start: the node whose value is what comes in, the first register; None: there is none.

        Raises:
            CannotCompile: something has no operation; the message says where.
        """
        target = list(graph.nodes)[-1] if result is None else result
        needed = needed_for(target, start)
        for node in graph.nodes:
            if start is not None and node is start:
                self.values[node] = Register(0)
            elif node in needed or node.op == "placeholder":
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
        if not _follows(after, state):
            raise CannotCompile("the next state must be the advanced cache, or of the same class")
        parts = list(registers_of(after))
        if len(parts) != self.parts:
            raise CannotCompile("the next state must have as many tensors as the state before")
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
        if name not in table:
            function = name if isinstance(name, str) else getattr(name, "__name__", name)
            raise CannotCompile(f"the function `{function}` has no compiled form")
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
        if not isinstance(value, Register):
            raise CannotCompile("an operation reads something that is not a hidden state")
        if width not in (None, self.widths[value.number]):
            raise CannotCompile("an operation reads hidden states of different widths")
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
        at = next((n for n, op in enumerate(self.ops) if op.target == number), None)
        op = None if at is None else self.ops[at]
        is_read = any(number in other.reads for other in self.ops)
        if at is None or op is None or (op.kind, op.activation) != (LINEAR, 0) or is_read:
            raise CannotCompile("activations and biases must follow a product that is read once")
        if "bias" in details and op.bias is not None:
            raise CannotCompile("a matrix product has two biases")
        self.ops[at] = replace(op, **details)
        return value

    # ---- what several layers have in common

    def add(self, one: Any, other: Any) -> Register:
        """The sum of two."""
        width = self.width(one)
        return self.write(ADD, width, one, other=self.register(other, width))

    def scaled(self, one: Any, number: Any) -> Register:
        """A product with a number."""
        if not isinstance(number, int | float):
            raise CannotCompile("hidden states can be multiplied by a number alone")
        if number == 1:
            return Register(self.register(one))
        return self.write(SCALE, self.width(one), one, number=float(number))

    def product(self, matrix: Any, bias: Tensor | None, x: Any, activation: int = 0) -> Register:
        """With a quantized matrix."""
        if not isinstance(matrix, QuantizedMatrix):
            raise CannotCompile(NOT_QUANTIZED)
        rows, columns = matrix.shape
        self.register(x, columns)
        return self.write(LINEAR, rows, x, activation=activation, matrix=matrix, bias=bias)

    def linear(self, layer: Any, x: Any, activation: int = 0) -> Register:
        """By a quantized layer."""
        if not isinstance(layer, QuantizedLinear):
            raise CannotCompile(NOT_QUANTIZED)
        return self.product(layer.matrix, layer.bias, x, activation)

    def norm(self, layer: nn.LayerNorm | nn.RMSNorm, hidden: Any) -> Register:
        """Of a sub-layer's input, or of its sum with the output."""
        width = self.width(hidden)
        if layer.normalized_shape != (width,) or layer.weight is None or layer.eps is None:
            raise CannotCompile("the norm must be over the last dimension, with a weight")
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
        if type(score) is not Dot or not layer.heads:
            raise CannotCompile("attention must have dot-product scores and at least one head")
        heads, head_dim = layer.heads, layer.head_dim
        scale = head_dim**-0.5 if score.scale is None else score.scale
        if scale <= 0:
            raise CannotCompile("the scale of the attention scores must be above 0")
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
    if not isinstance(look, Symbol) or look.name != "look":
        raise CannotCompile("a call of something that is neither a layer nor a known function")
    width, scale = lowering.width(hidden), look.parts[0]
    number = width**-0.5 if scale is None else scale
    return lowering.write(CROSS, width, hidden, heads=1, head_dim=width, number=number)


def _size(lowering: Lowering, value: Any, dim: int = 0) -> Symbol:
    return Symbol("size", (value, dim))


def _cache_method(name: str, result: Any) -> Callable[..., Any]:
    """Of a cache, which must be asked for as many tokens as are read."""

    def method(lowering: Lowering, cache: Any, count: Any) -> Any:
        if cache != CACHE or count != COUNT:
            raise CannotCompile(
                f"`{name}` of the cache must be called with the number of tokens of the batch"
            )
        return result

    return method


def _mask(lowering: Lowering, cache: Any, count: Any, window: Any = None) -> Symbol:
    """Of the tokens that are read; of a layer that sees a window, the window is a part of it."""
    _cache_method("mask", MASK)(lowering, cache, count)
    return Symbol("mask", (CACHE, window))


def _layer(lowering: Lowering, of: Any, number: Any, heads: object = None) -> Symbol:
    if of not in (CACHE, SOURCE) or not isinstance(number, int):
        raise CannotCompile("`layer` must be that of the cache or the source, with a number")
    return Symbol("layer", (of, number))


def _attribute(lowering: Lowering, of: Any, name: str) -> Any:
    if (of, name) == (SOURCE, "mask"):
        return SOURCE_MASK
    return Symbol(name, (of,))


def _item(lowering: Lowering, of: Any, index: Any) -> Any:
    """One of several values; of the parts of a recurrent state one layer's, (R, L, D)."""
    if isinstance(index, tuple):
        if len(index) != 2 or index[0] != slice(None) or not isinstance(of, list | Symbol):
            raise CannotCompile("a state may be indexed by one layer alone, as in `[:, layer]`")
        index = index[1]
    if of is NOTHING:
        return of
    if isinstance(of, Symbol):
        return Symbol(of.name, (*of.parts, index))
    if isinstance(of, Register):  # one token a row
        if index != 0:
            raise CannotCompile("hidden states may not be sliced")
        return of
    return of[index]


def _same(lowering: Lowering, value: Any, *details: Any, **more: Any) -> Any:
    """What only lies in another way, for one token a row; or another type of the same numbers."""
    return value


def _unbind(lowering: Lowering, value: Any, dim: int = 0) -> Any:
    if isinstance(value, list):
        if dim != 1:
            raise CannotCompile("a state may be unbound along the layers alone, dimension 1")
        return value
    return [value]


def _stack(lowering: Lowering, values: Any, dim: int = 0) -> Any:
    if dim != 1:
        raise CannotCompile("hidden states may be stacked along dimension 1 alone")
    if NOTHING in values:
        return NOTHING
    return list(values) if len(values) > 1 else values[0]  # one layer, or one token


def concatenate(lowering: Lowering, values: Any, dim: int = 0) -> Register:
    """Two hidden states side by side."""
    if dim not in (1, -1) or len(values) != 2:
        raise CannotCompile("two hidden states may be concatenated, along their last dimension")
    first, other = values
    width = lowering.width(first) + lowering.width(other)
    return lowering.write(CONCAT, width, first, other=lowering.register(other))


def _tokens_of(lowering: Lowering, tokens: Any, hidden: Any) -> Register:
    if tokens != SUBSET:
        raise CannotCompile("other hidden states than those of the subset of tokens are selected")
    return lowering.first_of(hidden)


def _tanh(lowering: Lowering, value: Any) -> Any:
    return lowering.change(value, activation=ACTIVATION[torch.tanh])


def _add(lowering: Lowering, one: Any, other: Any) -> Any:
    return lowering.add(one, other)


def _mul(lowering: Lowering, one: Any, other: Any) -> Any:
    return lowering.scaled(one, other)


def _zeros(lowering: Lowering, like: Any) -> Symbol:
    return Symbol("zeros", (like,))


METHODS: dict[Any, Callable[..., Any]] = {
    "size": _size,
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
    operator.add: _add,
    operator.mul: _mul,
    operator.getitem: _item,
    getattr: _attribute,
    torch.tanh: _tanh,
    torch.stack: _stack,
    torch.cat: concatenate,
    torch.zeros_like: _zeros,
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
