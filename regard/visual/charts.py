"""Weights as heatmaps, and lines over a common axis: training curves, one number against another.

In a heatmap a row is a query (target token) and a column a key (source token). The opacity of a
cell is its weight over the largest one (or over `peak`); the scale is drawn below, because a
picture of weights near 1/60 must not look like one of weights near 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

from rich.cells import cell_len
from rich.text import Text

from regard.visual import characters
from regard.visual.drawing import (
    SERIES,
    Circle,
    Drawing,
    Label,
    Polygon,
    Polyline,
    Raster,
    Rect,
    Shape,
    clip,
    text_width,
)
from regard.visual.picture import Matrix, Picture, as_labels, as_matrix

MAX_RECTANGLES = 2500  # above this the cells are one image, without tooltips
LABEL_CELLS = 18
SCALE_STEPS = 24


@dataclass(frozen=True, repr=False)
class Heatmap(Picture):
    """`weights` (T, S) with labels of `rows` (T) and `columns` (S); make it with `of`."""

    weights: Matrix
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    title: str = ""
    peak: float | None = None
    digits: int = 2
    row_axis: str = ""
    column_axis: str = ""
    side: float = 600  # pixels of the longer side, as far as the cells stay legible

    @classmethod
    def of(
        cls,
        weights: Any,
        queries: Sequence[str] | None = None,
        keys: Sequence[str] | None = None,
        title: str = "",
        peak: float | None = None,
    ) -> Self:
        """The attention of one head.

        weights: (T, S), a tensor, an array or lists; a query with nothing to attend to has an empty
        row.  queries, keys: T and S labels, by default numbers from 0.  peak: the weight in full
        colour, by default the largest one.

        Raises:
            ConfigError: the weights are no matrix, or the labels are more or fewer.
        """
        matrix = as_matrix(weights)
        rows = as_labels(queries, len(matrix), "queries")
        columns = as_labels(keys, len(matrix[0]) if matrix else 0, "keys")
        return cls(matrix, rows, columns, title, peak)

    @cached_property
    def largest(self) -> float:
        """The weight in full colour."""
        if self.peak is not None:
            return self.peak
        return max((abs(value) for row in self.weights for value in row), default=0.0) or 1.0

    def drawing(self) -> Drawing:
        layout = HeatmapLayout.of(self)
        shapes = [*self._labels(layout), *self._cells(layout), *self._scale(layout)]
        return Drawing(layout.width, layout.height, tuple(shapes), self.title or "attention")

    def _cells(self, at: HeatmapLayout) -> list[Shape]:
        wide, high = at.cell * len(self.columns), at.cell * len(self.rows)
        frame = Rect(at.left, at.top, wide, high, "none", stroke="faint")
        if len(self.rows) * len(self.columns) > MAX_RECTANGLES:
            scaled = tuple(tuple(v / self.largest for v in row) for row in self.weights)
            return [Raster(at.left, at.top, wide, high, scaled), frame]
        shapes: list[Shape] = [frame]
        for i, row in enumerate(self.weights):
            if any(row):
                for j, value in enumerate(row):
                    shapes += self._cell(at, i, j, value)
            else:
                y = at.top + (i + 0.5) * at.cell
                line = ((at.left + 3, y), (at.left + wide - 3, y))
                shapes.append(Polyline(line, "muted", 1, 0.5, dashed=True))
        return shapes

    def _cell(self, at: HeatmapLayout, i: int, j: int, value: float) -> list[Shape]:
        x, y = at.left + j * at.cell, at.top + i * at.cell
        shade = min(1.0, abs(value) / self.largest)
        tip = f"{self.rows[i]} → {self.columns[j]}: {value:.4f}"
        shapes: list[Shape] = [Rect(x, y, at.cell, at.cell, _fill(value), shade, tip)]
        if at.cell >= 30:
            ink = "paper" if shade > 0.6 else "ink" if shade > 0.02 else "muted"
            text = characters.number(value, self.digits)
            middle = (x + at.cell / 2, y + at.cell / 2)
            shapes.append(Label(*middle, text, min(12, at.cell * 0.3), "middle", ink))
        return shapes

    def _labels(self, at: HeatmapLayout) -> list[Shape]:
        shapes = self._title_shapes()
        for i, name in enumerate(self.rows):
            y, ink = at.top + (i + 0.5) * at.cell, "ink" if any(self.weights[i]) else "muted"
            text = clip(name, LABEL_CELLS)
            shapes.append(Label(at.left - 7, y, text, at.size, "end", ink, title=name))
        for j, name in enumerate(self.columns):
            x, y = at.left + (j + 0.5) * at.cell, at.top - 8
            text = clip(name, LABEL_CELLS)
            shapes.append(Label(x, y, text, at.size, angle=at.angle, title=name))
        return shapes

    def _scale(self, at: HeatmapLayout) -> list[Shape]:
        """The legend: colours and weights, and the names of the axes."""
        x, y = at.left, at.top + at.cell * len(self.rows) + 18
        signed = any(value < 0 for row in self.weights for value in row)
        low = -self.largest if signed else 0.0
        axes = f"   rows: {self.row_axis}, columns: {self.column_axis}" if self.row_axis else ""
        return color_scale(x, y, low, self.largest, note=axes)

    def terminal(self, width: int, color: bool) -> Text:
        grid = characters.Grid(self.weights, self.rows, self.columns, self.largest, self.digits)
        return self._title_text(width).append_text(grid.terminal(width, color))


def _fill(value: float) -> str:
    return "accent" if value >= 0 else "warm"


def color_scale(
    x: float, y: float, low: float, high: float, opacity: float = 1.0, note: str = ""
) -> list[Shape]:
    """The colours of the values from `low` to `high`, whose opacity is the largest, and a note."""
    shapes: list[Shape] = []
    for step in range(SCALE_STEPS):
        value = low + (high - low) * (step + 0.5) / SCALE_STEPS
        shade = opacity * abs(value) / high
        shapes.append(Rect(x + step * 3, y - 4, 3.05, 8, _fill(value), shade))
    shapes.append(Label(x - 5, y, f"{low:.3g}", 10.5, "end", "muted"))
    end = x + SCALE_STEPS * 3 + 5
    return [*shapes, Label(end, y, f"{high:.3g}{note}", 10.5, fill="muted")]


@dataclass(frozen=True)
class HeatmapLayout:
    """Positions and sizes in a heatmap, in pixels."""

    cell: float
    size: float  # of labels
    left: float
    top: float
    width: float
    height: float
    angle: float  # of the column labels: upright where columns have no room for text

    @classmethod
    def of(cls, picture: Heatmap) -> HeatmapLayout:
        rows, columns = max(1, len(picture.rows)), max(1, len(picture.columns))
        longer = max(rows, columns)
        cell = min(38, max(picture.side / longer, 2 if longer > 120 else 10))
        size = max(7.0, min(12.5, cell * 0.85))
        left = 16 + _longest(picture.rows, size)
        label = _longest(picture.columns, size)
        upright = cell < 16
        top = (30 if picture.title else 8) + (1 if upright else 0.82) * label + size
        right = 24 if upright else max(24, 0.58 * label)
        axes = 290 + text_width(picture.row_axis + picture.column_axis, 11)
        wide = max(left + columns * cell + right, left + (axes if picture.row_axis else 130))
        wide = max(wide, 24 + text_width(picture.title, 14.5))
        return cls(cell, size, left, top, wide, top + rows * cell + 34, -90 if upright else -55)


def _longest(labels: Sequence[str], size: float) -> float:
    cells = max((cell_len(clip(label, LABEL_CELLS)) for label in labels), default=1)
    return 1.12 * text_width("x" * cells, size)  # some letters are wider than the mean


def sinusoids(length: int = 64, d_model: int = 64) -> Heatmap:
    """The sinusoidal table of the Transformer: `length` positions, `d_model` dimensions.

    PE(pos, 2i) = sin(pos / 10000^(2i/D)),  PE(pos, 2i+1) = cos(pos / 10000^(2i/D))
    """
    import torch

    from regard.layers.positions import sinusoid

    table = as_matrix(sinusoid(torch.arange(length), d_model))
    title, axes = f"sinusoidal positions, {length} x {d_model}", ("positions", "dimensions")
    return Heatmap(table, _every(length), _every(d_model), title, None, 2, *axes)


def mask_grid(grid: Any, title: str = "which key a query may attend to") -> Heatmap:
    """A mask as a heatmap; queries and keys have their numbers, from 0.

    grid: boolean (T, S), True = may attend, such as `masks.causal().grid(6, 6)[0, 0]`.

    Raises:
        ConfigError: the grid is no matrix.
    """
    numbered = Heatmap.of(grid, title=title, peak=1.0)
    return replace(numbered, digits=0, row_axis="queries", column_axis="keys")


def sparse_patterns(
    blocks: int = 16, window: int = 1, random: int = 2, seed: int = 0
) -> dict[str, Heatmap]:
    """Which blocks of keys a block of queries sees in BigBird: at random, in a window, globally,
    and all of these together (Zaheer et al. 2020, figure 1).

    Args:
        blocks: of a sequence.
        window: blocks on either side.
        random: blocks drawn for each block of queries.
        seed: of the draws.
    """
    import torch

    from regard.attention import block_sparse

    counts = torch.tensor([blocks])
    plan = block_sparse.random_plan(counts, 1, random, seed)
    masks = {
        "random": block_sparse.random_blocks(1, plan),
        "window": block_sparse.block_window(1, window),
        "global": block_sparse.global_blocks(1, counts),
    }
    masks["combined"] = masks["random"] | masks["window"] | masks["global"]
    return {
        name: mask_grid(mask.grid(blocks, blocks)[0, 0], title=f"{name} attention, by blocks")
        for name, mask in masks.items()
    }


def _every(count: int) -> tuple[str, ...]:
    """Numbers from 0, as many as can be read; the others are empty."""
    step = 1 if count <= 32 else 8 if count <= 128 else 2 ** max(3, (count // 16).bit_length() - 1)
    return tuple(str(index) if index % step == 0 else "" for index in range(count))


# ---- curves

SPARKS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Series:
    """Points (x, y) under one name; `spread` is (low, high) at each point, if known."""

    name: str
    points: tuple[tuple[float, float], ...]
    spread: tuple[tuple[float, float], ...] = ()
    joined: bool = True

    @property
    def finite(self) -> list[tuple[float, float]]:
        """The points that are finite."""
        return [(x, y) for x, y in self.points if math.isfinite(x) and math.isfinite(y)]


@dataclass(frozen=True, repr=False)
class Curves(Picture):
    """A chart; points that are not finite are left out.

    logarithmic: whether the y axis is, for positive values.
    """

    series: tuple[Series, ...]
    title: str = ""
    x_axis: str = ""
    y_axis: str = ""
    width: float = 420
    height: float = 250
    logarithmic: bool = False

    def drawing(self) -> Drawing:
        frame = _Frame.around(self)
        shapes = [*self._title_shapes(13.5), *frame.axes(self)]
        several = len(self.series) > 1
        for index, series in enumerate(self.series):
            role = SERIES[index % len(SERIES)]
            shapes += frame.curve(series, role)
            if several:
                y = self.height + 10 + 18 * index
                swatch = Polyline(((frame.left, y), (frame.left + 18, y)), role, 2.5)
                shapes += [swatch, Label(frame.left + 24, y, clip(series.name, 44), 11.5)]
        height = self.height + (18 * len(self.series) + 8 if several else 0)
        width = max(self.width, text_width(self.title, 14) + 16)
        return Drawing(width, height, tuple(shapes), self.title or "curves")

    def terminal(self, width: int, color: bool) -> Text:
        """One line a series: first value, spark line, last value; only for joined points."""
        drawn = [series for series in self.series if series.joined and series.finite]
        text = self._title_text(width) if drawn else Text()
        name = min(20, max((cell_len(clip(series.name, 20)) for series in drawn), default=0))
        for series in drawn:
            ys = [y for _, y in series.finite]
            room = max(4, width - name - 24)
            line = f"{characters.pad(series.name, name)} {ys[0]:>9.4g} {spark(ys, room, color)}"
            text.append(f"{line} {ys[-1]:.4g}\n")
        return text


def spark(values: Sequence[float], cells: int, color: bool) -> str:
    """A spark line of `values` in at most `cells` characters."""
    step = max(1.0, len(values) / cells)
    shown = [values[int(index * step)] for index in range(min(cells, len(values)))]
    low, high, marks = min(shown), max(shown), SPARKS if color else characters.SHADES
    scale = (len(marks) - 2) / (high - low) if high > low else 0.0
    return "".join(marks[1 + round((value - low) * scale)] for value in shown)


def ticks(low: float, high: float, about: int = 6) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten) between `low` and `high`."""
    if not high > low:
        return [low]
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    count = math.floor(high / step + 1e-9) - first + 1
    return [(first + index) * step for index in range(count)]


