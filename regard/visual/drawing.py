"""A picture as shapes, placed once; rendered as SVG here and as PNG in `canvas.py`.

Coordinates are pixels from the top left corner. Colours are named by their role ("ink",
"accent", ...), so that the same shapes follow a page's light or dark theme.
"""

from __future__ import annotations

import base64
import math
import struct
import unicodedata
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from html import escape

from rich.cells import cell_len, set_cell_size

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
FONT = "system-ui, -apple-system, 'Segoe UI', 'Noto Sans', sans-serif"
MONO = "ui-monospace, SFMono-Regular, Menlo, 'DejaVu Sans Mono', monospace"

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
    illegal in XML, and invisible on a screen."""
    return "".join(_visible_character(character) for character in str(text))


def _visible_character(character: str) -> str:
    code = ord(character)
    if code < 32:
        return chr(0x2400 + code)
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


def _points(points: Iterable[Point]) -> str:
    return " ".join(f"{_number(x)},{_number(y)}" for x, y in points)


def _tip(title: str) -> str:
    return f"<title>{escape(visible(title))}</title>" if title else ""


@dataclass(frozen=True)
class Rect:
    x: float
    y: float
    width: float
    height: float
    fill: str = "accent"
    opacity: float = 1.0
    title: str = ""
    radius: float = 0.0
    stroke: str = "none"

    def svg(self, paint: Paint) -> str:
        box = "".join(
            f' {name}="{_number(value)}"'
            for name, value in zip(
                ("x", "y", "width", "height"),
                (self.x, self.y, self.width, self.height),
                strict=True,
            )
        )
        radius = f' rx="{_number(self.radius)}"' if self.radius else ""
        stroke = f' stroke="{paint(self.stroke)}"' if self.stroke != "none" else ""
        opacity = f' fill-opacity="{self.opacity:.3f}"' if self.opacity < 1 else ""
        head = f'<rect{box}{radius} fill="{paint(self.fill)}"{opacity}{stroke}'
        return f"{head}>{_tip(self.title)}</rect>" if self.title else f"{head}/>"

    def moved(self, dx: float, dy: float) -> Rect:
        return replace(self, x=self.x + dx, y=self.y + dy)


@dataclass(frozen=True)
class Polyline:
    """Straight lines through `points`."""

    points: tuple[Point, ...]
    stroke: str = "ink"
    width: float = 1.0
    opacity: float = 1.0
    dashed: bool = False

    def svg(self, paint: Paint) -> str:
        dash = ' stroke-dasharray="3 3"' if self.dashed else ""
        opacity = f' stroke-opacity="{self.opacity:.3f}"' if self.opacity < 1 else ""
        return (
            f'<polyline points="{_points(self.points)}" fill="none" '
            f'stroke="{paint(self.stroke)}" stroke-width="{_number(self.width)}" '
            f'stroke-linejoin="round"{opacity}{dash}/>'
        )

    def moved(self, dx: float, dy: float) -> Polyline:
        return replace(self, points=tuple((x + dx, y + dy) for x, y in self.points))


@dataclass(frozen=True)
class Polygon:
    """A filled polygon: the band of a spread."""

    points: tuple[Point, ...]
    fill: str = "accent"
    opacity: float = 0.15

    def svg(self, paint: Paint) -> str:
        return (
            f'<polygon points="{_points(self.points)}" fill="{paint(self.fill)}" '
            f'fill-opacity="{self.opacity:.3f}"/>'
        )

    def moved(self, dx: float, dy: float) -> Polygon:
        return replace(self, points=tuple((x + dx, y + dy) for x, y in self.points))


@dataclass(frozen=True)
class Connector:
    """A smooth line between two points that leaves and arrives horizontally."""

    start: Point
    end: Point
    stroke: str = "accent"
    width: float = 1.0
    opacity: float = 1.0

    @property
    def controls(self) -> tuple[Point, Point]:
        middle = (self.start[0] + self.end[0]) / 2
        return (middle, self.start[1]), (middle, self.end[1])

    def svg(self, paint: Paint) -> str:
        first, second = self.controls
        path = f"M{_points([self.start])} C{_points([first, second, self.end])}"
        return (
            f'<path d="{path}" fill="none" stroke="{paint(self.stroke)}" '
            f'stroke-width="{_number(self.width)}" stroke-opacity="{self.opacity:.3f}"/>'
        )

    def moved(self, dx: float, dy: float) -> Connector:
        (x0, y0), (x1, y1) = self.start, self.end
        return replace(self, start=(x0 + dx, y0 + dy), end=(x1 + dx, y1 + dy))


@dataclass(frozen=True)
class Circle:
    x: float
    y: float
    radius: float = 3.0
    fill: str = "accent"
    title: str = ""

    def svg(self, paint: Paint) -> str:
        head = (
            f'<circle cx="{_number(self.x)}" cy="{_number(self.y)}" '
            f'r="{_number(self.radius)}" fill="{paint(self.fill)}"'
        )
        return f"{head}>{_tip(self.title)}</circle>" if self.title else f"{head}/>"

    def moved(self, dx: float, dy: float) -> Circle:
        return replace(self, x=self.x + dx, y=self.y + dy)


@dataclass(frozen=True)
class Label:
    """`y` is the middle of the line; `anchor` is start, middle or end; `angle` in degrees."""

    x: float
    y: float
    text: str
    size: float = 12.0
    anchor: str = "start"
    fill: str = "ink"
    angle: float = 0.0
    bold: bool = False
    mono: bool = False
    title: str = ""

    def svg(self, paint: Paint) -> str:
        x, y = _number(self.x), _number(self.y)
        turn = f' transform="rotate({_number(self.angle)} {x} {y})"' if self.angle else ""
        bold = ' font-weight="600"' if self.bold else ""
        mono = f' font-family="{MONO}"' if self.mono else ""
        anchor = f' text-anchor="{self.anchor}"' if self.anchor != "start" else ""
        return (
            f'<text x="{x}" y="{y}" dy=".35em" font-size="{_number(self.size)}"{anchor}'
            f'{mono}{bold} fill="{paint(self.fill)}"{turn} xml:space="preserve">'
            f"{_tip(self.title)}{escape(visible(self.text))}</text>"
        )

    def moved(self, dx: float, dy: float) -> Label:
        return replace(self, x=self.x + dx, y=self.y + dy)


@dataclass(frozen=True)
class Raster:
    """A grid of cells too many for one rectangle each; values in [-1, 1], the sign is the
    colour (accent above zero, warm below) and the size its opacity."""

    x: float
    y: float
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
        return (
            f'<image x="{_number(self.x)}" y="{_number(self.y)}" '
            f'width="{_number(self.width)}" height="{_number(self.height)}" '
            'preserveAspectRatio="none" style="image-rendering:pixelated" '
            f'href="data:image/png;base64,{base64.b64encode(image).decode()}"/>'
        )

    def moved(self, dx: float, dy: float) -> Raster:
        return replace(self, x=self.x + dx, y=self.y + dy)


Shape = Rect | Polyline | Polygon | Connector | Circle | Label | Raster


@dataclass(frozen=True)
class Drawing:
    width: float
    height: float
    shapes: tuple[Shape, ...]
    title: str = ""

    def svg(self, paint: Paint = on_paper) -> str:
        """One <svg> element. On paper it has a white ground; on a page it is transparent."""
        ground = Rect(0, 0, self.width, self.height, "paper").svg(paint)
        body = "".join(shape.svg(paint) for shape in self.shapes)
        width, height = math.ceil(self.width), math.ceil(self.height)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" role="img" font-family="{FONT}">'
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
