"""States under selection, growth and shortening, against naive memories that keep lists."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from regard.attention.cache import KeyValueCache, SourceMemory
from regard.state import Cells, State


@dataclass
class Nested(State):
    cells: Cells
    seen: Tensor
    name: str = "plain"


def nested(rows: int = 3) -> Nested:
    cells = Cells(torch.randn(rows, 2, 4), torch.randn(rows, 2, 4, requires_grad=True))
    return Nested(cells, torch.arange(rows))


# ---- every state -------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 2), max_size=6))
def test_select_indexes_every_tensor(rows):
    state, index = nested(), torch.tensor(rows, dtype=torch.long)
    chosen = state.select(index)
    assert chosen.rows == len(rows) and chosen.name == "plain" and state.rows == 3
    for name, tensor in chosen.tensors().items():
        assert torch.equal(tensor, state.tensors()[name][index])


def test_detach_cuts_the_graph_at_every_depth():
    state = nested()
    assert state.cells.cell.requires_grad
    cut = state.detach()
    assert not any(t.requires_grad for t in cut.tensors().values())
    assert torch.equal(cut.cells.cell, state.cells.cell)


def test_a_state_is_restored_from_its_named_tensors():
    state = nested()
    assert list(state.tensors()) == ["cells.hidden", "cells.cell", "seen"]
    other = nested()
    back = other.with_tensors(state.tensors())
    assert all(back.tensors()[name] is t for name, t in state.tensors().items())
    with pytest.raises(KeyError):
        other.with_tensors({"seen": state.seen})


def test_the_rows_of_a_state_are_those_of_its_first_part():
    @dataclass
    class Reads(State):
        source: SourceMemory
        last: Tensor

    memory = SourceMemory(torch.zeros(2, 1, 1, 3, 1), torch.zeros(2, 1, 1, 3, 1), torch.ones(2), 4)
    assert Reads(memory, torch.zeros(8)).rows == 8


def test_a_state_with_a_list_field_raises_an_error():
    @dataclass
    class Wrong(State):
        layers: list

    with pytest.raises(TypeError, match="`layers` must be a tensor, a state"):
        Wrong([torch.zeros(3)]).select(torch.tensor([0]))


# ---- the key/value cache against a list a row --------------------------------------------------


class Lists:
    """The naive cache: every row has a list of its keys."""

    def __init__(self, rows: int):
        self.keys: list[list[Tensor]] = [[] for _ in range(rows)]

    def write(self, key: Tensor) -> None:
        for row, new in zip(self.keys, key, strict=True):  # (H, T, K)
            row.extend(new.unbind(1))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 5)),
        st.tuples(st.just("write through"), st.integers(1, 5)),
        st.tuples(st.just("select"), st.lists(st.integers(0, 99), min_size=1, max_size=4)),
        st.tuples(st.just("reorder"), st.lists(st.integers(0, 99), min_size=4, max_size=4)),
        st.tuples(st.just("cut"), st.lists(st.integers(0, 99), min_size=4, max_size=4)),
    ),
    max_size=12,
)


def write_through(cache: KeyValueCache, layer: int, key: Tensor, value: Tensor) -> list[Tensor]:
    """As kernels do: number by number, into each row's own line; and read where the table says."""
    found = []
    for lines, new in ((cache.keys, key), (cache.values, value)):
        read = torch.zeros(*new.shape[:2], cache.longest + new.size(2), new.size(3))
        for row, length in enumerate(cache.lengths.tolist()):
            end = length + new.size(2)
            lines[row, layer, :, length:end] = new[row]
            for at in range(end):
                line = row if cache.origin is None else cache.origin[row, at]
                read[row, :, at] = lines[line, layer, :, at]
        found.append(read)
    return found


@settings(deadline=None, max_examples=60)
@given(STEPS, st.integers(1, 3))
def test_the_cache_equals_lists_of_keys_and_values(steps, room):
    naive, layers = Lists(3), 2
    cache = KeyValueCache.empty(3, layers, 2, 3, capacity=room, like=torch.zeros(1))
    for verb, argument in steps:
        rows = len(naive.keys)
        if verb.startswith("write"):
            new = torch.randn(rows, 2, argument, 3)
            write = KeyValueCache.write if verb == "write" else write_through
            naive.write(new)
            cache = cache.reserve(argument)
            at = cache.positions(argument)
            for layer in range(layers):
                keys, values = write(cache, layer, new + layer, -new)
                assert keys.shape == values.shape == (rows, 2, cache.longest + argument, 3)
                assert_same_lists(naive, keys - layer, values)
            assert at[:, -1].tolist() == [len(row) - 1 for row in naive.keys]
            cache = cache.advance(argument)
        elif verb in ("select", "reorder"):
            index = torch.tensor([i % rows for i in argument])
            index = index[:rows] if verb == "reorder" else index
            cache = cache.select(index)
            naive.keys = [list(naive.keys[i]) for i in index.tolist()]
        else:
            lengths = [n % (len(row) + 1) for n, row in zip(argument, naive.keys, strict=False)]
            cache = cache.truncate(torch.tensor(lengths))
            naive.keys = [row[:n] for n, row in zip(lengths, naive.keys, strict=True)]
        assert cache.lengths.tolist() == [len(row) for row in naive.keys]
        assert cache.longest >= max(map(len, naive.keys)) and cache.rows == len(naive.keys)
        assert not cache.equal_lengths or len(set(map(len, naive.keys))) == 1
        assert cache.origin is None or cache.equal_lengths


