"""A picture as shapes, and the shapes as SVG and, through resvg (extra `plot`), as PNG.

Coordinates are pixels from the top left corner. Colours are named by their role ("ink",
"accent", ...), so that the same shapes follow a page's light or dark theme.
"""

import base64
import math
import struct
import unicodedata
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Self

from rich.cells import cell_len, set_cell_size

from regard.errors import ConfigError, MissingExtra

# Role -> colour on white paper. `assets/page.css` holds the same roles for both themes.
LIGHT = {
    "paper": "#ffffff",
    "ink": "#1d1f24",
    "muted": "#6b717c",
    "faint": "#e3e5ea",
    "accent": "#2c5fd8",
    "warm": "#d4611f",
    "good": "#23855a",
    "violet": "#7b4bc4",
    "teal": "#12808c",
    "rose": "#c03a6b",
}
SERIES = ("accent", "warm", "good", "violet", "teal", "rose")
FONT = "system-ui, -apple-system, 'Segoe UI', 'Noto Sans', 'DejaVu Sans', Arial, sans-serif"
MONO = "ui-monospace, SFMono-Regular, Menlo, 'DejaVu Sans Mono', monospace"

SCALED = 480  # pixels: a wider drawing keeps its size on a small screen, and scrolls

# Marks of direction, and blanks without width.
UNSEEN = frozenset((0x61C, 0x180E, 0x200B, 0x200E, 0x200F, 0x2060, 0xFEFF))
UNSEEN |= {*range(0x202A, 0x202F), *range(0x2061, 0x2070)}

Paint = Callable[[str], str]
Point = tuple[float, float]


def on_paper(role: str) -> str:
    """The colour itself, for a file that stands alone."""
    return LIGHT.get(role, role)


def on_page(role: str) -> str:
    """A CSS variable, so that the picture follows the theme of the page around it."""
    return f"var(--rg-{role})" if role in LIGHT else role


def visible(text: str) -> str:
    """Control characters as their Unicode pictures, lone surrogates as U+FFFD: both are
    illegal in XML, and invisible on a screen. Characters that reorder what stands beside them, or
    that are not seen at all, are written as <U+202E>; those that join letters or emoji stay.
    """
    return "".join(_visible_character(character) for character in str(text))


def _visible_character(character: str) -> str:
    code = ord(character)
    if code < 32:
        return chr(0x2400 + code)
    if code in UNSEEN:
        return f"<U+{code:04X}>"
    category = unicodedata.category(character)
    return "\ufffd" if category in ("Cc", "Cs") or code in (0xFFFE, 0xFFFF) else character


def clip(text: str, cells: int) -> str:
    """`text` in at most `cells` terminal columns, with "…" where something was cut."""
    text = visible(text)
    return text if cell_len(text) <= cells else set_cell_size(text, cells - 1).rstrip() + "…"


def text_width(text: str, size: float, mono: bool = False) -> float:
    """About how many pixels `text` takes; wide (CJK) characters count twice."""
    return cell_len(visible(text)) * size * (0.61 if mono else 0.56)


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _pairs(points: Iterable[Point]) -> str:
    return " ".join(f"{_number(x)},{_number(y)}" for x, y in points)


