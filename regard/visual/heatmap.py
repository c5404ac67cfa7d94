"""One matrix of weights: rows ask (queries, target words), columns answer (keys, source words).

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
from regard.visual.drawing import (
    Drawing,
    Label,
    Polyline,
    Raster,
    Rect,
    Shape,
    clip,
    text_width,
    visible,
)
from regard.visual.picture import Matrix, Picture, as_labels, as_matrix

MOST_RECTANGLES = 2500  # above this the cells are one image, and have no tips
LABEL_CELLS = 18


@dataclass(frozen=True)
class Heatmap(Picture):
    """`weights` (T, S) with `rows` (T) and `columns` (S); make it with `of`."""

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
        """The alignment matrix of one head: `weights` (T, S), T query words and S key words.

        Tensors, arrays and lists are accepted; a row with nothing to attend to is drawn empty.
        `peak` is the weight in full colour, by default the largest one.
        """
        matrix = as_matrix(weights)
        columns = len(matrix[0]) if matrix else 0
        rows = as_labels(queries, len(matrix), "queries")
        return cls(matrix, rows, as_labels(keys, columns, "keys"), title, peak)

    @cached_property
    def largest(self) -> float:
        """The weight painted in full colour."""
        if self.peak is not None:
            return self.peak
        return max((abs(value) for row in self.weights for value in row), default=0.0) or 1.0

    def drawing(self) -> Drawing:
        place = _Place.of(self)
        shapes = [*self._labels(place), *self._cells(place), *self._scale(place)]
        return Drawing(place.width, place.height, tuple(shapes), self.title or "attention")

    def _cells(self, place: _Place) -> list[Shape]:
        wide, high = place.cell * len(self.columns), place.cell * len(self.rows)
        frame = Rect(place.left, place.top, wide, high, "none", stroke="faint")
        if len(self.rows) * len(self.columns) > MOST_RECTANGLES:
            scaled = tuple(tuple(v / self.largest for v in row) for row in self.weights)
            return [Raster(place.left, place.top, wide, high, scaled), frame]
        shapes: list[Shape] = [frame]
        for i, row in enumerate(self.weights):
            if not any(row):
                y = place.top + (i + 0.5) * place.cell
                line = ((place.left + 3, y), (place.left + wide - 3, y))
                shapes.append(Polyline(line, "muted", 1, 0.5, dashed=True))
                continue
            for j, value in enumerate(row):
                shapes += self._cell(place, i, j, value)
        return shapes

    def _cell(self, place: _Place, i: int, j: int, value: float) -> list[Shape]:
        x, y = place.left + j * place.cell, place.top + i * place.cell
        shade = min(1.0, abs(value) / self.largest)
        tip = f"{self.rows[i]} → {self.columns[j]}: {value:.4f}"
        fill = "accent" if value >= 0 else "warm"
        shapes: list[Shape] = [Rect(x, y, place.cell, place.cell, fill, shade, tip)]
        if place.cell >= 30:
            ink = "paper" if shade > 0.6 else "ink" if shade > 0.02 else "muted"
            text = characters.number(value, self.digits)
            middle = (x + place.cell / 2, y + place.cell / 2)
            shapes.append(Label(*middle, text, min(12, place.cell * 0.3), "middle", ink))
        return shapes

    def _labels(self, place: _Place) -> list[Shape]:
        shapes: list[Shape] = []
        if self.title:
            shapes.append(Label(8, 14, visible(self.title), 14, bold=True))
        for i, name in enumerate(self.rows):
            y = place.top + (i + 0.5) * place.cell
            ink = "ink" if any(self.weights[i]) else "muted"
            text = clip(name, LABEL_CELLS)
            shapes.append(Label(place.left - 7, y, text, place.size, "end", ink, title=name))
        for j, name in enumerate(self.columns):
            x = place.left + (j + 0.5) * place.cell
            text = clip(name, LABEL_CELLS)
            y, angle = place.top - 8, place.angle
            shapes.append(Label(x, y, text, place.size, angle=angle, title=name))
        return shapes

    def _scale(self, place: _Place) -> list[Shape]:
        """The legend: colour against weight, and which side asks."""
        y = place.top + place.cell * len(self.rows) + 18
        signed = any(value < 0 for row in self.weights for value in row)
        low, steps, x = (-self.largest if signed else 0.0), 24, place.left
        shapes: list[Shape] = []
        for step in range(steps):
            value = low + (self.largest - low) * (step + 0.5) / steps
            fill = "accent" if value >= 0 else "warm"
            shapes.append(Rect(x + step * 3, y - 4, 3.05, 8, fill, abs(value) / self.largest))
        shapes.append(Label(x - 5, y, f"{low:.3g}", 10.5, "end", "muted"))
        axes = f"   rows: {self.row_axis}, columns: {self.column_axis}" if self.row_axis else ""
        shapes.append(Label(x + steps * 3 + 5, y, f"{self.largest:.3g}{axes}", 10.5, fill="muted"))
        return shapes

    def terminal(self, width: int, color: bool) -> Text:
        grid = characters.Grid(self.weights, self.rows, self.columns, self.largest, self.digits)
        text = Text(no_wrap=True)
        if self.title:
            text.append(clip(self.title, width) + "\n", style="bold")
        return text.append_text(grid.terminal(width, color))


@dataclass(frozen=True)
class _Place:
    """Where the cells of a heatmap lie on the paper."""

    cell: float
    size: float
    left: float
    top: float
    width: float
    height: float
    angle: float  # of the column labels: upright where the columns are narrow

    @classmethod
    def of(cls, picture: Heatmap) -> _Place:
        rows, columns = max(1, len(picture.rows)), max(1, len(picture.columns))
        cell = max(picture.side / max(rows, columns), 2 if max(rows, columns) > 120 else 10)
        cell = min(cell, 38)
        size = max(7.0, min(12.5, cell * 0.85))
        left = 16 + _longest(picture.rows, size)
        slope = _longest(picture.columns, size)
        upright = cell < 16
        top = (30 if picture.title else 8) + (1 if upright else 0.82) * slope + size
        right = 24 if upright else max(24, 0.58 * slope)
        axes = 90 + text_width(picture.row_axis + picture.column_axis, 11) + 200
        wide = max(left + columns * cell + right, left + (axes if picture.row_axis else 130))
        wide = max(wide, 24 + text_width(picture.title, 14.5))
        high = top + rows * cell + 34
        return cls(cell, size, left, top, wide, high, -90 if upright else -55)


def _longest(labels: Sequence[str], size: float) -> float:
    cells = max((min(LABEL_CELLS, cell_len(visible(label))) for label in labels), default=1)
    return 1.12 * text_width("x" * cells, size)  # some letters are wider than the mean
