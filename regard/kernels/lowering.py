"""From the graph of a method to a list of operations.

Each node of the graph has a value: a register of the program, or a symbol such as a mask, of which
only its identity matters. `LEAVES` says what each layer becomes, `METHODS` and `FUNCTIONS` what is
made of the rest.
"""

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeGuard

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from regard.attention.attend import Dot, General
from regard.attention.cache import KeyValueCache, SourceMemory
from regard.attention.multihead import CrossAttention, GroupedQueryAttention, Memory, SelfAttention
from regard.attention.relative import RelativeBias, T5Positions
from regard.attention.selection import CrossAttentionStep
from regard.data.batches import ALL
from regard.kernels.program import ABSENT, Kind, Op, OpList, allocate_registers, fuse_additions
from regard.kernels.tracer import (
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
    CannotCompile,
    LeafTracer,
    Register,
    Symbol,
    needed_for,
    require,
    where_of,
)
from regard.layers import feedforward, positions, quantized
from regard.layers.dropout import AddNorm, Dropout
from regard.layers.quantized import PANEL, QuantizedLinear, QuantizedMatrix
from regard.layers.recurrent import LSTMStep
from regard.state import State

RNN_CELL, GRU_CELL, LSTM_CELL, LSTM_HIDDEN = range(4)  # kinds of cells, as cells.h has them
MAX_DISTANCES = 2**14  # of which a table has the biases, for each head


def table_of(layer: Any) -> Tensor:
    """The vectors of positions, (N, D), from the first; of RoBERTa's, those of padding, too."""
    if isinstance(layer, positions.SinusoidalPositions):
        return layer.table
    weight: Tensor = layer.vectors.weight
    return weight if isinstance(layer, positions.RobertaPositions) else weight[layer.offset :]


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


ONE_LAYER = "a state may be indexed by one layer alone, as in `[:, layer]`"
NOT_QUANTIZED = "the weights of a matrix product must be quantized"
ACTIVATION: dict[Any, int] = {
    feedforward.ACTIVATIONS["linear"]: 0,
    F.relu: 1,
    feedforward.gelu: 2,
    feedforward.gelu_tanh: 3,
    feedforward.quick_gelu: 4,
    F.silu: 5,
    feedforward.relu_squared: 6,
    torch.tanh: 7,
    torch.sigmoid: 8,
}


class Lowering:
    """Of the graph of one method of a model."""

    def __init__(self, model: nn.Module):
        self.model = model
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
            self.write(Kind.WRITE_STATE, self.width(part), part, layer=number)
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
            lower = LEAVES.get(type(module))
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
            registers.append(self.write(Kind.READ_STATE, shape[-1], layer=self.parts))
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
        wanted = Kind.LINEAR, number
        products = [n for n, op in enumerate(self.ops) if (op.kind, op.target) == wanted]
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
        return self.write(Kind.ADD, width, hidden, other=self.register(other, width))

    def scaled(self, hidden: Any, number: Any) -> Register:
        """A product with a number."""
        require(isinstance(number, int | float), "hidden states are multiplied by a number alone")
        if number == 1:
            return Register(self.register(hidden))
        return self.write(Kind.SCALE, self.width(hidden), hidden, number=float(number))

    def product(self, matrix: Any, bias: Tensor | None, x: Any, activation: int = 0) -> Register:
        """With a quantized matrix."""
        require(isinstance(matrix, QuantizedMatrix), NOT_QUANTIZED)
        rows, columns = matrix.shape
        self.register(x, columns)
        return self.write(Kind.LINEAR, rows, x, activation=activation, matrix=matrix, bias=bias)

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
            return self.write(Kind.RMS_NORM, width, hidden, number=layer.eps, gain=layer.weight)
        parts = dict(gain=layer.weight, bias=layer.bias)
        return self.write(Kind.NORM, width, hidden, number=layer.eps, **parts)

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
        of_it = Kind.FIRST_TOKEN, number
        targets = (op.target for op in self.ops if (op.kind, op.source) == of_it)
        target = next(targets, None)
        if target is not None:
            return Register(target)
        return self.write(Kind.FIRST_TOKEN, self.width(hidden), hidden)

    def state(self, kind: int, width: int, gates: Any, before: Any = None) -> Register:
        """What a cell makes of its gates."""
        other = {} if before is None else {"other": self.register(before)}
        return self.write(Kind.CELL, width, gates, activation=kind, **other)

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
    return lowering.write(Kind.CROSS, width, hidden, heads=1, head_dim=width, number=number)


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
    return lowering.write(Kind.CONCAT, width, first, other=lowering.register(other))


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


# ----------------------------------------------------------------------------------- layers