def _element(tag: str, content: str = "", **attributes: str | float | None) -> str:
    """An element of XML; attributes that are None are left out, "_" in names becomes "-"."""
    written = "".join(
        f' {name.replace("_", "-")}="{value if isinstance(value, str) else _number(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    return f"<{tag}{written}>{content}</{tag}>" if content else f"<{tag}{written}/>"


def _tip(title: str) -> str:
    return f"<title>{escape(visible(title))}</title>" if title else ""


def _opacity(value: float) -> str | None:
    return f"{value:.3f}" if value < 1 else None


@dataclass(frozen=True)
class _Point:
    """A shape at a point: of Rect and Raster the top left corner, of Circle the centre."""

    x: float
    y: float

    def moved(self, dx: float, dy: float) -> Self:
        """The same shape elsewhere."""
        return replace(self, x=self.x + dx, y=self.y + dy)


@dataclass(frozen=True)
class _Points:
    """A shape given by several points."""

    points: tuple[Point, ...]

    def moved(self, dx: float, dy: float) -> Self:
        """The same shape elsewhere."""
        return replace(self, points=tuple((x + dx, y + dy) for x, y in self.points))


@dataclass(frozen=True)
class Rect(_Point):
    width: float
    height: float
    fill: str = "accent"
    opacity: float = 1.0
    title: str = ""
    stroke: str = "none"

    def svg(self, paint: Paint) -> str:
        return _element(
            "rect",
            _tip(self.title),
            x=self.x,
            y=self.y,
            width=self.width,
            height=self.height,
            fill=paint(self.fill),
            fill_opacity=_opacity(self.opacity),
            stroke=paint(self.stroke) if self.stroke != "none" else None,
        )


@dataclass(frozen=True)
class Polyline(_Points):
    """Straight lines through `points`."""

    stroke: str = "ink"
    width: float = 1.0
    opacity: float = 1.0
    dashed: bool = False

    def svg(self, paint: Paint) -> str:
        return _element(
            "polyline",
            points=_pairs(self.points),
            fill="none",
            stroke=paint(self.stroke),
            stroke_width=self.width,
            stroke_linejoin="round",
            stroke_opacity=_opacity(self.opacity),
            stroke_dasharray="3 3" if self.dashed else None,
        )


@dataclass(frozen=True)
class Polygon(_Points):
    """A filled polygon: the band of a spread."""

    fill: str = "accent"
    opacity: float = 0.15

    def svg(self, paint: Paint) -> str:
        opacity, points = _opacity(self.opacity), _pairs(self.points)
        return _element("polygon", points=points, fill=paint(self.fill), fill_opacity=opacity)


@dataclass(frozen=True)
class Circle(_Point):
    radius: float = 3.0
    fill: str = "accent"
    title: str = ""

    def svg(self, paint: Paint) -> str:
        tip = _tip(self.title)
        return _element("circle", tip, cx=self.x, cy=self.y, r=self.radius, fill=paint(self.fill))


@dataclass(frozen=True)
class Label(_Point):
    """`y` is the middle of the line; `anchor` is start, middle or end; `angle` in degrees."""

    text: str
    size: float = 12.0
    anchor: str = "start"
    fill: str = "ink"
    angle: float = 0.0
    bold: bool = False
    mono: bool = False
    title: str = ""

    def svg(self, paint: Paint) -> str:
        x, y, angle = map(_number, (self.x, self.y, self.angle))
        return _element(
            "text",
            _tip(self.title) + escape(visible(self.text)),
            x=x,
            y=y,
            dy=".35em",
            font_size=self.size,
            text_anchor=self.anchor if self.anchor != "start" else None,
            font_family=MONO if self.mono else None,
            font_weight="600" if self.bold else None,
            fill=paint(self.fill),
            transform=f"rotate({angle} {x} {y})" if self.angle else None,
            **{"xml:space": "preserve"},
        )


@dataclass(frozen=True)
class Raster(_Point):
    """A grid of cells too many for one rectangle each; values in [-1, 1], the sign is the
    colour (accent above zero, warm below) and the size its opacity."""

    width: float
    height: float
    values: tuple[tuple[float, ...], ...]

    def pixels(self) -> bytes:
        """RGBA rows, top to bottom."""
        above, below = _rgb(LIGHT["accent"]), _rgb(LIGHT["warm"])
        return b"".join(
            (above if value >= 0 else below) + bytes((min(255, round(abs(value) * 255)),))
            for row in self.values
            for value in row
        )

    def svg(self, paint: Paint) -> str:
        image = png_bytes(len(self.values[0]), len(self.values), self.pixels())
        return _element(
            "image",
            x=self.x,
            y=self.y,
            width=self.width,
            height=self.height,
            preserveAspectRatio="none",
            image_rendering="pixelated",
            href=f"data:image/png;base64,{base64.b64encode(image).decode()}",
        )


@dataclass(frozen=True)
class Pixels(Raster):
    """A grid of colours: RGBA rows, top to bottom; `values` says how many rows and columns."""

    colours: bytes = b""

    def pixels(self) -> bytes:
        return self.colours


Shape = Rect | Polyline | Polygon | Circle | Label | Raster


@dataclass(frozen=True)
class Drawing:
    width: float
    height: float
    shapes: tuple[Shape, ...]
    title: str = ""

    def svg(self, paint: Paint = on_paper) -> str:
        """One <svg> element. On paper it has a white ground; on a page it is transparent, and
        shrinks to the width of the screen where its letters stay legible."""
        ground = Rect(0, 0, self.width, self.height, "paper").svg(paint)
        body = "".join(shape.svg(paint) for shape in self.shapes)
        width, height = math.ceil(self.width), math.ceil(self.height)
        scaled = ' class="rg-scaled"' if paint is not on_paper and width <= SCALED else ""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" role="img" aria-label="{escape(visible(self.title))}" '
            f'font-family="{FONT}"{scaled}>'
            f"{_tip(self.title)}{ground if paint is on_paper else ''}{body}</svg>"
        )

    def moved(self, dx: float, dy: float) -> tuple[Shape, ...]:
        return tuple(shape.moved(dx, dy) for shape in self.shapes)


