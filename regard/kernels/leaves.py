"""What each layer becomes in a program: the leaves of the graphs that are lowered."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from regard.attention.attend import Dot, General
from regard.attention.multihead import CrossAttention, GroupedQueryAttention, Memory, SelfAttention
from regard.attention.relative import RelativeBias, T5Positions
from regard.attention.selection import CrossAttentionStep
from regard.data.batches import ALL
from regard.kernels.lowering import (
    ACTIVATION,
    CROSS,
    EMBEDDING,
    GATED,
    GROUPED,
    GRU_CELL,
    NOT_QUANTIZED,
    POSITIONS,
    RNN_CELL,
    SELF,
    SELF_FIRST_TOKEN,
    TABLE,
    TOKEN_POSITIONS,
    Lowering,
    concatenate,
    is_part,
    readable_table,
    table_of,
)
from regard.kernels.tracer import (
    CACHE,
    COUNT,
    MASK,
    SEGMENT_IDS,
    SOURCE,
    SOURCE_MASK,
    SUBSET,
    TOKENS,
    WHOLE_TEXTS,
    Built,
    Register,
    Symbol,
    require,
)
from regard.layers.dropout import AddNorm, Dropout
from regard.layers.feedforward import (
    FeedForward,
    GatedFeedForward,
)
from regard.layers.positions import (
    LearnedPositions,
    RobertaPositions,
    RotaryPositions,
    SinusoidalPositions,
)
from regard.layers.quantized import (
    PANEL,
    QuantizedEmbedding,
    QuantizedLinear,
    QuantizedMatrix,
    QuantizedRecurrent,
)
from regard.layers.recurrent import LSTMStep

OTHER_SOURCE = "cross-attention must read the source of the state"
OTHER_CACHE = "attention must use the cache of the state, with `state.mask(count)`"
OTHER_POSITIONS = "positions must be those of the tokens that are read"
IDS, SEGMENTS = range(2)  # what an embedding looks up, as encoder.h has it

# Layers whose results are pairs, (hidden, cell), or a pair of hidden states and such a pair.
PAIRS: dict[type, int] = {LSTMStep: 1, QuantizedRecurrent: 2}


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
    return lowering.attention(SELF, layer, projected, number, bias=table, window=window)


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
        GROUPED,
        layer.heads * layer.head_dim,
        query,
        other=key_value.number,
        layer=cache.parts[1],
        number=layer.head_dim**-0.5,
        table=angles.parts[0],
        **sizes,
    )
    return lowering.linear(layer.output, context)


def _rotary(lowering: Lowering, layer: RotaryPositions, *arguments: Any, method: str) -> Symbol:
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
    lowering: Lowering, positions: T5Positions, *arguments: Any, method: str
) -> list[Symbol]:
    """Of each layer, from which table and for which tokens."""
    _check_read(arguments, method)
    return [Symbol("bias", (positions.table_of(n), method)) for n in range(positions.layers)]


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
        attended = lowering.attention(SELF, layer, lowering.linear(projection, hidden), 0)
        return lowering.first_of(attended)

    def slice_of(first: int, end: int, x: Any) -> Register:
        bias = None if projection.bias is None else projection.bias[first:end]
        return lowering.product(projection.matrix.part(first, end), bias, x)

    query = slice_of(0, width, lowering.first_of(hidden))
    key_value = slice_of(width, 3 * width, hidden)
    return lowering.attention(SELF_FIRST_TOKEN, layer, query, 0, other=key_value.number)


def _cross_attention(
    lowering: Lowering, layer: CrossAttention, hidden: Any, memory: Any
) -> Register:
    key: Any = memory.values["key"] if isinstance(memory, Built) and memory.kind is Memory else None
    require(is_part(key, "layer", SOURCE), OTHER_SOURCE)
    number = key.parts[1]
    expected = {f: Symbol("layer", (SOURCE, number, n)) for n, f in enumerate(("key", "value"))}
    require(memory.values == expected | {"mask": SOURCE_MASK}, OTHER_SOURCE)
    return lowering.attention(CROSS, layer, lowering.linear(layer.query, hidden), number)


def _activation(layer: FeedForward | GatedFeedForward) -> int:
    require(layer.activation in ACTIVATION, "the activation has no compiled form")
    return ACTIVATION[layer.activation]


def _feed_forward(lowering: Lowering, layer: FeedForward, hidden: Any) -> Register:
    inner = lowering.linear(layer.inner, hidden, _activation(layer))
    return lowering.linear(layer.outer, inner)


def _gated_feed_forward(lowering: Lowering, layer: GatedFeedForward, hidden: Any) -> Register:
    inner = lowering.linear(layer.inner, hidden)
    kind, width = _activation(layer), lowering.width(inner) // 2
    return lowering.linear(layer.outer, lowering.write(GATED, width, inner, activation=kind))


def _embedding(lowering: Lowering, layer: Any, ids: Any) -> Register:
    # Without segments all tokens belong to the first: the kernels look up 0.
    kinds = {TOKENS: IDS, SEGMENT_IDS: SEGMENTS, Symbol("zeros", (TOKENS,)): SEGMENTS}
    require(ids in kinds, "an embedding must look up the ids of the batch, or its segments")
    if isinstance(layer, QuantizedEmbedding):
        matrix = layer.matrix
        return lowering.write(EMBEDDING, matrix.in_features, matrix=matrix, heads=kinds[ids])
    table = readable_table(layer.weight)
    return lowering.write(TABLE, table.size(1), table=table, heads=kinds[ids])


def _positions(lowering: Lowering, layer: Any, *arguments: Any, method: str) -> Register:
    _check_read(arguments, method)
    table = readable_table(table_of(layer))
    if not isinstance(layer, RobertaPositions):
        return lowering.write(POSITIONS, table.size(1), table=table)
    require(method == "of", "positions counted from the padding have no compiled form with a cache")
    return lowering.write(TOKEN_POSITIONS, table.size(1), table=table, heads=IDS, layer=layer.pad)


def _recurrent(
    lowering: Lowering, layer: QuantizedRecurrent, x: Any, hidden: Any, cell: Any
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
    RotaryPositions: _rotary,
}


def lowering_of(model: nn.Module) -> Lowering:
    """Of a method of this model."""
    return Lowering(model, LEAVES)
