"""The paged cache against lists of keys and values, and what it does not copy."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from regard.attention.cache import PAGE, KeyValueCache, PagedCache
from regard.errors import RegardError

LAYERS, HEADS, WIDTH = 2, 2, 3
LENGTHS = st.one_of(st.integers(0, 6), st.integers(PAGE - 2, PAGE + 2), st.integers(120, 140))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.one_of(st.just(1), st.integers(1, PAGE + 9))),
        st.tuples(st.just("join"), st.lists(LENGTHS, min_size=1, max_size=3)),
        st.tuples(st.just("select"), st.lists(st.integers(0, 99), min_size=1, max_size=5)),
        st.tuples(st.just("leave"), st.integers(0, 99)),
        st.tuples(st.just("cut"), st.lists(st.integers(0, 200), min_size=1, max_size=9)),
    ),
    max_size=15,
)
Rows = list[list[Tensor]]  # of each row the keys (H, K) of its positions


def cache_of(lengths: list[int]) -> tuple[KeyValueCache, Rows]:
    """A cache of rows of these lengths, and what is in it."""
    cache = KeyValueCache.empty(len(lengths), LAYERS, HEADS, WIDTH, capacity=1, like=torch.zeros(1))
    cache = cache.reserve(max(lengths))
    new = torch.randn(len(lengths), HEADS, max(lengths), WIDTH)
    for layer in range(LAYERS):
        cache.write(layer, new + layer, -new)
    cache = cache.advance(max(lengths)).truncate(torch.tensor(lengths))
    return cache, [[*row[:, :n].unbind(1)] for row, n in zip(new, lengths, strict=True)]


def written(cache: KeyValueCache, rows: Rows, count: int) -> KeyValueCache:
    """With new positions, after what `write` gave back was compared."""
    new = torch.randn(len(rows), HEADS, count, WIDTH)
    for row, more in zip(rows, new, strict=True):
        row.extend(more.unbind(1))
    cache = cache.reserve(count)
    for layer in range(LAYERS):
        keys, values = cache.write(layer, new + layer, -new)
        assert keys.shape == values.shape == (len(rows), HEADS, cache.longest + count, WIDTH)
        for row, expected in enumerate(rows):
            together = torch.stack(expected, 1)  # (H, T, K)
            torch.testing.assert_close(keys[row, :, : len(expected)], together + layer)
            torch.testing.assert_close(values[row, :, : len(expected)], -together)
    return cache.advance(count)


@settings(deadline=None, max_examples=40)
@given(STEPS, st.lists(LENGTHS, min_size=1, max_size=3))
def test_a_paged_cache_equals_lists_of_keys_and_values(steps, lengths):
    cache, rows = cache_of(lengths)
    cache = PagedCache.of(cache)
    for verb, argument in steps:
        if verb == "write":
            cache = written(cache, rows, argument)
        elif verb == "join":
            other, added = cache_of(argument)
            cache = cache.joined(other)
            rows += added
        elif verb == "cut":
            kept = [n % (len(row) + 1) for n, row in zip(argument, rows, strict=False)]
            kept += [len(row) for row in rows[len(kept) :]]
            cache = cache.truncate(torch.tensor(kept))
            rows = [row[:n] for n, row in zip(kept, rows, strict=True)]
        else:
            index = [i % len(rows) for i in argument] if verb == "select" else [*range(len(rows))]
            if verb == "leave" and len(rows) > 1:
                index.remove(argument % len(rows))
            cache = cache.select(torch.tensor(index))
            rows = [list(rows[i]) for i in index]
        assert cache.lengths.tolist() == [len(row) for row in rows]
        assert cache.longest == max(map(len, rows)) and cache.rows == len(rows)
        assert cache.equal_lengths == (len({len(row) for row in rows}) == 1)
        taken = cache.pages[cache.pages >= 0].tolist()
        assert len({*taken}) == len(taken)
    written(cache.copy(), [list(row) for row in rows], 1)
    written(cache.contiguous(), rows, 1)


def test_rows_that_join_and_leave_copy_nothing_of_the_others():
    cache, rows = cache_of([100, 3, PAGE])
    cache = PagedCache.of(cache)
    pool, first = cache.keys, cache.pages[0].tolist()
    for length in (7, 200, 1, 90):
        other, added = cache_of([length])
        cache, rows = cache.joined(other), rows + added
        cache = cache.select(torch.tensor([0, 1, 3]))
        rows = [rows[0], rows[1], rows[3]]
        cache = written(cache, rows, 1)
        assert cache.keys is pool and cache.pages[0, : len(first)].tolist() == first


def test_a_cache_cannot_be_used_after_its_rows_have_joined_others():
    for use in (PagedCache.of, lambda cache: PagedCache.of(cache_of([2])[0]).joined(cache)):
        cache, _ = cache_of([3, 5])
        use(cache)
        with pytest.raises(RegardError, match="This KeyValueCache was consumed by an earlier step"):
            cache.select(torch.tensor([0]))
