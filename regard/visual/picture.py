"""What every picture can do: show itself in a terminal or a notebook, and save itself.

A page has one style sheet and both themes, and nothing from the network.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from textwrap import wrap
from typing import Any, Self

import numpy as np
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from regard.errors import ConfigError
from regard.visual import characters
from regard.visual.drawing import (
    SCALED,
    Drawing,
    Label,
    Polyline,
    Shape,
    clip,
    on_page,
    save_png,
    stack,
    text_width,
    tile,
    visible,
)


@cache
def asset(name: str) -> str:
    """A file of `regard/visual/assets` as text."""
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")


def fragment(body: str) -> str:
    """`body` with its style, for the output of a notebook or another page."""
    return f'<div class="rg"><style>{asset("page.css")}</style>{body}</div>'


def page(title: str, body: str) -> str:
    """An HTML document."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(visible(title or 'Regard'))}</title>"
        f"<style>{asset('page.css')}</style></head>"
        f'<body class="rg rg-page"><main>{body}</main></body></html>\n'
    )


def scrolling(content: str, name: str) -> str:
    """Content that may be wider than the screen: it scrolls, by the keyboard too.

    name: what the content is, for readers who do not see it.
    """
    label = escape(visible(name))
    region = f'role="region" tabindex="0" aria-label="{label}"'
    return f'<div class="rg-figure rg-scroll" {region}>{content}</div>'


def sections(parts: Iterable[tuple[str, str]]) -> str:
    """The sections (heading, HTML) that have a content; from three on after a table of contents."""
    shown = [(heading, body) for heading, body in parts if body]
    written, links = "", ""
    for number, (heading, body) in enumerate(shown, 1):
        title = escape(visible(heading))
        written += f'<section id="section-{number}"><h2>{title}</h2>{body}</section>'
        links += f'<li><a href="#section-{number}">{title}</a></li>'
    contents = f'<nav class="rg-contents" aria-label="Contents"><ul>{links}</ul></nav>'
    return (contents if len(shown) >= 3 else "") + written


def inert_json(value: Any) -> str:
    """JSON that cannot close the <script> element that contains it, whatever its strings are."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text.encode("utf-8", errors="replace").decode("utf-8")


Matrix = tuple[tuple[float, ...], ...]


class _Terminal(Console):
    """A console that leaves to its caller what a closed pipe means; rich's ends the process."""

    def on_broken_pipe(self) -> None:
        """See `Console`: called where a BrokenPipeError is handled, which is raised again."""
        raise


class Picture(ABC):
    """A part of a page. Subclasses have `drawing` and `terminal`, and a `title`."""

    title: str = ""

    @abstractmethod
    def drawing(self) -> Drawing:
        """The picture as shapes."""

    @abstractmethod
    def terminal(self, width: int, color: bool) -> Text:
        """The picture in at most `width` columns; without colour it is plain characters."""

    def table_width(self) -> int:
        """The columns that its tables need so that no cell is cut."""
        return 0

    def _title_shapes(self, size: float = 14) -> list[Shape]:
        return [Label(8, 14, self.title, size, bold=True)] if self.title else []

    def _title_width(self) -> float:
        return text_width(self.title, 14.5) + 16

    def _title_text(self, width: int) -> Text:
        """The title as the first line in a terminal; what follows is not wrapped."""
        text = Text(no_wrap=True)
        return text.append(clip(self.title, width) + "\n", style="bold") if self.title else text

    def _title_html(self) -> str:
        return f"<h3>{escape(visible(self.title))}</h3>" if self.title else ""

    def body(self) -> str:
        """The picture as HTML inside a page that has the style sheet."""
        drawing = self.drawing()
        if drawing.width > SCALED:
            return scrolling(drawing.svg(on_page), drawing.title)
        return f'<figure class="rg-figure">{drawing.svg(on_page)}</figure>'

    def text(self, width: int = 80) -> str:
        """Plain characters, for a file or a pipe."""
        return self.terminal(width, color=False).plain

    def svg(self) -> str:
        """An SVG file."""
        return self.drawing().svg()

    def html(self) -> str:
        """A whole page in one string: no script, font or style comes from elsewhere."""
        return page(self.title, self.body())

    def save(self, path: str | Path) -> Path:
        """Write the picture; its folder is made where it is missing.

        path: its suffix chooses the format: .html, .svg, .png (needs the extra `plot`) or .txt.

        Raises:
            ConfigError: the suffix is another.
            MissingExtra: resvg-py is not installed, which PNG files need.
        """
        path = Path(path)
        writers = {".html": self.html, ".svg": self.svg, ".txt": self.text}
        if path.suffix not in (*writers, ".png"):
            raise ConfigError(f"`path` must end in .html, .svg, .png or .txt, but is {path}.")
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".png":
            save_png(self.drawing(), path)
            return path
        path.write_text(writers[path.suffix](), encoding="utf-8")
        return path

    def show(self) -> None:
        """Print to the terminal: in colour where it has colours, else as plain characters.

        Into a file or a pipe tables are written whole, however wide they are.
        """
        console = _Terminal()
        if not console.is_terminal:
            console.width = max(console.width, self.table_width())
        if console.encoding.lower().startswith("utf"):
            console.print(self)
        else:
            plain = self.text(console.width).encode(console.encoding, errors="replace")
            console.print(plain.decode(console.encoding), markup=False, highlight=False)

    def __repr__(self) -> str:
        """Its kind and its title, not its numbers."""
        title = f" {self.title!r}" if self.title else ""
        return f"<{type(self).__name__}{title}: show() draws it, save(path) writes it>"

    def _repr_html_(self) -> str:
        return fragment(self.body())

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        color = console.color_system is not None and not console.no_color
        yield self.terminal(options.max_width, color)


