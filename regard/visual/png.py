"""A drawing as a PNG file, through matplotlib (the `plot` extra)."""

from __future__ import annotations

import unicodedata
import warnings
from functools import cache
from pathlib import Path
from typing import Any

from regard.errors import MissingExtra
from regard.visual.drawing import (
    Circle,
    Connector,
    Drawing,
    Label,
    Polygon,
    Polyline,
    Raster,
    Rect,
    Shape,
    on_paper,
    visible,
)

# Tried in this order for each glyph; those that are not installed are left out. Colour emoji fonts
# are bitmaps that matplotlib cannot scale, so the outline ones are named.
FONTS = (
    "DejaVu Sans,Noto Sans,Noto Sans CJK SC,Noto Sans CJK JP,Noto Sans CJK KR,WenQuanYi Zen Hei,"
    "Microsoft YaHei,PingFang SC,Hiragino Sans,Arial Unicode MS,Noto Sans Arabic,Noto Sans Hebrew,"
    "Noto Sans Devanagari,Noto Sans Thai,Noto Emoji,Symbola,Segoe UI Emoji,Segoe UI Symbol"
).split(",")
UNSEEN = ("Cc", "Cf", "Zl", "Zp", "Zs")  # Unicode's categories of characters without a glyph


def save_png(drawing: Drawing, path: str | Path, scale: float = 2.0) -> None:
    """Write `drawing` at `scale` pixels per unit.

    A character that no font has becomes a box, which a warning says.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("matplotlib", "plot", "A PNG picture") from None
    if missing := _characters_without_glyph(drawing):
        warnings.warn(
            f"no font for {len(missing)} of the characters is installed: {missing:.20}. They are "
            "boxes in this picture; install one, such as Noto Sans, or save it as .svg or .html",
            stacklevel=3,
        )
    # Agg cannot draw images of 2^16 pixels a side; stay well below.
    scale = min(scale, 20_000 / max(drawing.width, drawing.height))
    figure = Figure(figsize=(drawing.width / 100, drawing.height / 100), dpi=100 * scale)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, drawing.width)
    axes.set_ylim(drawing.height, 0)
    axes.set_axis_off()
    for order, shape in enumerate(drawing.shapes):
        _draw(axes, shape, order)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*Glyph .* missing.*")
        warnings.filterwarnings("ignore", message=".*does not support.*natively.*")
        figure.savefig(path, facecolor=on_paper("paper"))


def _characters_without_glyph(drawing: Drawing) -> str:
    texts = (visible(shape.text) for shape in drawing.shapes if isinstance(shape, Label))
    shown = (one for one in set().union(*texts) if unicodedata.category(one) not in UNSEEN)
    return "".join(sorted(one for one in shown if ord(one) not in _code_points()))


@cache
def _code_points() -> frozenset[int]:
    """Those for which an installed font has a glyph."""
    from matplotlib.font_manager import findfont
    from matplotlib.ft2font import FT2Font

    return frozenset().union(*(FT2Font(findfont(name)).get_charmap() for name in _fonts()))


@cache
def _fonts() -> list[str]:
    from matplotlib.font_manager import fontManager

    installed = {font.name for font in fontManager.ttflist}
    return [name for name in FONTS if name in installed]


def _draw(axes: Any, shape: Shape, order: int) -> None:
    match shape:
        case Rect():
            _draw_rect(axes, shape, order)
        case Polyline():
            style: dict[str, Any] = {"color": on_paper(shape.stroke), "alpha": shape.opacity}
            style["linestyle"] = (0, (3, 3)) if shape.dashed else "-"
            line = zip(*shape.points, strict=True)
            axes.plot(*line, linewidth=_points(shape.width), zorder=order, **style)
        case Polygon():
            style = {"color": on_paper(shape.fill), "alpha": shape.opacity, "linewidth": 0}
            axes.fill(*zip(*shape.points, strict=True), zorder=order, **style)
        case Connector():
            _draw_connector(axes, shape, order)
        case Circle():
            style = {"color": on_paper(shape.fill), "markeredgewidth": 0, "zorder": order}
            axes.plot([shape.x], [shape.y], "o", markersize=_points(2 * shape.radius), **style)
        case Label():
            _draw_label(axes, shape, order)
        case Raster():
            _draw_raster(axes, shape, order)


def _points(pixels: float) -> float:
    """Our unit is 1/100 inch, matplotlib's is 1/72."""
    return pixels * 0.72


def _draw_rect(axes: Any, rect: Rect, order: int) -> None:
    from matplotlib.patches import FancyBboxPatch, Rectangle

    style: dict[str, Any] = {
        "facecolor": (on_paper(rect.fill), rect.opacity) if rect.fill != "none" else "none",
        "edgecolor": on_paper(rect.stroke) if rect.stroke != "none" else "none",
        "linewidth": 0.8 if rect.stroke != "none" else 0,
        "zorder": order,
    }
    corner, width, height = (rect.x, rect.y), max(rect.width, 0), max(rect.height, 0)
    if rect.radius:
        round_box = f"round,pad=0,rounding_size={rect.radius}"
        axes.add_patch(FancyBboxPatch(corner, width, height, boxstyle=round_box, **style))
    else:
        axes.add_patch(Rectangle(corner, width, height, **style))


def _draw_connector(axes: Any, shape: Connector, order: int) -> None:
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Curve

    start, end = shape.points
    codes = [Curve.MOVETO, Curve.CURVE4, Curve.CURVE4, Curve.CURVE4]
    curve = Curve([start, *shape.controls, end], codes)
    style = {"facecolor": "none", "edgecolor": on_paper(shape.stroke), "alpha": shape.opacity}
    axes.add_patch(PathPatch(curve, linewidth=_points(shape.width), zorder=order, **style))


def _draw_label(axes: Any, label: Label, order: int) -> None:
    align = {"start": "left", "middle": "center", "end": "right"}[label.anchor]
    style: dict[str, Any] = {
        "fontsize": _points(label.size),
        "fontweight": "bold" if label.bold else "normal",
        "family": ["DejaVu Sans Mono", *_fonts()] if label.mono else _fonts(),
        "color": on_paper(label.fill),
        "parse_math": False,  # a "$" in a sentence is a dollar
    }
    position = {"ha": align, "va": "center_baseline", "rotation": -label.angle, "zorder": order}
    text = visible(label.text)
    axes.text(label.x, label.y, text, rotation_mode="anchor", **position, **style)


def _draw_raster(axes: Any, raster: Raster, order: int) -> None:
    import numpy

    shape = (len(raster.values), len(raster.values[0]), 4)
    pixels = numpy.frombuffer(raster.pixels(), dtype=numpy.uint8).reshape(shape)
    box = (raster.x, raster.x + raster.width, raster.y + raster.height, raster.y)
    axes.imshow(pixels, extent=box, aspect="auto", interpolation="nearest", zorder=order)