OTHER_SOURCE = "cross-attention must read the source of the state"
OTHER_CACHE = "attention must use the cache of the state, with `state.mask(count)`"
OTHER_POSITIONS = "positions must be those of the tokens that are read"
IDS, SEGMENTS = range(2)  # what an embedding looks up, as encoder.h has it

# Layers whose results are pairs, (hidden, cell), or a pair of hidden states and such a pair.
PAIRS: dict[type, int] = {LSTMStep: 1, quantized.QuantizedRecurrent: 2}


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
    require(bias is None, "attention with a score bias has no compiled form")
    table = _table_of(relation, "of" if cache is None else "after")
    if cache is None:
        require(mask == WHOLE_TEXTS, "attention must have the padding mask of the batch")
        if tokens == SUBSET and table is None:
            return _first_attention(lowering, layer, hidden)
        number, window = 0, None
    else:
        require(is_part(mask, "mask", CACHE) and is_part(cache, "layer", CACHE), OTHER_CACHE)
        number, window = cache.parts[1], mask.parts[1]
    require(tokens is ALL, "attention must compute all tokens")
    projected = lowering.linear(layer.query_key_value, hidden)
    return lowering.attention(Kind.SELF, layer, projected, number, bias=table, window=window)


def _grouped_attention(
    lowering: Lowering,
    layer: GroupedQueryAttention,
    hidden: Any,
    mask: Any = None,
    *,
    angles: Any,
    cache: Any = None,
) -> Register:
    require(mask == MASK and is_part(cache, "layer", CACHE), OTHER_CACHE)
    rotated = isinstance(angles, Symbol) and angles.name == "angles"
    require(rotated, "queries and keys must be rotated by the positions of the cache")
    query = lowering.linear(layer.query, hidden)
    key_value = lowering.linear(layer.key_value, hidden)
    sizes: dict[str, Any] = dict(heads=layer.heads, head_dim=layer.head_dim)
    context = lowering.write(
        Kind.GROUPED,
        layer.heads * layer.head_dim,
        query,
        other=key_value.number,
        layer=cache.parts[1],
        number=layer.head_dim**-0.5,
        table=angles.parts[0],
        **sizes,
    )
    return lowering.linear(layer.output, context)


def _rotary(
    lowering: Lowering, layer: positions.RotaryPositions, *arguments: Any, method: str
) -> Symbol:
    require(method == "after" and arguments == (CACHE, COUNT), OTHER_POSITIONS)
    return Symbol("angles", (readable_table(layer.table),))


def _table_of(relation: Any, method: str) -> RelativeBias | None:
    """The biases of all tokens of the batch, or of those behind the cache, by distance."""
    if relation is None:
        return None
    is_bias = isinstance(relation, Symbol) and relation.name == "bias"
    require(is_bias and relation.parts[1] == method, OTHER_POSITIONS)
    return relation.parts[0]


def _relations(
    lowering: Lowering, layer: T5Positions, *arguments: Any, method: str
) -> list[Symbol]:
    """Of each layer, from which table and for which tokens."""
    _check_read(arguments, method)
    return [Symbol("bias", (layer.table_of(n), method)) for n in range(layer.layers)]


def _check_read(arguments: Sequence[Any], method: str) -> None:
    """Raises CannotCompile: positions are asked for of other tokens than those that are read."""
    batch = arguments[0]
    whole = isinstance(batch, Built) and batch.values["ids"] == TOKENS
    require(whole if method == "of" else arguments == (CACHE, COUNT), OTHER_POSITIONS)


def _first_attention(lowering: Lowering, layer: SelfAttention, hidden: Any) -> Register:
    projection: Any = layer.query_key_value
    width = layer.heads * layer.head_dim
    require(isinstance(projection, QuantizedLinear), NOT_QUANTIZED)
    if width % PANEL:  # the matrix cannot be sliced
        attended = lowering.attention(Kind.SELF, layer, lowering.linear(projection, hidden), 0)
        return lowering.first_of(attended)

    def slice_of(first: int, end: int, x: Any) -> Register:
        bias = None if projection.bias is None else projection.bias[first:end]
        return lowering.product(projection.matrix.part(first, end), bias, x)

    query = slice_of(0, width, lowering.first_of(hidden))
    key_value = slice_of(width, 3 * width, hidden)
    return lowering.attention(Kind.SELF_FIRST_TOKEN, layer, query, 0, other=key_value.number)


