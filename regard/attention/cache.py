"""The caches of decoders: keys and values of earlier positions, and of a source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from regard import ops
from regard.ops import ALL_KEYS, KeyMask
from regard.state import State

HEADROOM = 128  # positions for which a cache has memory beyond those that are needed now


@dataclass
class KeyValueCache(State):
    """Keys and values of every layer, for rows of different lengths.

    `keys`, `values` are (B, L, H, C, K) with room for C positions; row b has filled its first
    `lengths[b]`. No length is above `longest`, and `even` tells that all are equal to it; both are
    plain values so that nobody waits for the device to know them.

    A search reorders its rows at every step. Then a table is reordered instead of keys and values:
    position t of row b lies in row `origin[b, t]` of `keys` and `values`, which may have more
    rows than there are sequences. New positions go into row b, since nothing reads what is stored
    behind `longest`. That holds only where all rows are as long: others have no
    table. Code that cannot read through it calls `materialize`, which copies.
    """

    keys: Tensor
    values: Tensor
    lengths: Tensor  # (B,)
    longest: int = 0
    even: bool = True
    origin: Tensor | None = None  # (B, C)
    expected: int = 0  # positions announced by `expect_tokens`; 0: none
    JOINS = True

    @classmethod
    def empty(
        cls, rows: int, layers: int, heads: int, head_dim: int, *, room: int = 16, like: Tensor
    ) -> KeyValueCache:
        """No positions yet, on the device and of the type of `like`."""
        keys = like.new_zeros(rows, layers, heads, room, head_dim)
        lengths = torch.zeros(rows, dtype=torch.long, device=like.device)
        return cls(keys, torch.zeros_like(keys), lengths)

    @property
    def rows(self) -> int:
        return self.lengths.size(0)

    def copy(self) -> KeyValueCache:
        """See `State.copy`; in memory of its own, since steps write into it."""
        self.check_unused()
        return self._map(Tensor.clone, State.copy)

    def reserve(self, count: int) -> KeyValueCache:
        """With memory for `count` further positions.

        It grows by a quarter, or to the expected tokens where they are at most twice the needed.
        """
        room, needed = self.keys.size(3), self.longest + count
        if needed <= room:
            return self
        room = max(room + max(16, room // 4), needed, min(self.expected, 2 * needed + HEADROOM))
        keys, values = (_with_room([(old, self.longest)], room) for old in (self.keys, self.values))
        return replace(self, keys=keys, values=values)._through(self.origin)

    def expect_tokens(self, count: int) -> KeyValueCache:
        """See `State.expect_tokens`."""
        return replace(self, expected=self.longest + count)

    def positions(self, count: int) -> Tensor:
        """Where the next `count` tokens of each row stand: (B, T)."""
        return self.lengths[:, None] + torch.arange(count, device=self.lengths.device)

    def write(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store (B, H, T, K) at each row's next positions; give back all of the layer's.

        They come back as they are stored, in the type of `key`. A layer may have fewer heads than
        the cache has room for.

        Positions behind a row's own length hold what earlier rows left there: the mask
        `key position <= query position` hides them.
        """
        self.materialize()
        count, heads = key.size(2), slice(key.size(1))
        keys, values = self.keys[:, layer, heads], self.values[:, layer, heads]  # (B, H, C, K)
        if self.even:
            keys[:, :, self.longest : self.longest + count] = key
            values[:, :, self.longest : self.longest + count] = value
        else:
            row = torch.arange(key.size(0), device=key.device)[:, None]
            at = self.positions(count)  # (B, T)
            keys[row, :, at] = key.transpose(1, 2).to(keys)  # (B, H, T, K) -> (B, T, H, K)
            values[row, :, at] = value.transpose(1, 2).to(values)
        filled = slice(self.longest + count)
        return keys[:, :, filled].to(key), values[:, :, filled].to(value)

    def layer(self, number: int) -> CachedLayer:
        """The keys and values of one layer (from 0), for its attention."""
        return CachedLayer(self, number)

    def mask(self, count: int, window: int | None = None) -> KeyMask:
        """What the next `count` tokens may see of the cache and of each other: all up to
        themselves, or the last `window` of these.
        """
        device, total = self.lengths.device, self.longest + count
        if self.longest == 0:
            return KeyMask.causal(count, device, window)
        if count == 1 and self.even and (window is None or total <= window):
            return ALL_KEYS
        keys, queries = torch.arange(total, device=device), self.positions(count)[:, None, :, None]
        seen = keys <= queries  # (B, 1, T, S)
        return KeyMask(seen if window is None else seen & (keys > queries - window))

    def advance(self, count: int) -> KeyValueCache:
        """After every layer has written `count` tokens."""
        return replace(self, lengths=self.lengths + count, longest=self.longest + count)

    def select(self, rows: Tensor) -> KeyValueCache:
        """The cache of these rows; it is copied where they are more than the lines, or so few that
        most lines would be idle, or of different lengths. It takes the memory of this one.
        """
        self.check_unused()
        lines, count = self.keys.size(0), rows.size(0)
        lengths = self.lengths.index_select(0, rows)
        origin = rows[:, None] if self.origin is None else self.origin.index_select(0, rows)
        if self.even and lines // 2 < count <= lines:
            return replace(self, lengths=lengths)._through(origin)
        keys, values = self._copied(origin)
        return replace(self, keys=keys, values=values, lengths=lengths, origin=None)

    def joined(self, other: KeyValueCache) -> KeyValueCache:
        """See `State.joined`; both are copied."""
        self.check_unused()
        other.check_unused()
        parts = replace(self), replace(other)
        for part in parts:
            part.materialize()
        # With room for what is expected, or the next token would copy all of it again.
        most = 2 * max(part.longest for part in parts) + HEADROOM
        expected = min(most, max(part.expected for part in parts))
        room = max(expected, *(part.keys.size(3) for part in parts))
        keys = _with_room([(part.keys, part.longest) for part in parts], room)
        values = _with_room([(part.values, part.longest) for part in parts], room)
        even = self.even and other.even and self.longest == other.longest
        lengths = torch.cat([self.lengths, other.lengths])
        return replace(
            parts[0],
            keys=keys,
            values=values,
            lengths=lengths,
            longest=max(self.longest, other.longest),
            even=even,
        )

    def materialize(self) -> None:
        """Each row in its own line, and no table."""
        if self.origin is not None:
            self.keys, self.values = self._copied(self.origin)
            self.origin = None

    def truncate(self, lengths: Tensor) -> KeyValueCache:
        """Keep only the first `lengths[b]` positions of row b (prompts of different lengths)."""
        self.check_unused()
        shortest, longest = extremes(lengths)
        even = shortest == longest
        lines = replace(self)
        if not even:
            lines.materialize()
        shorter = replace(lines, lengths=lengths.to(self.lengths), longest=longest, even=even)
        return shorter._through(lines.origin)

    def rewind(self, count: int | Tensor) -> KeyValueCache:
        """Forget the last `count` positions of every row, or (B,) of each row its own number."""
        self.check_unused()
        if isinstance(count, Tensor):
            return self.truncate(self.lengths - count.to(self.lengths))
        shortest = self.longest if self.even else extremes(self.lengths)[0]
        if not 0 <= count <= shortest:
            raise ValueError(
                f"`count` must be from 0 to the shortest row's {shortest} positions, "
                f"but is {count}."
            )
        shorter = replace(self, lengths=self.lengths - count, longest=self.longest - count)
        return shorter._through(self.origin)

    def _through(self, origin: Tensor | None) -> KeyValueCache:
        """What is there lies where (B, C) or (B, 1) says; what comes goes into each row's line."""
        if origin is None:
            return self
        table = torch.arange(self.rows, device=origin.device)[:, None].repeat(1, self.keys.size(3))
        table[:, : self.longest] = origin[:, : self.longest]
        return replace(self, origin=table)

    def _copied(self, origin: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of rows that lie where (B, C) or (B, 1) says, each row in one line."""
        at = torch.arange(self.longest, device=origin.device)

        def copied(lines: Tensor) -> Tensor:
            if origin.size(1) == 1:
                return lines.index_select(0, origin[:, 0])
            copies = lines.new_zeros(origin.size(0), *lines.shape[1:])
            found = lines[origin[:, : self.longest], :, :, at]  # (B, T, L, H, K)
            copies[..., : self.longest, :] = found.permute(0, 2, 3, 1, 4)
            return copies

        return copied(self.keys), copied(self.values)


@dataclass(frozen=True)
class CachedLayer:
    """One layer of a `KeyValueCache`."""

    cache: KeyValueCache
    number: int

    def update(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store (B, H, T, K) twice; give back those of all positions, (B, H, S, K) twice."""
        return self.cache.write(self.number, key, value)


def extremes(lengths: Tensor) -> tuple[int, int]:
    """The least and the greatest, in one look at the device; 0 and 0 where there are none."""
    if not lengths.numel():
        return 0, 0
    least, most = torch.stack(lengths.aminmax()).tolist()
    return least, most


@dataclass
class SourceMemory(State):
    """Keys and values of a source, computed once, read by cross-attention at every step.

    The hypotheses of one sentence lie next to each other and share its memory: `keys` and `values`
    (N, L, H, S, K) have one entry a sentence, read by `sharing` rows each, so that a beam costs no
    copies. `select` keeps this sharing where the rows allow it. When sentences leave, their entries
    stay, until half of them are idle: sentence n then reads entry `origin[n]`.
    """

    keys: Tensor
    values: Tensor
    lengths: Tensor  # (N,)
    sharing: int = 1
    origin: Tensor | None = None  # (N,)

    @property
    def rows(self) -> int:
        return self.lengths.size(0) * self.sharing

    @classmethod
    def of(
        cls,
        layers: Sequence[tuple[Tensor, Tensor]],
        lengths: Tensor,
        dtype: torch.dtype | None = None,
    ) -> SourceMemory:
        """From keys and values (N, H, S, K) of each layer, in the type `dtype` (None: theirs).

        Layers that have fewer heads than others are filled up with zeros.
        """
        keys, values = (_stacked(list(parts), dtype) for parts in zip(*layers, strict=True))
        return cls(keys, values, lengths)

    @property
    def mask(self) -> KeyMask:
        """Every query sees the tokens of its source."""
        return KeyMask.padding(self.lengths, self.keys.size(3))

    def layer(self, layer: int, heads: int | None = None) -> tuple[Tensor, Tensor]:
        """Keys and values (N, H, S, K) of one layer, which may have fewer heads than another."""
        self.materialize()
        return self.keys[:, layer, :heads], self.values[:, layer, :heads]

    def select(self, rows: Tensor) -> SourceMemory:
        read = rows.cpu().numpy() // self.sharing  # one look at the device
        starts = np.flatnonzero(np.diff(read, prepend=-1))
        counts = np.diff(starts, append=len(read))
        sharing = int(np.gcd.reduce(counts)) or 1
        chosen = read[starts].repeat(counts // sharing)
        if np.array_equal(chosen, np.arange(self.lengths.size(0))):
            return replace(self, sharing=sharing)
        sentences = torch.from_numpy(chosen).to(rows.device)
        lengths = self.lengths.index_select(0, sentences)
        origin = sentences if self.origin is None else self.origin.index_select(0, sentences)
        memory = replace(self, lengths=lengths, sharing=sharing, origin=origin)
        if origin.size(0) <= self.keys.size(0) // 2:
            memory.materialize()
        return memory

    def materialize(self) -> None:
        """Each sentence in an entry of its own, in their order: `origin` is no longer needed."""
        if self.origin is not None:
            self.keys = self.keys.index_select(0, self.origin)
            self.values = self.values.index_select(0, self.origin)
            self.origin = None

    def rewind(self, count: int | Tensor) -> SourceMemory:
        """The source is all there before the first token, and stays."""
        return self


def _with_room(parts: Sequence[tuple[Tensor, int]], room: int) -> Tensor:
    """Rows of all parts in memory for `room` positions: (B, L, H, C, K) each and how many of its
    positions are stored, which alone are copied.
    """
    rows = sum(tensor.size(0) for tensor, _ in parts)
    first = parts[0][0]
    found = ops.zeros((rows, *first.shape[1:3], room, first.size(4)), first)
    start = 0
    for tensor, count in parts:
        end = start + tensor.size(0)
        found[start:end, :, :, :count] = tensor[:, :, :, :count]
        start = end
    return found


def _stacked(layers: list[Tensor], dtype: torch.dtype | None) -> Tensor:
    """L times (N, H, S, K) -> (N, L, H, S, K)"""
    rows, _, count, width = layers[0].shape
    shape = rows, len(layers), max(layer.size(1) for layer in layers), count, width
    stacked = layers[0].new_zeros(shape, dtype=dtype)
    for number, layer in enumerate(layers):
        stacked[:, number, : layer.size(1)] = layer
    return stacked