def short(value: float) -> str:
    """A number in few characters: 12k, 3.4M, 0.0012, 3.3e18."""
    if abs(value) >= 1e15:
        return f"{value:.3g}".replace("e+", "e")
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{letter}"
    return f"{value:.3g}" if value else "0"


@dataclass(frozen=True)
class _Frame:
    """From the coordinates of the data to pixels."""

    left: float
    right: float
    top: float
    bottom: float
    xs: tuple[float, float]
    ys: tuple[float, float]
    scaled: Callable[[float], float]
    y_ticks: Sequence[float]

    @classmethod
    def around(cls, chart: Curves) -> _Frame:
        points = [point for series in chart.series for point in series.finite]
        ys = [y for _, y in points] + [v for s in chart.series for pair in s.spread for v in pair]
        scaled = math.log10 if chart.logarithmic else float
        low, high = _range([scaled(y) for y in ys if math.isfinite(y)])
        y_ticks = [float(f"{10**y:.2g}") if chart.logarithmic else y for y in ticks(low, high)]
        loose = any(not series.joined for series in chart.series)
        xs = _range([x for x, _ in points], margin=0.06 if loose else 0.0)
        left = 22 + max(text_width(short(tick), 10.5) for tick in y_ticks)
        right, top, bottom = chart.width - 20, 40 if chart.title else 14, chart.height - 42
        return cls(left, right, top, bottom, xs, (low, high), scaled, y_ticks)

    def at(self, x: float, y: float) -> tuple[float, float]:
        """The pixel of a point of the data."""
        across = (x - self.xs[0]) / (self.xs[1] - self.xs[0])
        up = (self.scaled(y) - self.ys[0]) / (self.ys[1] - self.ys[0])
        x, y = across * (self.right - self.left), up * (self.bottom - self.top)
        return self.left + x, self.bottom - y

    def axes(self, chart: Curves) -> list[Shape]:
        shapes: list[Shape] = []
        for tick in self.y_ticks:
            y = self.at(self.xs[0], tick)[1]
            shapes.append(Polyline(((self.left, y), (self.right, y)), "faint"))
            shapes.append(Label(self.left - 6, y, short(tick), 10.5, "end", "muted"))
        for tick in ticks(*self.xs):
            x = self.at(tick, self.y_ticks[0])[0]
            shapes.append(Polyline(((x, self.bottom), (x, self.bottom + 4)), "muted"))
            shapes.append(Label(x, self.bottom + 13, short(tick), 10.5, "middle", "muted"))
        shapes.append(Polyline(((self.left, self.bottom), (self.right, self.bottom)), "muted"))
        middle = (self.left + self.right) / 2
        shapes.append(Label(middle, self.bottom + 30, chart.x_axis, 11, "middle", "muted"))
        shapes.append(Label(self.left, self.top - 9, chart.y_axis, 10.5, fill="muted"))
        return shapes

    def curve(self, series: Series, role: str) -> list[Shape]:
        shapes: list[Shape] = []
        if series.spread:
            ends = list(zip(series.points, series.spread, strict=True))
            lows = [self.at(x, low) for (x, _), (low, _) in ends]
            highs = [self.at(x, high) for (x, _), (_, high) in ends]
            shapes.append(Polygon((*lows, *reversed(highs)), role))
        pixels = [self.at(*point) for point in series.finite]
        if series.joined and len(pixels) > 1:
            shapes.append(Polyline(tuple(pixels), role, 1.8))
        if len(pixels) <= 40 or not series.joined:
            for (x, y), pixel in zip(series.finite, pixels, strict=True):
                tip = f"{series.name}: {y:.5g} at {x:,.6g}"
                shapes.append(Circle(*pixel, 3 if series.joined else 4.5, role, tip))
        return shapes


def _range(values: Sequence[float], margin: float = 0.06) -> tuple[float, float]:
    """The span of the axis: a little more than the values', and never empty."""
    if not values:
        return 0.0, 1.0
    low, high = min(values), max(values)
    if high == low:
        pad = abs(low) * 0.5 or 1.0
        return low - pad, high + pad
    pad = (high - low) * margin
    return (max(0.0, low - pad) if low >= 0 else low - pad), high + pad
