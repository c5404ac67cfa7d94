"""The cost of layers: what is counted equals the formulas of table 1 of the paper."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from benchmarks import layers
from regard.attention.attend import attend
from regard.attention.masks import window
from regard.ops import KeyMask

NAMES = [kind.name for kind in layers.KINDS]


@pytest.fixture(params=layers.KINDS, ids=NAMES)
def kind(request) -> layers.Kind:
    return request.param


def test_multiplications_grow_as_the_formula(kind):
    """Up to a constant: attention has two products, and a recurrent layer two matrices."""
    sizes = [(32, 8), (64, 8), (64, 16)]
    found = [layers.multiplications(kind.make(d), n, d) / kind.cost_of(n, d) for n, d in sizes]
    assert found == pytest.approx([found[0]] * 3) and 1 <= found[0] < 3


def test_the_last_position_depends_on_the_first_after_as_many_layers_as_the_formula_says(kind):
    for length in (2, 9, 10, 28, 35):
        assert layers.path(kind, length) == kind.path_of(length)


def test_only_a_recurrent_layer_has_operations_that_wait_for_each_position(kind):
    first, second, third = (layers.chain(kind.make(4), n) for n in (16, 32, 64))
    assert (second - first, third - second) == ((48, 96) if kind.waits == "n" else (0, 0))


@pytest.mark.parametrize("length", [5, 16, 33, 50])
def test_attention_by_blocks_equals_attention_with_a_window(length):
    x = torch.randn(1, length, 4)
    grid = window(16).grid(length, length)[0]
    expected = attend(x, x, x, mask=KeyMask(grid))
    torch.testing.assert_close(layers.RestrictedAttention(4)(x), expected)


def test_the_quick_measurement_writes_its_table_and_its_plot(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(layers, "QUICK_LENGTHS", (8, 16))
    monkeypatch.setattr(layers, "QUICK_WIDTHS", (4,))
    threads = torch.get_num_threads()
    monkeypatch.setattr(sys, "argv", ["layers", "--quick", "--out", str(tmp_path)])
    layers.main()
    torch.set_num_threads(threads)
    found = json.loads((tmp_path / "layers.json").read_text())
    assert [row["layer"] for row in found["rows"]] == NAMES
    assert all(each > 0 for row in found["rows"] for *_, each in row["seconds"])
    assert "<svg" in (tmp_path / "layers.svg").read_text()
    lines = (tmp_path / "layers.md").read_text().splitlines()
    assert len({line.count("|") for line in lines}) == 1 and len(lines) == 2 + len(NAMES)
    assert "| 3 n + " in lines[3] and capsys.readouterr().out.startswith("| layer")
