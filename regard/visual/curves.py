"""Lines over a common axis: training curves, and one number against another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

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
    Shape,
    clip,
    text_width,
)
from regard.visual.picture import Picture

SPARKS = " ▁▂▃▄▅▆▇█"
ASCII_SPARKS = " .:-=+*#%@"


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
    """A chart with linear axes; points that are not finite are left out."""

    series: tuple[Series, ...]
    title: str = ""
    x_axis: str = ""
    y_axis: str = ""
    width: float = 420
    height: float = 250

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
    low, high, marks = min(shown), max(shown), SPARKS if color else ASCII_SPARKS
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

    @classmethod
    def around(cls, chart: Curves) -> _Frame:
        points = [point for series in chart.series for point in series.finite]
        ys = [y for _, y in points] + [v for s in chart.series for pair in s.spread for v in pair]
        ys = [y for y in ys if math.isfinite(y)]
        low, high = _range(ys)
        loose = any(not series.joined for series in chart.series)
        xs = _range([x for x, _ in points], margin=0.06 if loose else 0.0)
        left = 22 + max(text_width(short(tick), 10.5) for tick in ticks(low, high))
        return cls(
            left, chart.width - 20, 40 if chart.title else 14, chart.height - 42, xs, (low, high)
        )

    def at(self, x: float, y: float) -> tuple[float, float]:
        """The pixel of a point of the data."""
        across = (x - self.xs[0]) / (self.xs[1] - self.xs[0])
        up = (y - self.ys[0]) / (self.ys[1] - self.ys[0])
        x, y = across * (self.right - self.left), up * (self.bottom - self.top)
        return self.left + x, self.bottom - y

    def axes(self, chart: Curves) -> list[Shape]:
        shapes: list[Shape] = []
        for tick in ticks(*self.ys):
            y = self.at(self.xs[0], tick)[1]
            shapes.append(Polyline(((self.left, y), (self.right, y)), "faint"))
            shapes.append(Label(self.left - 6, y, short(tick), 10.5, "end", "muted"))
        for tick in ticks(*self.xs):
            x = self.at(tick, self.ys[0])[0]
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
