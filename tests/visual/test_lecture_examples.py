"""The lectures' examples against arithmetic, written naively in float64."""

from __future__ import annotations

import math
import time

import pytest
import torch
from visual_pages import SAVAGE, addresses, scripts, widest

from regard.attention import masks
from regard.attention.relative_bias import RelativeBias, causal_bucket, two_sided_bucket
from regard.errors import ConfigError
from regard.visual import (
    bias_curves,
    bucket_grid,
    distance_grid,
    lecture_examples,
    mask_grid,
    position_table,
    sinusoids,
    sparse_patterns,
)


def softmax(scores: list[float]) -> list[float]:
    powers = [math.exp(score - max(scores)) for score in scores]
    return [power / math.fsum(powers) for power in powers]


def test_self_attention_is_the_softmax_of_the_divided_scores():
    weights = lecture_examples.self_attention().numbers["weights"].tolist()
    assert weights[0] == pytest.approx(softmax([112 / 8, 96 / 8, 16 / 8, 8 / 8]), abs=1e-12)
    assert weights[1] == pytest.approx(softmax([92 / 8, 124 / 8, 22 / 8, 8 / 8]), abs=1e-12)
    assert [round(w, 3) for w in weights[1]] == [0.018, 0.982, 0.0, 0.0]  # the slide: .08, .91


def test_self_attention_shows_each_step_and_where_the_slide_differs():
    text = lecture_examples.self_attention().text()
    row = next(line for line in text.splitlines() if line.startswith("brown") and "124" in line)
    assert row.split() == ["brown", "124", "15.5", "0.982011", "0.91"]
    assert "z = 0.8808 v_1 + 0.1192 v_2" in text
    assert text.count("not the softmax of its scores") == 2


def test_self_attention_of_two_words_agrees_with_the_slide():
    picture = lecture_examples.self_attention(
        [[112, 96]], ["Thinking", "Machines"], 64, [[0.88, 0.12]]
    )
    assert "not the softmax" not in picture.text()
    assert picture.numbers["weights"].tolist()[0] == pytest.approx([0.8807970779, 0.1192029220])


def test_convolution_equals_the_naive_sums():
    image, filters = lecture_examples.IMAGE, lecture_examples.FILTERS
    naive = [
        [
            [
                sum(image[i + a][j + b] * f[a][b] for a in range(3) for b in range(3))
                for j in range(4)
            ]
            for i in range(4)
        ]
        for f in filters
    ]
    picture = lecture_examples.convolution()
    assert picture.numbers["maps"].tolist() == naive
    assert naive[0][0] == [3, -1, -3, -1]  # as the slide goes on
    assert "= 3" in picture.text()


def test_kernel_regression_is_nadaraya_watson():
    numbers = lecture_examples.kernel_regression(count=15, width=0.7, queries=9).numbers
    keys, values = numbers["keys"].tolist(), numbers["values"].tolist()
    for x, fitted in zip(numbers["queries"].tolist(), numbers["fitted"].tolist(), strict=True):
        kernel = [math.exp(-0.5 * ((x - key) / 0.7) ** 2) for key in keys]
        naive = math.fsum(k * y for k, y in zip(kernel, values, strict=True)) / math.fsum(kernel)
        assert fitted == pytest.approx(naive, abs=1e-12)


def test_variance_of_scores_grows_like_the_width_of_a_head():
    dims, queries, keys = (1, 16, 256), 400, 16
    numbers = lecture_examples.saturation(dims, queries, keys).numbers
    for index, head_dim in enumerate(dims):
        # The keys of a query share it, so that the error is that of `queries` draws, not more.
        plain, scaled = numbers["plain_variance"][index], numbers["scaled_variance"][index]
        assert plain == pytest.approx(head_dim, rel=0.25)
        assert scaled == pytest.approx(plain / head_dim, rel=1e-9)
    assert numbers["plain_largest"][2] > 0.85 and numbers["scaled_largest"][2] < 0.35
    assert numbers["plain_gradient"][2] < numbers["scaled_gradient"][2] / 2


def test_the_gradient_of_the_largest_weight_equals_autograd():
    scores = torch.randn(6, dtype=torch.float64, requires_grad=True)
    largest = scores.softmax(-1).max()
    largest.backward()
    a = largest.item()
    assert scores.grad.abs().sum().item() == pytest.approx(2 * a * (1 - a))


@pytest.mark.parametrize("name", ["self_attention", "convolution", "kernel_regression"])
def test_every_example_is_shown_as_text_page_and_picture(name, tmp_path):
    picture = getattr(lecture_examples, name)()
    assert widest(picture.text(80)) <= 80
    page = picture.html()
    assert scripts(page) == 0 and addresses(page) == []
    assert picture.save(tmp_path / "a.png").stat().st_size > 5000


def test_sinusoids_equal_the_formula():
    weights = sinusoids(20, 8).weights
    for position in range(20):
        for i in range(4):
            angle = position / 10000 ** (2 * i / 8)
            assert weights[position][2 * i] == pytest.approx(math.sin(angle), abs=1e-6)
            assert weights[position][2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-6)


def test_grids_of_relative_positions_equal_their_formulas():
    clipped, buckets = distance_grid(9, 2).weights, bucket_grid(9, 8).weights
    for i in range(9):
        for j in range(9):
            assert clipped[i][j] == max(-2, min(2, j - i))
            near = min(abs(i - j), 1) if abs(i - j) < 2 else 2  # exact up to 1, 2 ... 8 wider
            assert buckets[i][j] == near + 4 * (j > i)
    assert bucket_grid(40, causal=True).weights[0] == (0,) * 40  # later keys


@pytest.mark.parametrize("bucket, least", [(causal_bucket, 0), (two_sided_bucket, -20)])
def test_curves_of_a_bias_are_those_of_its_heads(bucket, least):
    bias = RelativeBias(2, bucket)
    found = bias_curves(bias, 20)
    assert [series.name for series in found.series] == ["head 1", "head 2"]
    table = bias(torch.tensor([20]), torch.arange(0, 21 - least))[0, :, 0]
    for series, head in zip(found.series, table, strict=True):
        assert [x for x, _ in series.points] == list(range(least, 21))
        assert [y for _, y in series.points][::-1] == head.tolist()


def test_signed_values_have_two_colours_and_a_scale():
    svg = position_table([[0.5, -1.0]]).svg()
    assert 'fill="#2c5fd8" fill-opacity="0.500"' in svg and 'fill="#d4611f"><title>' in svg
    assert ">-1</text>" in svg and ">1   rows: positions" in svg
    text = sinusoids(4, 64).text()
    assert "blank = -1, @ = 1" in text and widest(text) <= 80


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


@pytest.mark.parametrize("grid", [[[0.0, 1.0]], masks.causal().grid(3, 3), [[1, 0]]])
def test_a_grid_that_is_no_boolean_matrix_raises_an_error(grid):
    with pytest.raises(ConfigError, match="`grid` must be a boolean matrix"):
        mask_grid(grid)


def test_masks_have_any_labels():
    grid = masks.causal().grid(len(SAVAGE), len(SAVAGE))[0, 0]
    assert widest(mask_grid(grid, SAVAGE, SAVAGE).text(60)) <= 60


def test_a_large_table_is_drawn_in_five_seconds(tmp_path):
    start = time.process_time()
    assert len(sinusoids(100, 512).svg()) < 500_000  # one image, not 51,200 rectangles
    assert time.process_time() - start < 5


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