def _cross_attention(
    lowering: Lowering, layer: CrossAttention, hidden: Any, memory: Any
) -> Register:
    key: Any = memory.values["key"] if isinstance(memory, Built) and memory.kind is Memory else None
    require(is_part(key, "layer", SOURCE), OTHER_SOURCE)
    number = key.parts[1]
    expected = {f: Symbol("layer", (SOURCE, number, n)) for n, f in enumerate(("key", "value"))}
    require(memory.values == expected | {"mask": SOURCE_MASK}, OTHER_SOURCE)
    return lowering.attention(Kind.CROSS, layer, lowering.linear(layer.query, hidden), number)


def _activation(layer: feedforward.FeedForward | feedforward.GatedFeedForward) -> int:
    require(layer.activation in ACTIVATION, "the activation has no compiled form")
    return ACTIVATION[layer.activation]


def _feed_forward(lowering: Lowering, layer: feedforward.FeedForward, hidden: Any) -> Register:
    inner = lowering.linear(layer.inner, hidden, _activation(layer))
    return lowering.linear(layer.outer, inner)


def _gated_feed_forward(
    lowering: Lowering, layer: feedforward.GatedFeedForward, hidden: Any
) -> Register:
    inner = lowering.linear(layer.inner, hidden)
    kind, width = _activation(layer), lowering.width(inner) // 2
    return lowering.linear(layer.outer, lowering.write(Kind.GATED, width, inner, activation=kind))


def _embedding(lowering: Lowering, layer: Any, ids: Any) -> Register:
    # Without segments all tokens belong to the first: the kernels look up 0.
    kinds = {TOKENS: IDS, SEGMENT_IDS: SEGMENTS, Symbol("zeros", (TOKENS,)): SEGMENTS}
    require(ids in kinds, "an embedding must look up the ids of the batch, or its segments")
    if isinstance(layer, quantized.QuantizedEmbedding):
        matrix = layer.matrix
        return lowering.write(Kind.EMBEDDING, matrix.in_features, matrix=matrix, heads=kinds[ids])
    table = readable_table(layer.weight)
    return lowering.write(Kind.TABLE, table.size(1), table=table, heads=kinds[ids])


def _positions(lowering: Lowering, layer: Any, *arguments: Any, method: str) -> Register:
    _check_read(arguments, method)
    table = readable_table(table_of(layer))
    if not isinstance(layer, positions.RobertaPositions):
        return lowering.write(Kind.POSITIONS, table.size(1), table=table)
    require(method == "of", "positions counted from the padding have no compiled form with a cache")
    padded = {"heads": IDS, "layer": layer.pad}
    return lowering.write(Kind.TOKEN_POSITIONS, table.size(1), table=table, **padded)


def _recurrent(
    lowering: Lowering, layer: quantized.QuantizedRecurrent, x: Any, hidden: Any, cell: Any
) -> Any:
    width = layer.d_model
    below, recurrent = lowering.linear(layer.input, x), lowering.linear(layer.recurrent, hidden)
    match lowering.width(below) // width:
        case 4:
            new, cell = lowering.lstm(lowering.add(below, recurrent), cell)
        case 3:
            both = concatenate(lowering, [recurrent, hidden], 1)
            new = lowering.state(GRU_CELL, width, below, both)
        case _:
            new = lowering.state(RNN_CELL, width, lowering.add(below, recurrent))
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
    fits = source == SOURCE and type(score) is Dot
    require(fits, "cross-attention must read the source of the state, with dot-product scores")
    return Symbol("look", (score.scale,))


LEAVES: dict[type, Callable[..., Any]] = {
    nn.LayerNorm: Lowering.norm,
    nn.RMSNorm: Lowering.norm,
    AddNorm: lambda low, layer, hidden, update: low.norm(layer, low.add(hidden, update)),
    SelfAttention: _self_attention,
    CrossAttention: _cross_attention,
    GroupedQueryAttention: _grouped_attention,
    feedforward.FeedForward: _feed_forward,
    feedforward.GatedFeedForward: _gated_feed_forward,
    T5Positions: _relations,
    Dropout: lambda low, layer, hidden: hidden,
    nn.Embedding: _embedding,
    quantized.QuantizedEmbedding: _embedding,
    QuantizedLinear: Lowering.linear,
    QuantizedMatrix: lambda low, layer, x, bias=None: low.product(layer, bias, x),
    quantized.QuantizedRecurrent: _recurrent,
    LSTMStep: _lstm_step,
    CrossAttentionStep: _looking,
    positions.LearnedPositions: _positions,
    positions.SinusoidalPositions: _positions,
    positions.RobertaPositions: _positions,
    positions.RotaryPositions: _rotary,
}


def tracer(method: str, arguments: Callable[[LeafTracer], list[Any]]) -> LeafTracer:
    """Of a method of a model; `arguments` makes its arguments."""
    return LeafTracer(frozenset(LEAVES), PAIRS, method, arguments)