def stack(drawings: Iterable[Drawing], title: str = "", gap: float = 18) -> Drawing:
    """The drawings one under another."""
    shapes: list[Shape] = []
    width = height = 0.0
    for drawing in drawings:
        shapes += drawing.moved(0, height)
        width, height = max(width, drawing.width), height + drawing.height + gap
    return Drawing(width, max(height - gap, 1), tuple(shapes), title)


def tile(drawings: Iterable[Drawing], columns: int, title: str = "", gap: float = 12) -> Drawing:
    """The drawings in reading order, `columns` in a row."""
    rows, line = [], list(drawings)
    for start in range(0, len(line), columns):
        shapes: list[Shape] = []
        x = height = 0.0
        for drawing in line[start : start + columns]:
            shapes += drawing.moved(x, 0)
            x, height = x + drawing.width + gap, max(height, drawing.height)
        rows.append(Drawing(x - gap, height, tuple(shapes)))
    return stack(rows, title, gap)


def _rgb(colour: str) -> bytes:
    return bytes.fromhex(colour.removeprefix("#"))


def png_bytes(width: int, height: int, rgba: bytes) -> bytes:
    """A PNG file of `height` rows of `width` RGBA pixels (RFC 2083)."""
    stride = width * 4
    lines = b"".join(b"\0" + rgba[y * stride : (y + 1) * stride] for y in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )


def save_png(drawing: Drawing, path: str | Path, scale: float = 2.0) -> None:
    """Write `drawing` at `scale` pixels per unit, in the fonts of the system.

    Raises:
        MissingExtra: resvg-py is not installed.
        ConfigError: the system has none of the fonts, and all texts would be missing.
    """
    try:
        import resvg_py
    except ImportError:
        raise MissingExtra("resvg-py", "plot", "A PNG picture") from None
    empty, letter = Drawing(20, 20, ()), Drawing(20, 20, (Label(0, 10, "x"),))
    if resvg_py.svg_to_bytes(empty.svg()) == resvg_py.svg_to_bytes(letter.svg()):
        raise ConfigError(
            f"A PNG picture needs one of these fonts: {FONT}. Install one (such as the package "
            "fonts-dejavu-core), or save the picture as .svg or .html."
        )
    image = resvg_py.svg_to_bytes(
        svg_string=drawing.svg(), zoom=scale, image_rendering="optimize_speed"
    )
    Path(path).write_bytes(image)
