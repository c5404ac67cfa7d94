"""A key/value cache whose rows leave and join without copies of the others.

Kwon et al. 2023, "Efficient memory management for large language model serving with
PagedAttention", section 4.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import cast

import torch
from torch import Tensor

from regard import ops
from regard.attention.cache import KeyValueCache, extremes
from regard.state import State

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
