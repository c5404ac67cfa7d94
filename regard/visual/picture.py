"""What every picture can do: show itself in a terminal or a notebook, and save itself."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from textwrap import wrap
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from regard.errors import ConfigError
from regard.visual.drawing import (
    SCALED,
    Drawing,
    Label,
    Shape,
    clip,
    on_page,
    stack,
    text_width,
    tile,
    visible,
)
from regard.visual.page import fragment, page, scrolling

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
            MissingExtra: matplotlib is not installed, which PNG files need.
        """
        path = Path(path)
        writers = {".html": self.html, ".svg": self.svg, ".txt": self.text}
        if path.suffix not in (*writers, ".png"):
            raise ConfigError(
                f"`path` must end in .html, .svg, .png or .txt, but is {str(path)!r}. "
                "The suffix chooses the kind of picture."
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".png":
            from regard.visual.png import save_png

            save_png(self.drawing(), path)
            return path
        path.write_text(writers[path.suffix](), encoding="utf-8")
        return path

    def show(self) -> None:
        """Print to the terminal: in colour where it has colours, else as plain characters."""
        console = _Terminal()
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
    """Lines of text between pictures; a line that starts with two spaces is a formula."""

    lines: tuple[str, ...]
    title: str = ""

    def drawing(self) -> Drawing:
        shapes, y = [], 0.0
        for index, line in enumerate((self.title, *self.lines) if self.title else self.lines):
            bold, mono = bool(self.title) and index == 0, line.startswith("  ")
            size = 15.0 if bold else 12.5
            shapes.append(Label(8, y + 11, line, size, bold=bold, mono=mono))
            y += 26 if bold else 20
        width = max((text_width(s.text, s.size, s.mono) for s in shapes), default=0) + 16
        return Drawing(width, y + 4, tuple(shapes))

    def terminal(self, width: int, color: bool) -> Text:
        text = self._title_text(width)
        for line in self.lines:
            text.append("\n".join(wrap(visible(line), width, replace_whitespace=False)) + "\n")
        return text

    def body(self) -> str:
        return self._title_html() + "".join(
            f'<pre class="rg-formula">{escape(visible(line[2:]))}</pre>'
            if line.startswith("  ")
            else f"<p>{escape(visible(line))}</p>"
            for line in self.lines
        )


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
class PictureChoice(PictureColumn):
    """Pictures of which a page shows one, to be chosen by its name; elsewhere all are shown.

    names: one for each of `parts`.  label: what is chosen.
    """

    names: tuple[str, ...] = ()
    label: str = ""

    def drawing(self) -> Drawing:
        return tile((part.drawing() for part in self.parts), 3, self.title)

    def body(self) -> str:
        """Radio buttons, so that the page needs no script; each form is a group of its own."""
        options = ""
        for index, (name, part) in enumerate(zip(self.names, self.parts, strict=True)):
            checked = " checked" if index == 0 else ""
            button = f'<input type="radio" name="choice" value="{index}"{checked}>'
            label = f"<label>{button} {escape(visible(name))}</label>"
            options += f'<div class="rg-option">{label}<div>{part.body()}</div></div>'
        legend = f"<legend>{escape(visible(self.label))}</legend>"
        body = f'<fieldset>{legend}<div class="rg-options">{options}</div></fieldset>'
        return f'<form method="dialog" class="rg-picture-choice">{body}</form>'


@dataclass(frozen=True, repr=False)
class Illustration(PictureColumn):
    """Pictures under one another, and the `numbers` that they show."""

    numbers: dict[str, Any] = field(default_factory=dict)


def as_matrix(values: Any) -> Matrix:
    """Rows of floats from a tensor, an array or lists (T, S); what is not finite becomes 0."""
    rows = values.tolist() if hasattr(values, "tolist") else values
    if not isinstance(rows, Iterable) or any(not isinstance(row, Iterable) for row in rows):
        raise ConfigError(
            "`weights` must be a matrix (queries, keys), but is "
            f"{getattr(values, 'shape', type(values).__name__)}. Pick one head of one row."
        )
    matrix = tuple(tuple(_finite(value) for value in row) for row in rows)
    if any(len(row) != len(matrix[0]) for row in matrix):
        raise ConfigError("`weights` must have rows of one length, but they differ.")
    return matrix


def _finite(value: Any) -> float:
    if isinstance(value, (list, tuple)):
        raise ConfigError(
            "`weights` must be a matrix (queries, keys), but has more dimensions. "
            "Pick one head of one row."
        )
    return float(value) if math.isfinite(value) else 0.0


def as_labels(labels: Sequence[str] | None, count: int, name: str) -> tuple[str, ...]:
    """`count` labels, numbered from 0 where none are given."""
    if labels is None:
        return tuple(str(index) for index in range(count))
    if len(labels) != count:
        raise ConfigError(
            f"`{name}` must be {count} labels, one for each row or column, but is {len(labels)}."
        )
    return tuple(str(label) for label in labels)