@dataclass(frozen=True, repr=False)
class Note(Picture):
    """Lines of text between pictures."""

    lines: tuple[str, ...]
    title: str = ""

    def drawing(self) -> Drawing:
        shapes, y = [], 0.0
        for index, line in enumerate((self.title, *self.lines) if self.title else self.lines):
            bold = bool(self.title) and index == 0
            size = 15.0 if bold else 12.5
            shapes.append(Label(8, y + 11, line, size, bold=bold))
            y += 26 if bold else 20
        width = max((text_width(s.text, s.size) for s in shapes), default=0) + 16
        return Drawing(width, y + 4, tuple(shapes))

    def terminal(self, width: int, color: bool) -> Text:
        text = self._title_text(width)
        for line in self.lines:
            text.append("\n".join(wrap(visible(line), width, replace_whitespace=False)) + "\n")
        return text

    def body(self) -> str:
        paragraphs = (f"<p>{escape(visible(line))}</p>" for line in self.lines)
        return self._title_html() + "".join(paragraphs)


@dataclass(frozen=True, repr=False)
class PictureColumn(Picture):
    """Pictures under one another, as one."""

    parts: tuple[Picture, ...]
    title: str = ""

    def drawing(self) -> Drawing:
        return stack((part.drawing() for part in self.parts), self.title)

    def terminal(self, width: int, color: bool) -> Text:
        parts = (part.terminal(width, color) for part in self.parts)
        return Text("\n").join(part for part in parts if part.plain)

    def table_width(self) -> int:
        return max((part.table_width() for part in self.parts), default=0)

    def body(self) -> str:
        return "".join(part.body() for part in self.parts)

    def html(self) -> str:
        heading = f"<h1>{escape(visible(self.title))}</h1>" if self.title else ""
        return page(self.title, heading + self.body())


@dataclass(frozen=True, repr=False)
class PictureRow(PictureColumn):
    """Pictures side by side; in a terminal under one another."""

    def drawing(self) -> Drawing:
        return tile((part.drawing() for part in self.parts), len(self.parts), self.title)

    def body(self) -> str:
        return f'<div class="rg-row">{super().body()}</div>'


@dataclass(frozen=True, repr=False)
class Illustration(PictureColumn):
    """Pictures under one another, and the `numbers` that they show."""

    numbers: dict[str, Any] = field(default_factory=dict)


def as_matrix(values: Any) -> Matrix:
    """Rows of floats from a tensor, an array or lists (T, S); what is not finite becomes 0.

    Raises:
        ConfigError: this is no matrix.
    """
    rows = values.tolist() if hasattr(values, "tolist") else values
    try:
        matrix = np.array(rows, float)
    except (TypeError, ValueError):  # rows of several lengths
        matrix = np.zeros(0)
    if matrix.ndim != 2 and len(rows):
        shape = getattr(values, "shape", type(values).__name__)
        raise ConfigError(f"`weights` must be of one head (queries, keys), but is {shape}.")
    return tuple(map(tuple, np.nan_to_num(matrix, posinf=0, neginf=0).tolist()))


