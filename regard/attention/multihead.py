"""Multi-head attention (Vaswani et al. 2017, section 3.2.2): project, split, attend, merge.

MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W^O,  head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V)

Projections that read the same input are one matrix, since one large product is faster than three
small ones; the name tables of published weights split them.
"""

from dataclasses import dataclass
from functools import partial
from typing import Protocol

from torch import Tensor, nn

from regard.attention.attend import SCALED, Relation, Score, attend
from regard.attention.capture import CapturePoint, ReshapedCapture
from regard.data.batches import ALL, TokenSubset
from regard.errors import ConfigError
from regard.layers.dropout import check_probability
from regard.layers.linear import Linear
from regard.layers.positions import rotate
from regard.ops import ALL_KEYS, KeyMask, linear, unstack_qkv


class LayerCache(Protocol):
    """The keys and values of earlier positions, in one layer of a decoder's state."""

    def update(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store those of new positions, (B, H, T, K) twice; give back all, (B, H, S, K) twice."""
        ...


def split_heads(x: Tensor, heads: int, head_dim: int = -1) -> Tensor:
    """(B, T, H * K) -> (B, H, T, K); `head_dim` is K, and must be given where H may be 0."""
    return x.unflatten(-1, (heads, head_dim)).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(B, H, T, K) -> (B, T, H * K)"""
    return x.transpose(1, 2).flatten(2)


def split_keys_values(packed: Tensor, heads: int, head_dim: int) -> tuple[Tensor, Tensor]:
    """Keys and values from their packed projection: (B, S, 2 * H * K) -> 2 times (B, H, S, K)."""
    key, value = split_heads(packed, 2 * heads, head_dim).chunk(2, dim=1)  # from (B, 2H, S, K)
    return key, value


class PackedLinear(Linear):
    """`parts` projections of one input as one matrix: (..., d_in) -> (..., `parts` * d_out)."""

    def __init__(self, d_in: int, d_out: int, parts: int, *, bias: bool = True):
        self.parts = parts
        super().__init__(d_in, parts * d_out, bias=bias)

    def reset_parameters(self) -> None:
        """Glorot's initialization of each projection by itself: its bound depends on the shape."""
        for part in self.weight.chunk(self.parts):
            nn.init.xavier_uniform_(part)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class MultiHeadAttention(nn.Module):
    """What every attention with several heads has.

    heads: H, without pruned heads.
    total_heads: H before pruning.
    remaining_heads: the original indices of the H heads.
    head_dim: K.
    output: W^O, which reads the concatenated heads, (B, T, H * K).
    projections: the names of the layers that project to queries, keys and values.
    """

    projections: tuple[str, ...]
    output: PackedLinear
    capture: CapturePoint

    def __init__(self, d_model: int, heads: int, head_dim: int | None, dropout: float):
        super().__init__()
        check_probability(dropout)
        self.heads, self.head_dim = heads, head_dim or head_dim_of(d_model, heads)
        self.total_heads, self.remaining_heads = heads, tuple(range(heads))
        self.dropout = dropout


class SelfAttention(MultiHeadAttention):
    """Every position attends to the positions of its own sequence.

    Args:
        kind: "encoder" or "decoder", as attention capture names it.
        head_dim: K; None: D / H.
        dropout: of the attention weights.
        score: how queries and keys are compared.
        projection_bias: whether the projections have biases (T5's have none).

    Raises:
        ValueError: `head_dim` is None and `heads` does not divide `d_model`.
    """

    projections = ("query_key_value",)

    def __init__(
        self,
        d_model: int,
        heads: int,
        *,
        kind: str,
        head_dim: int | None = None,
        dropout: float = 0.0,
        score: Score = SCALED,
        projection_bias: bool = True,
    ):
        super().__init__(d_model, heads, head_dim, dropout)
        self.score = score
        width = heads * self.head_dim
        self.query_key_value = PackedLinear(d_model, width, parts=3, bias=projection_bias)
        self.output = PackedLinear(width, d_model, parts=1, bias=projection_bias)
        self.capture = CapturePoint(kind)

    def forward(
        self,
        hidden: Tensor,
        mask: KeyMask = ALL_KEYS,
        *,
        relation: Relation | None = None,
        cache: LayerCache | None = None,
        tokens: TokenSubset = ALL,
    ) -> Tensor:
        """(B, T, D) -> (B, T, D), or fewer tokens where `tokens` selects some.

        Args:
            mask: the keys that each query may see.
            relation: the relative-position terms.
            cache: the keys and values of earlier positions; those of `hidden` are added to it.
            tokens: the tokens whose queries are computed; all tokens have keys and values.

        Raises:
            ValueError: both `cache` and `tokens` are given.
        """
        if tokens is not ALL and cache is not None:
            raise ValueError("`tokens` is not for a `cache`: a step computes all its tokens.")
        if relation is not None and tokens is not ALL:  # it holds for the queries of all tokens
            return tokens.of(self(hidden, mask, relation=relation))
        if tokens is not ALL:
            return self._for_tokens(tokens, hidden, mask)
        # (B, T, 3 * H * K) -> (B, T, 3, H, K)
        projected = self.query_key_value(hidden).unflatten(-1, (3, self.heads, self.head_dim))
        query, key, value = unstack_qkv(projected)
        if cache is not None:
            key, value = cache.update(key, value)
        return self._read(query, key, value, mask, relation)

    def _for_tokens(self, tokens: TokenSubset, hidden: Tensor, mask: KeyMask) -> Tensor:
        projection, width = self.query_key_value, self.heads * self.head_dim
        if not isinstance(projection, PackedLinear):  # quantized, or with adapters
            return tokens.of(self(hidden, mask))
        weight, shift = projection.weight, projection.bias
        query_bias, key_value_bias = (
            (None, None) if shift is None else (shift[:width], shift[width:])
        )
        query = split_heads(
            linear(tokens.of(hidden), weight[:width], query_bias), self.heads, self.head_dim
        )
        packed = linear(hidden, weight[width:], key_value_bias)
        key, value = split_keys_values(packed, self.heads, self.head_dim)
        return self._read(query, key, value, tokens.mask_of(mask))

    def _read(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: KeyMask,
        relation: Relation | None = None,
    ) -> Tensor:
        bias = (
            None
            if relation is None
            else relation.scores(query, key, self.score, self.remaining_heads)
        )
        context = attend(
            query,
            key,
            value,
            score=self.score,
            mask=mask,
            bias=bias,
            value_term=None if relation is None else relation.value_term,
            dropout=self._dropout,
            capture=self.capture,
        )
        return self.output(merge_heads(context))

    @property
    def _dropout(self) -> float:
        return self.dropout if self.training else 0.0


@dataclass(frozen=True)
class Memory:
    """What the cross-attention of one layer reads: keys and values (N, H, S, K), and the mask of
    the keys.
    """

    key: Tensor
    value: Tensor
    mask: KeyMask


class CrossAttention(MultiHeadAttention):
    """Every position attends to the positions of a memory; arguments as of `SelfAttention`."""

    projections = ("query", "key_value")

    def __init__(
        self,
        d_model: int,
        heads: int,
        *,
        head_dim: int | None = None,
        dropout: float = 0.0,
        score: Score = SCALED,
        projection_bias: bool = True,
    ):
        super().__init__(d_model, heads, head_dim, dropout)
        self.score = score
        width = heads * self.head_dim
        self.query = PackedLinear(d_model, width, parts=1, bias=projection_bias)
        self.key_value = PackedLinear(d_model, width, parts=2, bias=projection_bias)
        self.output = PackedLinear(width, d_model, parts=1, bias=projection_bias)
        self.capture = CapturePoint("cross")

    def read(self, memory: Tensor, mask: KeyMask = ALL_KEYS) -> Memory:
        """The keys and values of an encoder's states (N, S, D); mask: the keys that queries see."""
        key, value = split_keys_values(self.key_value(memory), self.heads, self.head_dim)
        return Memory(key, value, mask)

    def forward(self, hidden: Tensor, memory: Memory) -> Tensor:
        """(B, T, D) -> (B, T, D), with N memories, where N divides B.

        B / N neighbouring sequences (the hypotheses of a beam) read the same memory: they are
        computed as further queries of one sequence, so that the memory is not copied.
        """
        count, key = hidden.size(0), memory.key
        query = share(split_heads(self.query(hidden), self.heads, self.head_dim), key.size(0))
        context = attend(
            query,
            key,
            memory.value,
            score=self.score,
            mask=memory.mask,
            dropout=self.dropout if self.training else 0.0,
            capture=ReshapedCapture(self.capture, partial(unshare, rows=count)),
        )
        return self.output(merge_heads(unshare(context, count)))


def share(query: Tensor, memories: int) -> Tensor:
    """The queries of the R sequences that read the same memory as those of one sequence:
    (N * R, H, T, K) -> (N, H, R * T, K), with N = `memories`.
    """
    if query.size(0) == memories:
        return query
    rows, heads, count, width = query.shape
    split = query.reshape(memories, rows // memories, heads, count, width)  # (N, R, H, T, K)
    return split.transpose(1, 2).reshape(memories, heads, -1, width)  # -> (N, H, R, T, K) -> ...


def unshare(context: Tensor, rows: int) -> Tensor:
    """The inverse of `share`: (N, H, R * T, K) -> (N * R, H, T, K), with N * R = `rows`."""
    memories, heads, queries, width = context.shape
    if rows == memories:
        return context
    split = context.reshape(memories, heads, rows // memories, -1, width)  # (N, H, R, T, K)
    return split.transpose(1, 2).reshape(rows, heads, -1, width)  # -> (N, R, H, T, K) -> ...


def head_dim_of(d_model: int, heads: int) -> int:
    """K = D / H.

    Raises:
        ValueError: `heads` does not divide `d_model`.
    """
    if heads < 1 or d_model % heads:
        raise ValueError(f"`heads` must divide `d_model`, but they are {heads} and {d_model}.")
    return d_model // heads


class GroupedQueryAttention(MultiHeadAttention):
    """Self-attention with rotary positions; head h of the queries reads keys and values
    h // (`heads` / `key_value_heads`).

    Args:
        key_value_heads: heads of keys and values; they divide `heads`.
        kind, head_dim, dropout, projection_bias: as of `SelfAttention`.

    Raises:
        ConfigError: `key_value_heads` does not divide `heads`.
        ValueError: `head_dim` is None and the heads do not divide the width.
    """

    projections = ("query", "key_value")

    def __init__(
        self,
        d_model: int,
        heads: int,
        key_value_heads: int,
        *,
        kind: str,
        head_dim: int | None = None,
        dropout: float = 0.0,
        projection_bias: bool = False,
    ):
        super().__init__(d_model, heads, head_dim, dropout)
        if heads % key_value_heads:
            raise ConfigError(f"`key_value_heads` must divide `heads`, {heads}: {key_value_heads}")
        self.key_value_heads = key_value_heads
        width, shared = heads * self.head_dim, key_value_heads * self.head_dim
        self.query = PackedLinear(d_model, width, parts=1, bias=projection_bias)
        self.key_value = PackedLinear(d_model, shared, parts=2, bias=projection_bias)
        self.output = PackedLinear(width, d_model, parts=1, bias=projection_bias)
        self.capture = CapturePoint(kind)

    def forward(
        self,
        hidden: Tensor,
        mask: KeyMask = ALL_KEYS,
        *,
        angles: Tensor,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """(B, T, D) -> (B, T, D)

        Args:
            mask: the keys that each query may see.
            angles: of the positions of `hidden`, (T, K) or (B, T, K): see `RotaryPositions`.
            cache: the rotated keys, and the values, of earlier positions; it takes those of
                `hidden`.
        """
        query = rotate(split_heads(self.query(hidden), self.heads, self.head_dim), angles)
        packed = self.key_value(hidden)  # (B, T, 2 * G * K), with G = `key_value_heads`
        key, value = split_keys_values(packed, self.key_value_heads, self.head_dim)
        key = rotate(key, angles)
        if cache is not None:
            key, value = cache.update(key, value)
        context = attend(
            query,
            self._for_each_query(key),
            self._for_each_query(value),
            score=SCALED,
            mask=mask,
            dropout=self.dropout if self.training else 0.0,
            capture=self.capture,
        )
        return self.output(merge_heads(context))

    def _for_each_query(self, shared: Tensor) -> Tensor:
        """Each head as often as queries read it: (B, G, S, K) -> (B, H, S, K)."""
        readers = self.heads // self.key_value_heads
        return shared if readers == 1 else shared.repeat_interleave(readers, dim=1)
