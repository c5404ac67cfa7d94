"""Each example once an epoch, within `max_tokens`, in an order of the seed, resumed anywhere."""

from __future__ import annotations

import json
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data import Buckets, EpochSampler, TokenArray, sorted_batches
from regard.data.sampler import BucketSampler

LENGTHS = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 12)), min_size=1, max_size=40)


def columns_of(lengths):
    """Row i is made of the number i alone, so that every row can be told in a batch."""
    return [TokenArray.of([[i] * pair[side] for i, pair in enumerate(lengths)]) for side in (0, 1)]


def random_columns(rows=60, seed=0):
    return columns_of(np.random.default_rng(seed).integers(1, 15, (rows, 2)).tolist())


def grids(batch):
    return [batch.source.ids.tolist(), batch.target.ids.tolist(), batch.target.lengths.tolist()]


@given(LENGTHS, st.integers(1, 60), st.none() | st.integers(1, 50), st.integers(0, 3))
def test_each_example_occurs_once_an_epoch_within_max_tokens(lengths, budget, pool, epoch):
    buckets = Buckets(columns_of(lengths), (-1, -2), max_tokens=budget, seed=5, pool=pool)
    seen = []
    for batch in buckets.epoch(epoch):
        rows = batch.target.ids[:, 0].tolist()
        seen += rows
        assert batch.source.lengths.tolist() == [lengths[i][0] for i in rows]
        assert batch.target.lengths.tolist() == [lengths[i][1] for i in rows]
        cost = len(rows) * max(max(lengths[i]) for i in rows)
        assert cost <= budget or len(rows) == 1
        assert batch.count == sum(lengths[i][1] - 1 for i in rows)
    assert sorted(seen) == list(range(len(lengths)))
    assert buckets.oversized == sum(max(pair) > budget for pair in lengths)


@pytest.mark.parametrize("pool", [None, 100])
def test_lengths_decide_batches_only_in_pools(pool):
    """With lengths drawn from 1 to 50, the 10 lengths of a random batch differ widely."""
    lengths = np.random.default_rng(0).integers(1, 51, 400)
    columns = [TokenArray.of([0] * n for n in lengths)]
    epoch = Buckets(columns, (0,), max_tokens=9999, seed=1, batch_size=10, pool=pool).epoch(0)
    spreads = [int(np.ptp(lengths[rows])) for rows in epoch.indices]
    assert len(spreads) == 40
    assert min(spreads) > 20 if pool is None else max(spreads) < 20


@settings(max_examples=30)
@given(
    st.none() | st.integers(1, 70),
    st.none() | st.integers(1, 70),
    st.integers(0, 50),
    st.integers(10, 60),
)
def test_a_saved_position_resumes_with_its_own_pools(saved_pool, pool, position, budget):
    def sampler(kind, pool):
        return kind(Buckets(random_columns(), (0, 0), max_tokens=budget, seed=3, pool=pool))

    begun = sampler(EpochSampler, saved_pool)
    list(islice(begun, position))
    position = json.loads(json.dumps(begun.position()))
    resumed = sampler(BucketSampler, pool)
    resumed.restore(position)
    assert resumed.position() == position
    some = begun.batches_per_epoch + 3
    assert [grids(one) for one in islice(resumed, some)] == [
        grids(one) for one in islice(begun, some)
    ]


@given(LENGTHS, st.integers(1, 60))
def test_sorted_batches_have_each_example_once_longest_first(lengths, budget):
    batches = sorted_batches(columns_of(lengths), (0, 0), max_tokens=budget)
    found = [None] * len(lengths)
    longest = []
    for rows, batch in zip(batches.indices, batches, strict=True):
        longest.append(max(batch.source.ids.shape[1], batch.target.ids.shape[1]))
        for row, first in zip(rows, batch.target.ids[:, 0].tolist(), strict=True):
            assert found[row] is None
            found[row] = first
    assert found == list(range(len(lengths)))
    assert longest == sorted(longest, reverse=True)
