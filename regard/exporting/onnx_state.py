"""What a model has in a graph instead of its own parts: states without memory, and tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from regard.attention.relative_bias import RelativeBias
from regard.data.batches import Sequences
from regard.layers.positions import PositionTable
from regard.ops import KeyMask
from regard.state import State


@dataclass
class GraphCache(State):
    """Keys and values of earlier tokens, as many of each sequence; a `KeyValueCache` in a graph.

    past: keys and values of each layer, (B, H, P, K), in turn.
    grown: the same with those of new tokens, (B, H, P + T, K), once all layers have been computed.
    """

    past: list[Tensor]
    grown: list[Tensor] = field(default_factory=list)
    equal_lengths = True

    @property
    def longest(self) -> int:
        """P."""
        return self.past[0].size(2)

    @property
    def lengths(self) -> Tensor:
        """(B,) times P."""
        return self.past[0].new_full(self.past[0].shape[:1], self.longest, dtype=torch.long)

    def reserve(self, count: int) -> GraphCache:
        """The same: it is not written into."""
        return self

    def positions(self, count: int) -> Tensor:
        """Of the next tokens of each sequence, (B, T)."""
        return self.lengths[:, None] + torch.arange(count)

    def mask(self, count: int, window: int | None = None) -> KeyMask:
        keys = torch.arange(self.longest + count)
        queries = self.longest + torch.arange(count)[:, None]
        seen = keys <= queries  # (T, P + T)
        return KeyMask((seen if window is None else seen & (keys > queries - window))[None, None])

    def layer(self, number: int) -> GraphLayer:
        """The keys and values of one layer."""
        return GraphLayer(self, number)

    def advance(self, count: int) -> GraphCache:
        """The same: the next call of the graph has the new tokens among the earlier ones."""
        return self


@dataclass(frozen=True)
class GraphLayer:
    """One layer of a `GraphCache`."""

    cache: GraphCache
    number: int

    def update(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        past = self.cache.past[2 * self.number : 2 * self.number + 2]
        both = [torch.cat(pair, 2) for pair in zip(past, (key, value), strict=True)]
        self.cache.grown += both
        return both[0], both[1]


@dataclass
class GraphSource(State):
    """Keys and values of sources, a `SourceMemory` in a graph.

    read: of each layer, (B, H, S, K), in turn.  attention_mask: (B, S), 1 for tokens.
    """

    read: list[Tensor]
    attention_mask: Tensor

    @property
    def mask(self) -> KeyMask:
        """Every query sees the tokens of its source."""
        return KeyMask.padding(self.attention_mask.sum(1), self.attention_mask.size(1))

    def layer(self, layer: int, heads: int | None = None) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer."""
        return self.read[2 * layer], self.read[2 * layer + 1]


class GatheredPositions(PositionTable):
    """A table of positions whose vectors are gathered: a runtime shortens a slice that goes beyond
    its end, and adds what is left to every token if it is one vector; to gather it is an error.
    """

    def __init__(self, table: PositionTable):
        super().__init__()
        self.table, self.max_length = table, table.max_length

    def forward(self, count: int, start: int = 0) -> Tensor:
        return self.at((start + torch.arange(count))[None], start + count)[0]

    def at(self, positions: Tensor, end: int) -> Tensor:
        return self.table.at(positions, end)

    def of(self, batch: Sequences) -> Tensor:
        return self.table.of(batch)


@contextmanager
def gathered_positions(module: nn.Module) -> Iterator[None]:
    """Inside, each table of positions of a module is a `GatheredPositions`."""
    tables = [
        (part, name, table)
        for part in module.modules()
        for name, table in part.named_children()
        if isinstance(table, PositionTable)
    ]
    for part, name, table in tables:
        setattr(part, name, GatheredPositions(table))
    try:
        yield
    finally:
        for part, name, table in tables:
            setattr(part, name, table)


class BucketTable:
    """The bucket of each distance, computed before: a runtime rounds logarithms in its own way, and
    the bounds of buckets are whole numbers.
    """

    def __init__(self, bias: RelativeBias):
        limit = bias.max_distance
        self.limit = limit
        self.table = bias.bucket(torch.arange(-limit, limit + 1), bias.buckets, limit)

    def __call__(self, distance: Tensor, buckets: int, max_distance: int) -> Tensor:
        """(...,) -> (...,)"""
        return self.table[distance.clamp(-self.limit, self.limit) + self.limit]
