"""The caches of decoders: keys and values of earlier positions, and of a source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import cast

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

    keys, values: (N, L, H, C, K), with capacity for C positions; N is B, or more after `select`.
    lengths: (B,), the stored positions of each sequence.
    longest: no length is above it.
    equal_lengths: all lengths are `longest`. Both are Python values: reading them does not wait for
        the device.
    origin: (B, C), or None: position t of sequence b is stored in row `origin[b, t]` of `keys` and
        `values`; None: in row b.

    A beam search reorders its hypotheses at every step: `select` then reorders the table `origin`
    instead of copying keys and values. New positions are written to row b, because no sequence
    reads what is stored at `longest` or later. This holds only for equal lengths, so that a cache
    with different lengths has no table. Code that cannot use the table calls `materialize`, which
    copies.
    """

    keys: Tensor
    values: Tensor
    lengths: Tensor
    longest: int = 0
    equal_lengths: bool = True
    origin: Tensor | None = None
    expected: int = 0  # positions announced by `expect_tokens`; 0: none
    JOINS = True

    @classmethod
    def empty(
        cls, rows: int, layers: int, heads: int, head_dim: int, *, capacity: int = 16, like: Tensor
    ) -> KeyValueCache:
        """A cache of `rows` sequences without any position, with the device and type of `like`."""
        keys = like.new_zeros(rows, layers, heads, capacity, head_dim)
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
        """This cache with capacity for `count` further positions.

        Where it is too small, it grows by a quarter, or to the expected tokens if these are at most
        twice the needed ones.
        """
        capacity, needed = self.keys.size(3), self.longest + count
        if needed <= capacity:
            return self
        capacity = max(
            capacity + max(16, capacity // 4), needed, min(self.expected, 2 * needed + HEADROOM)
        )
        keys, values = (
            _with_capacity([(old, self.longest)], capacity) for old in (self.keys, self.values)
        )
        return replace(self, keys=keys, values=values)._with_origin(self.origin)

    def expect_tokens(self, count: int) -> KeyValueCache:
        return replace(self, expected=self.longest + count)

    def positions(self, count: int) -> Tensor:
        """The positions of the next `count` tokens of each sequence: (B, T)."""
        return self.lengths[:, None] + torch.arange(count, device=self.lengths.device)

    def write(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store keys and values (B, H, T, K) of the next T positions in a layer (from 0).

        A layer may have fewer heads than the cache has capacity for.

        Returns:
            Those of all S positions, (B, H, S, K) twice, in the type of `key`. Positions after a
            sequence's own length hold old values, which `mask` hides.
        """
        self.materialize()
        count, heads = key.size(2), slice(key.size(1))
        keys, values = self.keys[:, layer, heads], self.values[:, layer, heads]  # (B, H, C, K)
        if self.equal_lengths:
            keys[:, :, self.longest : self.longest + count] = key
            values[:, :, self.longest : self.longest + count] = value
        else:
            row = torch.arange(key.size(0), device=key.device)[:, None]
            position = self.positions(count)  # (B, T)
            keys[row, :, position] = key.transpose(1, 2).to(keys)  # (B, H, T, K) -> (B, T, H, K)
            values[row, :, position] = value.transpose(1, 2).to(values)
        filled = slice(self.longest + count)
        return keys[:, :, filled].to(key), values[:, :, filled].to(value)

    def layer(self, number: int) -> CachedLayer:
        """The keys and values of one layer (from 0), for its attention."""
        return CachedLayer(self, number)

    def mask(self, count: int, window: int | None = None) -> KeyMask:
        """The mask of the next `count` tokens over cached and new keys: a token sees all keys up to
        its own position, or the last `window` of these.
        """
        device, total = self.lengths.device, self.longest + count
        if self.longest == 0:
            return KeyMask.causal(count, device, window)
        if count == 1 and self.equal_lengths and (window is None or total <= window):
            return ALL_KEYS
        keys, queries = torch.arange(total, device=device), self.positions(count)[:, None, :, None]
        allowed = keys <= queries  # (B, 1, T, S)
        return KeyMask(allowed if window is None else allowed & (keys > queries - window))

    def advance(self, count: int) -> KeyValueCache:
        """After every layer has written `count` tokens."""
        return replace(self, lengths=self.lengths + count, longest=self.longest + count)

    def select(self, rows: Tensor) -> KeyValueCache:
        """The cache of these sequences, (B',) indices. It uses the memory of this one.

        Keys and values are copied where `rows` are more than the rows that are stored, or at most
        half of them, or where lengths differ; else the table `origin` is reordered.
        """
        self.check_unused()
        stored, count = self.keys.size(0), rows.size(0)
        lengths = self.lengths.index_select(0, rows)
        origin = rows[:, None] if self.origin is None else self.origin.index_select(0, rows)
        if self.equal_lengths and stored // 2 < count <= stored:
            return replace(self, lengths=lengths)._with_origin(origin)
        keys, values = self._copied(origin)
        return replace(self, keys=keys, values=values, lengths=lengths, origin=None)

    def joined(self, other: KeyValueCache) -> KeyValueCache:
        """A copy of both, row after row."""
        self.check_unused()
        other.check_unused()
        parts = replace(self), replace(other)
        for part in parts:
            part.materialize()
        # With capacity for the expected tokens, or the next one would copy all of it again.
        room = 2 * max(part.longest for part in parts) + HEADROOM
        expected = min(room, max(part.expected for part in parts))
        capacity = max(expected, *(part.keys.size(3) for part in parts))
        keys = _with_capacity([(part.keys, part.longest) for part in parts], capacity)
        values = _with_capacity([(part.values, part.longest) for part in parts], capacity)
        equal_lengths = self.equal_lengths and other.equal_lengths and self.longest == other.longest
        lengths = torch.cat([self.lengths, other.lengths])
        return replace(
            parts[0],
            keys=keys,
            values=values,
            lengths=lengths,
            longest=max(self.longest, other.longest),
            equal_lengths=equal_lengths,
        )

    def materialize(self) -> None:
        """Copy keys and values so that sequence b is stored in row b and no table is needed."""
        if self.origin is not None:
            self.keys, self.values = self._copied(self.origin)
            self.origin = None

    def truncate(self, lengths: Tensor) -> KeyValueCache:
        """Keep the first `lengths[b]` positions of sequence b, (B,): prompts of several lengths."""
        self.check_unused()
        shortest, longest = extremes(lengths)
        equal_lengths = shortest == longest
        cache = replace(self)
        if not equal_lengths:
            cache.materialize()
        shorter = replace(
            cache, lengths=lengths.to(self.lengths), longest=longest, equal_lengths=equal_lengths
        )
        return shorter._with_origin(cache.origin)

    def _with_origin(self, origin: Tensor | None) -> KeyValueCache:
        """With the table (B, C) or (B, 1) for the stored positions; new ones go to row b."""
        if origin is None:
            return self
        table = torch.arange(self.rows, device=origin.device)[:, None].repeat(1, self.keys.size(3))
        table[:, : self.longest] = origin[:, : self.longest]
        return replace(self, origin=table)

    def _copied(self, origin: Tensor) -> tuple[Tensor, Tensor]:
        """Copies with sequence b in row b, read from the rows `origin`, (B, C) or (B, 1)."""
        position = torch.arange(self.longest, device=origin.device)

        def copied(stored: Tensor) -> Tensor:
            if origin.size(1) == 1:
                return stored.index_select(0, origin[:, 0])
            copies = stored.new_zeros(origin.size(0), *stored.shape[1:])
            gathered = stored[origin[:, : self.longest], :, :, position]  # (B, T, L, H, K)
            # (B, T, L, H, K) -> (B, L, H, T, K)
            copies[..., : self.longest, :] = gathered.permute(0, 2, 3, 1, 4)
            return copies

        return copied(self.keys), copied(self.values)


@dataclass(frozen=True)
class CachedLayer:
    """One layer of a `KeyValueCache`."""

    cache: KeyValueCache
    number: int

    def update(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store those of new positions, (B, H, T, K) twice; return all, (B, H, S, K) twice."""
        return self.cache.write(self.number, key, value)


def extremes(lengths: Tensor) -> tuple[int, int]:
    """The smallest and the largest of lengths (B,), in one transfer; 0 and 0 where B is 0."""
    if not lengths.numel():
        return 0, 0
    least, longest = torch.stack(lengths.aminmax()).tolist()
    return least, longest


@dataclass
class SourceMemory(State):
    """Keys and values of a source, computed once, read by cross-attention at every step.

    The hypotheses of one source are neighbours and share its memory, so that a beam needs no
    copies: B is N times `sharing`. `select` keeps this sharing where the rows allow it. Sources
    that `select` leaves out stay stored until they are half of the entries.

    keys, values: (N, L, H, S, K), one entry for each source, or more after `select`.
    lengths: (N,), the tokens of each source.
    sharing: hypotheses that read each source.
    origin: (N,), the entry of each source; None: its own index.
    """

    keys: Tensor
    values: Tensor
    lengths: Tensor
    sharing: int = 1
    origin: Tensor | None = None

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
        """The padding mask: a query sees the tokens of its source."""
        return KeyMask.padding(self.lengths, self.keys.size(3))

    def layer(self, layer: int, heads: int | None = None) -> tuple[Tensor, Tensor]:
        """Keys and values (N, H, S, K) of one layer, which may have fewer heads than another."""
        self.materialize()
        return self.keys[:, layer, :heads], self.values[:, layer, :heads]

    def select(self, rows: Tensor) -> SourceMemory:
        sources = rows.cpu().numpy() // self.sharing  # one transfer from the device
        starts = np.flatnonzero(np.diff(sources, prepend=-1))
        counts = np.diff(starts, append=len(sources))
        sharing = int(np.gcd.reduce(counts)) or 1
        chosen = sources[starts].repeat(counts // sharing)
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
        """Copy the entries into the order of the sources, so that `origin` is not needed."""
        if self.origin is not None:
            self.keys = self.keys.index_select(0, self.origin)
            self.values = self.values.index_select(0, self.origin)
            self.origin = None


def _with_capacity(parts: Sequence[tuple[Tensor, int]], capacity: int) -> Tensor:
    """The rows of all parts in one tensor with `capacity` positions, (B, L, H, `capacity`, K).

    parts: each (B_i, L, H, C, K), and how many of its positions are in use: only these are copied.
    """
    rows = sum(tensor.size(0) for tensor, _ in parts)
    first = parts[0][0]
    joined = first.new_zeros(rows, *first.shape[1:3], capacity, first.size(4))
    start = 0
    for tensor, count in parts:
        end = start + tensor.size(0)
        joined[start:end, :, :, :count] = tensor[:, :, :, :count]
        start = end
    return joined


def _stacked(layers: list[Tensor], dtype: torch.dtype | None) -> Tensor:
    """L times (N, H, S, K) -> (N, L, H, S, K)"""
    rows, _, count, width = layers[0].shape
    shape = rows, len(layers), max(layer.size(1) for layer in layers), count, width
    stacked = layers[0].new_zeros(shape, dtype=dtype)
    for number, layer in enumerate(layers):
        stacked[:, number, : layer.size(1)] = layer
    return stacked


PAGE = 64  # positions
POOL_BYTES = 1 << 29  # of the keys, and of the values, that are reserved at least


@dataclass
class PagedCache(KeyValueCache):
    """Keys and values of rows of different lengths, on pages.

    `keys`, `values` are a pool of N pages, (N, L, H, PAGE, K). Position t of row b lies on page
    `pages[b, t // PAGE]`, at t modulo PAGE; -1 stands for no page. No page belongs to two rows, and
    pages of rows that have left belong to the next ones. A pool that is too small is copied into a
    larger one, which takes memory as it is written to.
    """

    pages: Tensor = field(kw_only=True)  # (B, M)

    @classmethod
    def of(cls, cache: KeyValueCache) -> PagedCache:
        """What is in a cache, copied; it is used up."""
        _, layers, heads, _, width = cache.keys.shape
        pool = cache.keys.new_zeros(0, layers, heads, PAGE, width)
        none = torch.full((0, 0), -1)
        return cls(pool, pool, cache.lengths[:0], pages=none).joined(cache)

    def copy(self) -> PagedCache:
        """See `State.copy`; in memory of its own, since steps write into it."""
        self.check_unused()
        return PagedCache.of(self.contiguous())

    def reserve(self, count: int) -> PagedCache:
        """With pages for `count` further positions of each row."""
        return self._with_pages(self.lengths + count)

    def write(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values so far, copied out of the pages."""
        at, heads = self.positions(key.size(2)), slice(key.size(1))  # (B, T)
        page = self.pages.gather(1, at // PAGE)
        for pool, new in ((self.keys, key), (self.values, value)):
            # (B, H, T, K) -> (B, T, H, K)
            pool[:, layer, heads][page, :, at % PAGE] = new.transpose(1, 2).to(pool)
        count = self.longest + key.size(2)
        keys, values = (pool[:, layer, heads] for pool in (self.keys, self.values))
        return _read(keys, self.pages, count).to(key), _read(values, self.pages, count).to(value)

    def select(self, rows: Tensor) -> PagedCache:
        """The cache of these rows, in the memory of this one; copied where rows are repeated."""
        if len({*rows.tolist()}) < len(rows):
            return PagedCache.of(self.contiguous().select(rows))
        self.consume()
        return self._with_rows(self.lengths[rows], self.pages[rows])

    def joined(self, other: KeyValueCache) -> PagedCache:
        """These rows, and copies of those of `other`."""
        self.consume()
        other.consume()
        none = self.pages.new_full((other.rows, self.pages.size(1)), -1)
        lengths = torch.cat([self.lengths, other.lengths])
        cache = self._with_rows(lengths, torch.cat([self.pages, none]))._with_pages(lengths)
        added = replace(other)
        added.materialize()
        for row, length in enumerate(other.lengths.tolist()):
            pages = cache.pages[self.rows + row].tolist()
            for page, begin in zip(pages, range(0, length, PAGE), strict=False):
                part = slice(begin, min(length, begin + PAGE))
                count = part.stop - begin
                cache.keys[page, :, :, :count] = added.keys[row, :, :, part]
                cache.values[page, :, :, :count] = added.values[row, :, :, part]
        return cache

    def contiguous(self) -> KeyValueCache:
        """The same keys and values, copied into a cache without pages."""
        keys, values = (_read(pool, self.pages, self.longest) for pool in (self.keys, self.values))
        return KeyValueCache(keys, values, self.lengths, self.longest, self.equal_lengths)

    def _with_rows(self, lengths: Tensor, pages: Tensor) -> PagedCache:
        shortest, longest = extremes(lengths)
        equal_lengths = shortest == longest
        return replace(
            self, lengths=lengths, pages=pages, longest=longest, equal_lengths=equal_lengths
        )

    def _with_pages(self, lengths: Tensor) -> PagedCache:
        """With pages for so many positions of each row, (B,)."""
        needed = (lengths + PAGE - 1) // PAGE  # (B,)
        if bool((needed <= (self.pages >= 0).sum(1)).all()):
            return self
        width = max(int(needed.max()), self.pages.size(1))
        pages = self.pages.new_full((len(lengths), width), -1)
        pages[:, : self.pages.size(1)] = self.pages
        missing = (pages < 0) & (torch.arange(width) < needed[:, None])
        count, free = int(missing.sum()), self._free_pages()
        keys, values, size = self.keys, self.values, self.keys.size(0)
        if len(free) < count:
            keys, values = (_larger(pool, size + count) for pool in (keys, values))
            free = torch.cat([free, torch.arange(size, keys.size(0))])
        added = free[:count]
        # What an earlier row has left might not be finite, which a mask does not hide.
        keys[added], values[added] = 0.0, 0.0
        pages[missing] = added
        return replace(self, keys=keys, values=values, pages=pages)

    def _free_pages(self) -> Tensor:
        free = torch.ones(self.keys.size(0), dtype=torch.bool)
        free[self.pages[self.pages >= 0]] = False
        return free.nonzero()[:, 0]


def paged(state: State) -> State:
    """A state whose rows leave and join without copies of the others: of a cache of keys and values
    on the CPU a `PagedCache`; another state as it is.
    """
    plain = type(state) is KeyValueCache and state.keys.is_cpu
    return PagedCache.of(cast(KeyValueCache, state)) if plain else state


def _larger(pool: Tensor, pages: int) -> Tensor:
    """The pool with memory for at least so many pages."""
    size = pool.shape[1:].numel() * pool.itemsize
    pages = max(pages, 2 * pool.size(0), POOL_BYTES // size)
    larger = ops.large_empty((pages, *pool.shape[1:]), pool.dtype)
    larger[: pool.size(0)] = pool
    return larger


def _read(pool: Tensor, pages: Tensor, count: int) -> Tensor:
    """The first positions of rows, zeros where they have no page: (N, ..., PAGE, K) and (B, M) ->
    (B, ..., count, K)
    """
    table = pages[:, : -(-count // PAGE)]
    gathered = pool[table.clamp(min=0)]  # (B, m, ..., PAGE, K)
    gathered[table < 0] = 0.0
    return gathered.movedim(1, -3).flatten(-3, -2)[..., :count, :]  # -> (B, ..., m, PAGE, K)