def assert_same_lists(naive: Lists, keys: Tensor, values: Tensor) -> None:
    for row, expected in enumerate(naive.keys):
        if expected:
            together = torch.stack(expected, 1)  # (H, T, K)
            torch.testing.assert_close(keys[row, :, : len(expected)], together)
            torch.testing.assert_close(values[row, :, : len(expected)], -together)


def test_the_capacity_of_the_cache_grows_by_a_quarter():
    cache = KeyValueCache.empty(1, 1, 1, 2, capacity=4, like=torch.zeros(1))
    rooms = []
    for _ in range(110):
        cache = cache.reserve(1)
        cache.write(0, torch.ones(1, 1, 1, 2), torch.ones(1, 1, 1, 2))
        cache = cache.advance(1)
        rooms.append(cache.keys.size(3))
    assert sorted(set(rooms)) == [4, 20, 36, 52, 68, 85, 106, 132]
    assert cache.reserve(1) is cache
    assert cache.reserve(1000).keys.size(3) == 1110


def test_expected_tokens_are_reserved_unless_they_are_too_many():
    cache = KeyValueCache.empty(1, 1, 1, 2, capacity=4, like=torch.zeros(1)).reserve(10).advance(10)
    assert cache.expect_tokens(90).reserve(11).keys.size(3) == 100
    assert cache.expect_tokens(5000).reserve(11).keys.size(3) == 2 * 21 + 128
    assert cache.expect_tokens(3).reserve(30).keys.size(3) == 40


def test_select_copies_no_keys_until_most_of_them_are_unused():
    cache = KeyValueCache.empty(8, 1, 1, 2, like=torch.zeros(1)).advance(3)
    beam = cache.select(torch.tensor([1, 1, 0, 5, 4, 4, 4, 7]))
    assert beam.keys is cache.keys and beam.rows == 8
    fewer = beam.advance(1).select(torch.tensor([4, 6, 4, 5, 1]))
    assert fewer.keys is cache.keys and fewer.rows == 5
    assert fewer.origin[:, :5].tolist() == [
        *([4, 4, 4, 4, 0], [4, 4, 4, 6, 1], [4, 4, 4, 4, 2], [4, 4, 4, 5, 3], [1, 1, 1, 1, 4])
    ]
    fewest = fewer.select(torch.tensor([1, 2, 3, 1]))
    assert fewest.keys.size(0) == 4 and fewest.origin is None
    wider = fewer.select(torch.arange(9) % 5)
    assert wider.keys.size(0) == 9 and wider.origin is None


def test_the_cache_has_the_type_of_its_example():
    cache = KeyValueCache.empty(2, 1, 1, 1, like=torch.zeros(1, dtype=torch.bfloat16))
    assert cache.keys.dtype == cache.values.dtype == torch.bfloat16
    assert cache.lengths.dtype == torch.long


# ---- the memory of the source against copies ---------------------------------------------------


def expanded(memory: SourceMemory) -> dict[str, Tensor]:
    """Every row with its own copy."""
    memory = replace(memory)
    memory.materialize()
    return {n: t.repeat_interleave(memory.sharing, 0) for n, t in memory.tensors().items()}


@settings(deadline=None)
@given(st.integers(1, 4), st.lists(st.lists(st.integers(0, 99), max_size=9), max_size=5))
def test_a_shared_source_memory_selects_as_copies_of_it(sentences, selections):
    memory = SourceMemory(
        torch.randn(sentences, 2, 1, 3, 2), torch.randn(sentences, 2, 1, 3, 2),
        torch.arange(sentences),
    )  # fmt: skip
    naive = expanded(memory)
    for selection in selections:
        rows = memory.rows
        index = torch.tensor([i % rows for i in selection] if rows else [], dtype=torch.long)
        memory = memory.select(index)
        naive = {name: tensor[index] for name, tensor in naive.items()}
        assert memory.rows == len(index)
        for name, tensor in expanded(memory).items():
            assert torch.equal(tensor, naive[name])
