"""Multi-head attention (Vaswani et al. 2017, section 3.2.2): project, split, attend, merge.

MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W^O,  head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V)

Projections that read the same input are one matrix, since one large product is faster than three
small ones; the name tables of published weights split them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from regard.attention.attend import SCALED, Score, attend, attend_qkv
from regard.attention.gates import gate_of
from regard.attention.tap import Laid, Tap
from regard.attention.unpadded import FirstToken, TokenSubset
from regard.layers.dropout import check_probability
from regard.layers.linear import Linear
from regard.ops import ALL_KEYS, KeyMask, linear, unstack_qkv

# What a decoder does with new keys and values: stores them, gives back all that it has.
Remember = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def split_heads(x: Tensor, heads: int, head_dim: int = -1) -> Tensor:
    """(B, T, H * K) -> (B, H, T, K); `head_dim` must be given where there may be no heads."""
    return x.unflatten(-1, (heads, head_dim)).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(B, H, T, K) -> (B, T, H * K)"""
    return x.transpose(1, 2).flatten(2)


class Joined(Linear):
    """Several projections of one input side by side: (..., D) -> `parts` times (..., D')."""

    def __init__(self, d_in: int, d_out: int, parts: int):
        self.parts = parts
        super().__init__(d_in, parts * d_out)

    def reset_parameters(self) -> None:
        """Each part as if it stood alone: Glorot's bound depends on the shape."""
        for part in self.weight.chunk(self.parts):
            nn.init.xavier_uniform_(part)
        nn.init.zeros_(self.bias)


class SelfAttention(nn.Module):
    """Every position attends to the positions of its own sequence.

    `heads` counts those that are there, `kept` are their numbers (from 0) before any was pruned.
    """

    projections = ("query_key_value",)

    def __init__(
        self, d_model: int, heads: int, *, kind: str, dropout: float = 0.0, score: Score = SCALED
    ):
        super().__init__()
        check_heads(d_model, heads)
        check_probability(dropout)
        self.heads, self.head_dim, self.kept = heads, d_model // heads, tuple(range(heads))
        self.dropout, self.score = dropout, score
        self.query_key_value = Joined(d_model, d_model, parts=3)
        self.output = Joined(d_model, d_model, parts=1)
        self.tap = Tap(kind)

    def forward(
        self, hidden: Tensor, allowed: KeyMask = ALL_KEYS, remember: Remember | None = None
    ) -> Tensor:
        """(B, T, D) -> (B, T, D); `remember` brings the keys and values of earlier positions."""
        # (B, T, 3 * H * K) -> (B, T, 3, H, K)
        joined = self.query_key_value(hidden).unflatten(-1, (3, self.heads, self.head_dim))
        gate = gate_of(self, hidden)
        if remember is None:
            return self._merged(attend_qkv(joined, **self._asked(allowed, gate)), gate)
        query, key, value = unstack_qkv(joined)
        key, value = remember(key, value)
        return self._read(query, key, value, allowed, gate)

    def at(
        self, some: FirstToken | TokenSubset, hidden: Tensor, allowed: KeyMask = ALL_KEYS
    ) -> Tensor:
        """What some positions read, and no other: (B, T, D) -> (B, 1, D), or as `some` says."""
        projection, width = self.query_key_value, self.heads * self.head_dim
        if not isinstance(projection, Joined):  # weights in another form, which cannot be cut
            return some.of(self(hidden, allowed))
        weight, bias = projection.weight, projection.bias
        query = split_heads(
            linear(some.of(hidden), weight[:width], bias[:width]), self.heads, self.head_dim
        )
        joined = linear(hidden, weight[width:], bias[width:])
        key, value = split_heads(joined, 2 * self.heads, self.head_dim).chunk(2, dim=1)
        return self._read(query, key, value, some.mask_of(allowed), gate_of(self, hidden))

    def _read(
        self, query: Tensor, key: Tensor, value: Tensor, allowed: KeyMask, gate: Tensor | None
    ) -> Tensor:
        context = attend(query, key, value, **self._asked(allowed, gate))
        return self._merged(context, gate)

    def _asked(self, allowed: KeyMask, gate: Tensor | None) -> dict[str, Any]:
        return dict(
            score=self.score,
            mask=allowed,
            dropout=self.dropout if self.training else 0.0,
            tap=self.tap if gate is None else Laid(self.tap, gate.mul),
        )

    def _merged(self, context: Tensor, gate: Tensor | None) -> Tensor:
        return self.output(merge_heads(context if gate is None else context * gate))


class CrossAttention(nn.Module):
    """Every position attends to the positions of a memory; `heads` and `kept` as above."""

    projections = ("query", "key_value")

    def __init__(self, d_model: int, heads: int, *, dropout: float = 0.0):
        super().__init__()
        check_heads(d_model, heads)
        check_probability(dropout)
        self.heads, self.head_dim, self.kept = heads, d_model // heads, tuple(range(heads))
        self.dropout = dropout
        self.query = Joined(d_model, d_model, parts=1)
        self.key_value = Joined(d_model, d_model, parts=2)
        self.output = Joined(d_model, d_model, parts=1)
        self.tap = Tap("cross")

    def read(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of a memory (N, S, D), computed once: 2 times (N, H, S, K)."""
        joined = split_heads(self.key_value(memory), 2 * self.heads, self.head_dim)
        key, value = joined.chunk(2, dim=1)  # (N, 2H, S, K) -> 2 times (N, H, S, K)
        return key, value

    def forward(
        self, hidden: Tensor, key: Tensor, value: Tensor, allowed: KeyMask = ALL_KEYS
    ) -> Tensor:
        """(B, T, D) -> (B, T, D), reading keys and values (N, H, S, K) where N divides B.

        B/N neighbouring rows read the same memory (the hypotheses of a beam): they become further
        queries of one attention instead of copies of the memory.
        """
        rows = hidden.size(0)
        query = share(split_heads(self.query(hidden), self.heads, self.head_dim), key.size(0))
        dropout = self.dropout if self.training else 0.0
        gate = gate_of(self, hidden)

        def by_rows(weights_or_context: Tensor) -> Tensor:
            laid = unshare(weights_or_context, rows)
            return laid if gate is None else laid * gate

        tap = Laid(self.tap, by_rows)
        context = attend(query, key, value, mask=allowed, dropout=dropout, tap=tap)
        return self.output(merge_heads(by_rows(context)))


def share(query: Tensor, memories: int) -> Tensor:
    """Rows that read the same memory side by side: (N * R, H, T, K) -> (N, H, R * T, K)."""
    if query.size(0) == memories:
        return query
    rows, heads, count, width = query.shape
    split = query.reshape(memories, rows // memories, heads, count, width)
    return split.transpose(1, 2).reshape(memories, heads, -1, width)


def unshare(context: Tensor, rows: int) -> Tensor:
    """The inverse of `share`: (N, H, R * T, K) -> (N * R, H, T, K)."""
    memories, heads, queries, width = context.shape
    if rows == memories:
        return context
    split = context.reshape(memories, heads, rows // memories, -1, width)
    return split.transpose(1, 2).reshape(rows, heads, -1, width)


def check_heads(d_model: int, heads: int) -> None:
    """The heads must share the width evenly."""
    if heads < 1 or d_model % heads:
        raise ValueError(f"`heads` must divide `d_model`, but they are {heads} and {d_model}.")