def as_labels(labels: Sequence[str] | None, count: int, name: str) -> tuple[str, ...]:
    """`count` labels, numbered from 0 where none are given."""
    if labels is None:
        return tuple(str(index) for index in range(count))
    if len(labels) != count:
        raise ConfigError(f"`{name}` must be a label for each of {count}, but has {len(labels)}.")
    return tuple(str(label) for label in labels)


LONG = 16  # columns of a text that may be broken into lines


@dataclass(frozen=True, repr=False)
class Table(Picture):
    """`head` names the columns, each of `rows` has as many cells; row `best` is emphasized."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    best: int | None = None

    @classmethod
    def of(cls, head: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> Self:
        """A table; cells become texts, and each row has a cell for each name in `head`."""
        return cls(tuple(head), tuple(tuple(str(cell) for cell in row) for row in rows), title)

    def _numeric(self, column: int) -> bool:
        """Whether a column holds numbers, which are aligned to the right."""
        cells = [row[column] for row in self.rows if row[column]]
        return bool(cells) and all(cell[0] in "0123456789.+-−±" for cell in cells)

    def _widths(self) -> list[int]:
        columns = zip(self.head, *self.rows, strict=True)
        return [max(cell_len(visible(cell)) for cell in column) for column in columns]

    def drawing(self) -> Drawing:
        shapes: list[Shape] = []
        widths = [text_width("x" * min(60, cells), 12.5) + 22 for cells in self._widths()]
        y, total = 12.0, sum(widths) + 8
        numeric = list(map(self._numeric, range(len(widths))))
        if self.title:
            shapes.append(Label(8, y, self.title, 13.5, bold=True))
            y += 26
        for index, row in enumerate((self.head, *self.rows)):
            x, first = 8.0, index == 0
            for column, (cell, wide) in enumerate(zip(row, widths, strict=True)):
                at, anchor = (x + wide - 22, "end") if numeric[column] else (x, "start")
                ink, bold = ("muted" if first else "ink"), index - 1 == self.best
                shapes.append(Label(at, y, clip(cell, 60), 12.5, anchor, ink, bold=bold))
                x += wide
            shapes.append(Polyline(((8, y + 12), (total, y + 12)), "faint"))
            y += 24
        width = max(total, text_width(self.title, 14) + 16)
        return Drawing(width, y, tuple(shapes), self.title or "table")

    def terminal(self, width: int, color: bool) -> Text:
        text, widths = self._title_text(width), self._fitted(width)
        numeric = list(map(self._numeric, range(len(widths))))
        for index, row in enumerate((self.head, *self.rows)):
            cells = [
                characters.pad(cell, wide, right=numeric[column])
                for column, (cell, wide) in enumerate(zip(row, widths, strict=True))
            ]
            style = "dim" if index == 0 else "bold" if index - 1 == self.best else ""
            text.append("  ".join(cells).rstrip() + "\n", style=style)
        return text

    def table_width(self) -> int:
        widths = self._widths()
        return sum(widths) + 2 * len(widths) - 2

    def _fitted(self, width: int) -> list[int]:
        """The widths of the columns, the widest cut until the line fits."""
        widths = self._widths()
        while sum(widths) + 2 * len(widths) - 2 > width and max(widths) > 4:
            widths[widths.index(max(widths))] -= 1
        return widths

    def body(self) -> str:
        kinds = list(map(self._kind, range(len(self.head))))
        head = _cells("th", self.head, kinds)
        rows = []
        for index, row in enumerate(self.rows):
            mark = ' class="rg-best"' if index == self.best else ""
            rows.append(f"<tr{mark}>{_cells('td', row, kinds)}</tr>")
        table = f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
        table = f'<table class="rg-table">{table}</table>'
        return self._title_html() + scrolling(table, self.title or "table")

    def _kind(self, column: int) -> str:
        """The attributes of the cells of a column."""
        if self._numeric(column):
            return ' class="rg-number"'
        wide = max(cell_len(visible(row[column])) for row in (self.head, *self.rows)) > LONG
        return ' dir="auto" class="rg-long"' if wide else ' dir="auto"'


def _cells(tag: str, row: Sequence[str], kinds: Sequence[str]) -> str:
    pairs = zip(row, kinds, strict=True)
    return "".join(f"<{tag}{kind}>{escape(visible(text))}</{tag}>" for text, kind in pairs)
