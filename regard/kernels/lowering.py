"""From the graph of a method to a list of operations.

Each node of the graph has a value: a register of the program, or a symbol such as a mask, of which
only its identity matters. `LEAVES` says what each layer becomes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeGuard

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from regard.attention.cache import KeyValueCache, SourceMemory
from regard.attention.cross_step import CrossAttentionStep
from regard.attention.multihead import CrossAttention, Memory, SelfAttention
from regard.attention.relative_bias import RelativeBias
from regard.attention.relative_kinds import T5Positions
from regard.attention.scores import Dot, General
from regard.data.layout import ALL
from regard.kernels.op_list import (
    ABSENT,
    ADD,
    CELL,
    CONCAT,
    CROSS,
    EMBEDDING,
    FIRST_TOKEN,
    GATED,
    GRU_CELL,
    LINEAR,
    LSTM_CELL,
    LSTM_HIDDEN,
    NORM,
    POSITIONS,
    READ_STATE,
    RMS_NORM,
    RNN_CELL,
    SCALE,
    SELF,
    SELF_FIRST_TOKEN,
    TABLE,
    TOKEN_POSITIONS,
    WRITE_STATE,
    Op,
    OpList,
    allocate_registers,
    fuse_additions,
)
from regard.kernels.tables import bias_table, readable_table, table_of
from regard.kernels.tracer import CannotCompile, needed_for, where_of
from regard.kernels.values import (
    ADVANCED,
    CACHE,
    COUNT,
    INPUTS,
    MASK,
    NOTHING,
    SEGMENT_IDS,
    SOURCE,
    SOURCE_MASK,
    SUBSET,
    TOKENS,
    WHOLE_TEXTS,
    Built,
    Register,
    Symbol,
)
from regard.layers.dropout import Dropout
from regard.layers.feedforward import (
    ACTIVATIONS,
    FeedForward,
    GatedFeedForward,
    gelu,
    gelu_tanh,
    quick_gelu,
    relu_squared,
)
from regard.layers.norm import AddNorm
from regard.layers.panels import PANEL
from regard.layers.positions import LearnedPositions, RobertaPositions, SinusoidalPositions
from regard.layers.quantized import (
    QuantizedEmbedding,
    QuantizedLinear,
    QuantizedMatrix,
    QuantizedRecurrent,
)
from regard.layers.recurrent import LSTMStep
from regard.state import State

NOT_QUANTIZED = "the weights of a matrix product must be quantized"
OTHER_SOURCE = "cross-attention must read the source of the state"
IDS, SEGMENTS = range(2)  # what an embedding looks up, as encoder.h has it
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

# Layers whose results are pairs, (hidden, cell), or a pair of hidden states and such a pair.
PAIRS: dict[type, int] = {LSTMStep: 1, QuantizedRecurrent: 2}


class Lowering:
    """Of one graph.

    Args:
        model: whose method it is of.
    """

    def __init__(self, model: nn.Module):
        self.model = model
        self.modules = dict(model.named_modules())
        self.ops: list[Op] = []
        self.widths = [0]
        self.values: dict[fx.Node, Any] = {}
        self.parts = 0  # of a recurrent state

    def lowered(
        self, graph: fx.Graph, result: fx.Node | None = None, given: fx.Node | None = None
    ) -> Any:
        """The value of a node, or of the graph's output; `given` is the register that comes in.

        Raises:
            CannotCompile: something has no operation; the message says where.
        """
        wanted = list(graph.nodes)[-1] if result is None else result
        needed = needed_for(wanted, given)
        for node in graph.nodes:
            if given is not None and node is given:
                self.values[node] = Register(0)
            elif node in needed or node.op == "placeholder":
                try:
                    self.values[node] = self._value(node)
                except CannotCompile as error:
                    raise CannotCompile(error.reason, where_of(node)) from None
                except (AttributeError, TypeError, IndexError, ValueError) as error:
                    raise CannotCompile(str(error), where_of(node)) from error
        return self.values[wanted]

    def finished(self, result: Any) -> OpList:
        """All operations; `result` is what goes out."""
        last = self.register(result)
        return allocate_registers(fuse_additions(self.ops, last), self.widths, last)

    def step(self, graph: fx.Graph, state: State) -> OpList:
        """The operations of a method that reads tokens behind a state: scores, or hidden states.

        Raises:
            CannotCompile: something has no operation, or the next state is not as expected.
        """
        found = self.lowered(graph)
        if isinstance(found, Built):  # an `Output`
            found = found.values["hidden"], found.values["state"]
        result, after = found
        if not _follows(after, state):
            raise CannotCompile("the next state must be the advanced cache, or of the same class")
        kept = list(registers_of(after))
        if len(kept) != self.parts:
            raise CannotCompile("the next state must have as many tensors as the state before")
        for number, part in enumerate(kept):
            self.write(WRITE_STATE, self.width(part), part, layer=number)
        if kept:  # the state is stored before the last product
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
            lower = LEAVES.get(type(module))
            if lower is None:
                raise CannotCompile(f"the layer {type(module).__name__} has no compiled form")
            return lower(self, module, *arguments, **options)
        if isinstance(node.target, type) and is_dataclass(node.target):
            symbolic = bool(node.all_input_nodes)
            return Built(node.target, dict(options)) if symbolic else node.target(**options)
        table: Any = METHODS if node.op == "call_method" else FUNCTIONS
        name: Any = node.target
        if name not in table:
            known = name if isinstance(name, str) else getattr(name, "__name__", name)
            raise CannotCompile(f"the function `{known}` has no compiled form")
        return table[name](self, *arguments, **options)

    def _input(self, node: fx.Node) -> Any:
        name = str(node.target)
        if not name.startswith("part_"):
            return INPUTS[name]
        shape = node.meta["shape"]
        if not shape[-1]:
            return NOTHING
        count = shape[1] if len(shape) == 3 else 1
        found = []
        for _ in range(count):
            found.append(self.write(READ_STATE, shape[-1], layer=self.parts))
            self.parts += 1
        return found if len(shape) == 3 else found[0]

    def _resolved(self, argument: Any) -> Any:
        if isinstance(argument, fx.Node):
            return self.values[argument]
        if isinstance(argument, tuple | list):
            return type(argument)(self._resolved(one) for one in argument)
        if isinstance(argument, dict):
            return {name: self._resolved(one) for name, one in argument.items()}
        return argument

    # ---- registers

    def write(self, kind: int, width: int, source: Any = None, **details: Any) -> Register:
        """One more operation, into a new register."""
        self.widths.append(width)
        target = len(self.widths) - 1
        read = ABSENT if source is None else self.register(source)
        self.ops.append(Op(kind, target, read, **details))
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
        read = any(number in one.reads for one in self.ops)
        if at is None or op is None or (op.kind, op.activation) != (LINEAR, 0) or read:
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
        if bias is not None:
            sizes["table"] = bias_table(bias, layer.kept, scale)
        context = self.write(kind, heads * head_dim, projected, layer=layer_number, **sizes)
        return self.linear(layer.output, context)

    def first_of(self, hidden: Any) -> Register:
        """The first token of each text."""
        number = self.register(hidden)
        known = (op.target for op in self.ops if (op.kind, op.source) == (FIRST_TOKEN, number))
        target = next(known, None)
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


# ------------------------------------------------------------------------------------- layers


def _self_attention(
    lowering: Lowering,
    layer: SelfAttention,
    hidden: Any,
    mask: Any = None,
    *,
    bias: Any = None,
    relation: Any = None,
    cache: Any = None,
    tokens: Any = ALL,
) -> Register:
    if bias is not None:
        raise CannotCompile("attention with a score bias has no compiled form")
    table = _table_of(relation, "of" if cache is None else "after")
    if cache is None and mask != WHOLE_TEXTS:
        raise CannotCompile("attention without a cache must have the padding mask of the batch")
    if cache is None and tokens == SUBSET:
        if table is not None:
            raise CannotCompile("attention of the first tokens with a bias has no compiled form")
        return _first_attention(lowering, layer, hidden)
    number = 0
    if cache is not None:
        if mask != MASK or not _is_part(cache, "layer", CACHE):
            raise CannotCompile(
                "attention must use the cache of the state, with `state.mask(count)`"
            )
        number = cache.parts[1]
    if tokens is not ALL:
        raise CannotCompile("attention with a cache must compute all tokens")
    projected = lowering.linear(layer.query_key_value, hidden)
    return lowering.attention(SELF, layer, projected, number, bias=table)


def _table_of(relation: Any, method: str) -> RelativeBias | None:
    """The biases of all tokens of the batch, or of those behind the cache, by distance."""
    if relation is None:
        return None
    if not isinstance(relation, Symbol) or relation.name != "bias" or relation.parts[1] != method:
        raise CannotCompile("relative positions must be those of all tokens that are read")
    return relation.parts[0]


def _relations(
    lowering: Lowering, positions: T5Positions, *given: Any, method: str
) -> list[Symbol]:
    """Of each layer, from which table and for which tokens."""
    batch = given[0]
    whole = isinstance(batch, Built) and batch.values["ids"] == TOKENS
    if method == "of" and not whole or method == "after" and given != (CACHE, COUNT):
        raise CannotCompile("relative positions must be those of the tokens of the batch")
    return [Symbol("bias", (positions.table_of(n), method)) for n in range(positions.layers)]


def _first_attention(lowering: Lowering, layer: SelfAttention, hidden: Any) -> Register:
    projection, width = layer.query_key_value, layer.heads * layer.head_dim
    if not isinstance(projection, QuantizedLinear):
        raise CannotCompile(NOT_QUANTIZED)
    if width % PANEL:  # the matrix cannot be sliced
        whole = lowering.attention(SELF, layer, lowering.linear(projection, hidden), 0)
        return lowering.first_of(whole)

    def slice_of(first: int, end: int, x: Any) -> Register:
        bias = None if projection.bias is None else projection.bias[first:end]
        return lowering.product(projection.matrix.part(first, end), bias, x)

    query = slice_of(0, width, lowering.first_of(hidden))
    both = slice_of(width, 3 * width, hidden)
    return lowering.attention(SELF_FIRST_TOKEN, layer, query, 0, other=both.number)


def _cross_attention(
    lowering: Lowering, layer: CrossAttention, hidden: Any, memory: Any
) -> Register:
    key = memory.values["key"] if isinstance(memory, Built) and memory.kind is Memory else None
    if not _is_part(key, "layer", SOURCE):
        raise CannotCompile(OTHER_SOURCE)
    number = key.parts[1]
    read = {f: Symbol("layer", (SOURCE, number, n)) for n, f in enumerate(("key", "value"))}
    if memory.values != read | {"mask": SOURCE_MASK}:
        raise CannotCompile(OTHER_SOURCE)
    return lowering.attention(CROSS, layer, lowering.linear(layer.query, hidden), number)


def _feed_forward(lowering: Lowering, layer: FeedForward, hidden: Any) -> Register:
    if layer.activation not in ACTIVATION:
        raise CannotCompile("the activation of the feed-forward layer has no compiled form")
    inner = lowering.linear(layer.inner, hidden, ACTIVATION[layer.activation])
    return lowering.linear(layer.outer, inner)


def _gated_feed_forward(lowering: Lowering, layer: GatedFeedForward, hidden: Any) -> Register:
    if layer.activation not in ACTIVATION:
        raise CannotCompile("the activation of the feed-forward layer has no compiled form")
    both = lowering.linear(layer.inner, hidden)
    kind, width = ACTIVATION[layer.activation], lowering.width(both) // 2
    return lowering.linear(layer.outer, lowering.write(GATED, width, both, activation=kind))


def _embedding(lowering: Lowering, layer: Any, ids: Any) -> Register:
    # Without segments all tokens belong to the first: the kernels look up 0.
    kinds = {TOKENS: IDS, SEGMENT_IDS: SEGMENTS, Symbol("zeros", (TOKENS,)): SEGMENTS}
    if ids not in kinds:
        raise CannotCompile("an embedding must look up the ids of the batch, or its segments")
    if isinstance(layer, QuantizedEmbedding):
        matrix = layer.matrix
        return lowering.write(EMBEDDING, matrix.in_features, matrix=matrix, heads=kinds[ids])
    table = readable_table(layer.weight)
    return lowering.write(TABLE, table.size(1), table=table, heads=kinds[ids])


def _positions(lowering: Lowering, layer: Any, *given: Any, method: str) -> Register:
    batch = given[0]
    whole = isinstance(batch, Built) and batch.values["ids"] == TOKENS
    if method == "of" and not whole or method == "after" and given != (CACHE, COUNT):
        raise CannotCompile("positions must be those of the tokens of the batch")
    table = readable_table(table_of(layer))
    if not isinstance(layer, RobertaPositions):
        return lowering.write(POSITIONS, table.size(1), table=table)
    if method != "of":
        raise CannotCompile(
            "positions that are counted from the padding ids have no compiled form with a cache"
        )
    return lowering.write(TOKEN_POSITIONS, table.size(1), table=table, heads=IDS, layer=layer.pad)


def _recurrent(
    lowering: Lowering, layer: QuantizedRecurrent, x: Any, hidden: Any, cell: Any
) -> Any:
    width = layer.d_model
    below, own = lowering.linear(layer.input, x), lowering.linear(layer.recurrent, hidden)
    match lowering.width(below) // width:
        case 4:
            new, cell = lowering.lstm(lowering.add(below, own), cell)
        case 3:
            both = _cat(lowering, [own, hidden], 1)
            new = lowering.state(GRU_CELL, width, below, both)
        case _:
            new = lowering.state(RNN_CELL, width, lowering.add(below, own))
    return new, (new, cell)


def _lstm_step(
    lowering: Lowering, layer: LSTMStep, below: Any, recurrent: Any, cell: Any
) -> tuple[Register, Register]:
    if isinstance(below, Tensor):  # a bias alone
        return lowering.lstm(lowering.change(recurrent, bias=below), cell)
    return lowering.lstm(lowering.add(below, recurrent), cell)


def _looking(
    lowering: Lowering, layer: CrossAttentionStep, source: Any, score: Any, capture: Any
) -> Any:
    score = Dot(1.0) if isinstance(score, General) else score  # whose matrix is in the keys
    if source != SOURCE or type(score) is not Dot:
        raise CannotCompile(
            "cross-attention must read the source of the state, with dot-product scores"
        )
    return Symbol("look", (score.scale,))


def _look(lowering: Lowering, look: Any, hidden: Any) -> Register:
    if not isinstance(look, Symbol) or look.name != "look":
        raise CannotCompile("a call of something that is neither a layer nor a known function")
    width, scale = lowering.width(hidden), look.parts[0]
    number = width**-0.5 if scale is None else scale
    return lowering.write(CROSS, width, hidden, heads=1, head_dim=width, number=number)


LEAVES: dict[type, Callable[..., Any]] = {
    nn.LayerNorm: Lowering.norm,
    nn.RMSNorm: Lowering.norm,
    AddNorm: lambda low, layer, hidden, update: low.norm(layer, low.add(hidden, update)),
    SelfAttention: _self_attention,
    CrossAttention: _cross_attention,
    FeedForward: _feed_forward,
    GatedFeedForward: _gated_feed_forward,
    T5Positions: _relations,
    Dropout: lambda low, layer, hidden: hidden,
    nn.Embedding: _embedding,
    QuantizedEmbedding: _embedding,
    QuantizedLinear: Lowering.linear,
    QuantizedMatrix: lambda low, layer, x, bias=None: low.product(layer, bias, x),
    QuantizedRecurrent: _recurrent,
    LSTMStep: _lstm_step,
    CrossAttentionStep: _looking,
    LearnedPositions: _positions,
    SinusoidalPositions: _positions,
    RobertaPositions: _positions,
}


# --------------------------------------------------------------------- functions and methods


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


def _cat(lowering: Lowering, values: Any, dim: int = 0) -> Register:
    if dim not in (1, -1) or len(values) != 2:
        raise CannotCompile("two hidden states may be concatenated, along their last dimension")
    one, other = values
    width = lowering.width(one) + lowering.width(other)
    return lowering.write(CONCAT, width, one, other=lowering.register(other))


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
    "mask": _cache_method("mask", MASK),
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
    torch.cat: _cat,
    torch.zeros_like: _zeros,
}


def _is_part(value: Any, name: str, of: Symbol) -> TypeGuard[Symbol]:
    return isinstance(value, Symbol) and value.name == name and value.parts[0] == of


def _follows(after: Any, state: State) -> bool:
    """Whether a symbol stands for the state that follows this one."""
    if type(state) is KeyValueCache:
        return after == ADVANCED
    if type(state) is SourceMemory:
        return after == SOURCE
    if not isinstance(after, Built) or after.kind is not type(state):
        return False
    states = [(name, one) for name, one in state.parts().items() if isinstance(one, State)]
    return all(_follows(after.values[name], one) for name, one in states)


def registers_of(state: object) -> Iterator[Any]:
    """The parts of a recurrent state that a step made, in the order of its fields."""
    if isinstance(state, Built):
        for field in fields(state.kind):
            yield from registers_of(state.values[field.name])
    elif isinstance(state, list):
        yield from state
    elif isinstance(state, Register):
        yield state
