"""Heat maps, positions and masks as pictures."""

from __future__ import annotations

import math
import re
import sys
from functools import partial
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from rich.console import Console
from visual_pages import SAVAGE, addresses, scripts, widest

from regard.attention import masks
from regard.errors import ConfigError, MissingExtra
from regard.visual import Heatmap, mask_grid, sinusoids, sparse_patterns

WEIGHTS = [[0.25, 0.5, 0.25], [0.0, 0.0, 0.0], [0.125, 0.0625, 0.8125]]
ROWS, COLUMNS = ["the", "cat", "sat"], ["die", "Katze", "saß"]


def random_rows(rows: int, columns: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows * columns)
    return torch.randn(rows, columns, generator=generator).softmax(-1)


def tips(svg: str) -> dict[tuple[str, str], float]:
    """Weight by words, as the tip over each cell tells them."""
    found = re.findall(r"<title>([^<]*) → ([^<]*): (-?[\d.]+)</title>", svg)
    return {(row, column): float(value) for row, column, value in found}


def test_the_tooltip_of_a_cell_has_its_labels_and_its_weight():
    shown = tips(Heatmap.of(WEIGHTS, ROWS, COLUMNS).svg())
    for row, values in zip(ROWS, WEIGHTS, strict=True):
        for column, value in zip(COLUMNS, values, strict=True):
            if row != "cat":
                assert shown[row, column] == pytest.approx(value, abs=5e-5)


@pytest.mark.parametrize("row", [[0.0, 0.0, 0.0], [float("nan")] * 3])
def test_a_row_of_zero_or_nan_weights_is_empty(row):
    picture = Heatmap.of([WEIGHTS[0], row], ROWS[:2], COLUMNS)
    assert {key[0] for key in tips(picture.svg())} == {"the"}
    assert "nan" not in picture.svg() + picture.text() + picture.html()
    assert re.search(r"cat\s+-\s+-\s+-", picture.text())


def test_numbers_in_the_terminal_are_the_weights():
    lines = Heatmap.of(WEIGHTS, ROWS, COLUMNS).text().splitlines()
    assert lines[1].split() == ["the", ".25", ".50", ".25"]
    assert lines[3].split() == ["sat", ".12", ".06", ".81"]  # half to even, as Python rounds


@pytest.mark.parametrize("columns", [1, 3, 12, 13, 40, 90])
@pytest.mark.parametrize("width", [40, 80])
def test_no_line_is_wider_than_the_terminal(columns, width):
    words = (SAVAGE + ["internationalization" * 2]) * 12
    rows, columns_words = words[:20], words[:columns]
    picture = Heatmap.of(random_rows(20, columns), rows, columns_words, "title " * 40)
    assert widest(picture.text(width)) <= width
    console = Console(width=width, force_terminal=True, color_system="truecolor")
    with console.capture() as capture:
        console.print(picture)
    plain = re.sub(r"\x1b\[[\d;]*m", "", capture.get())
    assert widest(plain) <= width


def test_colours_are_used_only_where_the_terminal_has_them():
    picture = Heatmap.of(WEIGHTS, ROWS, COLUMNS)
    for system, coloured in ((None, False), ("truecolor", True)):
        console = Console(width=80, force_terminal=True, color_system=system)
        with console.capture() as capture:
            console.print(picture)
        assert ("48;2;" in capture.get()) == coloured


@pytest.mark.parametrize("count", [3, 60])
def test_svg_and_page_are_well_formed_and_escaped(count):
    words = (SAVAGE * 8)[:count]
    picture = Heatmap.of(random_rows(count, count), words, words, SAVAGE[0])
    ElementTree.fromstring(picture.svg())
    page = picture.html()
    page.encode()
    assert scripts(page) == 0 and addresses(page) == []


def test_the_cells_of_the_png_have_the_colours_of_the_weights(tmp_path):
    from PIL import Image

    picture = Heatmap.of([[1.0, 0.0], [0.0, 1.0]], ["a", "b"], ["x", "y"])
    image = np.asarray(Image.open(picture.save(tmp_path / "a.png")).convert("RGB"), int)
    blue = (abs(image - np.array([0x2C, 0x5F, 0xD8])) < 3).all(-1)
    assert blue.sum() == pytest.approx(2 * (38 * 2) ** 2, rel=0.15)  # two cells of 38 units at 2x


def test_without_resvg_the_install_line_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(MissingExtra, match=r"pip install 'regard\[plot\]'"):
        Heatmap.of(WEIGHTS).save(tmp_path / "a.png")


def test_a_picture_without_its_texts_is_an_error(tmp_path, monkeypatch):
    import resvg_py

    without_fonts = partial(resvg_py.svg_to_bytes, skip_system_fonts=True)
    monkeypatch.setattr(resvg_py, "svg_to_bytes", without_fonts)
    with pytest.raises(ConfigError, match="needs one of these fonts"):
        Heatmap.of(WEIGHTS).save(tmp_path / "a.png")
    assert not (tmp_path / "a.png").exists()


def test_the_suffix_chooses_the_format(tmp_path):
    picture = Heatmap.of(WEIGHTS, ROWS, COLUMNS, "title")
    for suffix, begins in ((".svg", "<svg"), (".html", "<!doctype"), (".txt", "title")):
        path = picture.save(tmp_path / f"a{suffix}")
        assert path.read_text(encoding="utf-8").startswith(begins)
    with pytest.raises(ConfigError, match="must end in .html, .svg, .png or .txt, but is"):
        picture.save(tmp_path / "a.jpg")


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_show_never_fails_on_the_encoding_of_the_terminal(encoding, monkeypatch):
    import io

    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", out)
    Heatmap.of(random_rows(8, 8), SAVAGE, SAVAGE).show()
    out.flush()
    assert len(out.buffer.getvalue()) > 100


@pytest.mark.parametrize(
    "weights, message",
    [
        (torch.zeros(2, 3, 4), "must be of one head"),
        ([0.1, 0.2], "must be of one head"),
        ([[0.1], [0.2, 0.3]], "must be of one head"),
    ],
)
def test_weights_that_are_no_matrix_raise_an_error(weights, message):
    with pytest.raises(ConfigError, match=message):
        Heatmap.of(weights)


@pytest.mark.parametrize(
    "character", "\u061c\u200b\u200e\u200f\u202a\u202e\u2060\u2066\u2069\ufeff"
)
def test_characters_that_are_not_seen_or_reorder_others_are_written(character):
    picture = Heatmap.of([[1.0, 0.5]], [character], [f"a{character}bc", "x"], character)
    for shown in (picture.svg(), picture.html(), picture.text()):
        assert character not in shown
    assert f"U+{ord(character):04X}" in picture.text()
    for kept in ("👨\u200d👩\u200d👧", "می\u200cخواهم", "❤\ufe0f", "e\u0301"):  # joined letters
        assert kept in Heatmap.of([[1.0]], [kept], ["x"]).svg()


def test_sinusoids_equal_the_formula():
    weights = sinusoids(20, 8).weights
    for position in range(20):
        for i in range(4):
            angle = position / 10000 ** (2 * i / 8)
            assert weights[position][2 * i] == pytest.approx(math.sin(angle), abs=1e-6)
            assert weights[position][2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-6)


def test_the_picture_of_a_mask_has_its_cells():
    picture = mask_grid(masks.causal().grid(4, 4)[0, 0])
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
