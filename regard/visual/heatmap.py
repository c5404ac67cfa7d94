"""A matrix of weights: a row for each query (target token), a column for each key (source token).

The opacity of a cell is its weight over the largest one (or over `peak`); the scale is drawn
below, because a picture of weights near 1/60 must not look like one of weights near 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from rich.cells import cell_len
from rich.text import Text

from regard.visual import characters
from regard.visual.drawing import Drawing, Label, Polyline, Raster, Rect, Shape, clip, text_width
from regard.visual.picture import Matrix, Picture, as_labels, as_matrix

MAX_RECTANGLES = 2500  # above this the cells are one image, without tooltips
LABEL_CELLS = 18


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
        low, steps = (-self.largest if signed else 0.0), 24
        shapes: list[Shape] = []
        for step in range(steps):
            value = low + (self.largest - low) * (step + 0.5) / steps
            opacity = abs(value) / self.largest
            shapes.append(Rect(x + step * 3, y - 4, 3.05, 8, _fill(value), opacity))
        axes = f"   rows: {self.row_axis}, columns: {self.column_axis}" if self.row_axis else ""
        shapes.append(Label(x - 5, y, f"{low:.3g}", 10.5, "end", "muted"))
        shapes.append(Label(x + steps * 3 + 5, y, f"{self.largest:.3g}{axes}", 10.5, fill="muted"))
        return shapes

    def terminal(self, width: int, color: bool) -> Text:
        grid = characters.Grid(self.weights, self.rows, self.columns, self.largest, self.digits)
        return self._title_text(width).append_text(grid.terminal(width, color))


def _fill(value: float) -> str:
    return "accent" if value >= 0 else "warm"


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


def mask_grid(
    grid: Any,
    queries: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    title: str = "which key a query may attend to",
) -> Heatmap:
    """A mask as a heatmap.

    grid: boolean (T, S), True = may attend, such as `masks.causal().grid(6, 6)[0, 0]`.  queries,
    keys: T and S labels, by default numbers from 0.

    Raises:
        ConfigError: the grid is no matrix.
    """
    matrix = as_matrix(grid)
    columns = as_labels(keys, len(matrix[0]) if matrix else 0, "keys")
    labels = as_labels(queries, len(matrix), "queries")
    return Heatmap(matrix, labels, columns, title, 1.0, 0, "queries", "keys")


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
