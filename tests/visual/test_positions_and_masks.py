"""Pictures of positions and masks against their formulas."""

from __future__ import annotations

import math

import pytest
from visual_pages import widest

from regard.attention import masks
from regard.visual import Heatmap, mask_grid, sinusoids, sparse_patterns


def test_sinusoids_equal_the_formula():
    weights = sinusoids(20, 8).weights
    for position in range(20):
        for i in range(4):
            angle = position / 10000 ** (2 * i / 8)
            assert weights[position][2 * i] == pytest.approx(math.sin(angle), abs=1e-6)
            assert weights[position][2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-6)


def test_the_picture_of_a_mask_has_its_cells():
    picture = mask_grid(masks.causal().grid(4, 4)[0, 0], list("abcd"), list("abcd"))
    rows = [line.split()[1:] for line in picture.text().splitlines()[2:6]]
    assert rows == [
        ["1", "0", "0", "0"],
        ["1", "1", "0", "0"],
        ["1", "1", "1", "0"],
        ["1", "1", "1", "1"],
    ]
    sparse = (masks.window(1) | masks.global_(1)).grid(4, 4)[0, 0]
    assert [list(map(bool, row)) for row in mask_grid(sparse).weights] == sparse.tolist()


def test_the_four_patterns_of_big_bird_are_drawn():
    found = sparse_patterns(blocks=10, random=2, seed=1)
    assert list(found) == ["random", "window", "global", "combined"]
    grids = {name: [[bool(x) for x in row] for row in one.weights] for name, one in found.items()}
    for i in range(10):
        for j in range(10):
            assert grids["window"][i][j] == (abs(i - j) <= 1)
            assert grids["global"][i][j] == (0 in (i, j) or 9 in (i, j))
            together = any(grids[name][i][j] for name in ("random", "window", "global"))
            assert grids["combined"][i][j] == together
    inner = [sum(row) for row in grids["random"][1:9]]
    assert inner == [2] * 8 and not any(grids["random"][0] + grids["random"][9])
    drawn = [grids["random"][i][j] for i in range(10) for j in range(10) if grids["window"][i][j]]
    assert not any(drawn)  # a random block is none of the others
    assert "<svg" in found["combined"].svg()


def test_signed_values_have_two_colours_and_a_scale():
    svg = Heatmap.of([[0.5, -1.0]]).svg()
    assert 'fill="#2c5fd8" fill-opacity="0.500"' in svg and 'fill="#d4611f"><title>' in svg
    assert ">-1</text>" in svg and ">1</text>" in svg
    text = sinusoids(4, 64).text()
    assert "blank = -1, @ = 1" in text and widest(text) <= 80
