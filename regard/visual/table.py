"""Rows and columns of text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Self

from rich.cells import cell_len
from rich.text import Text

from regard.visual import characters
from regard.visual.drawing import Drawing, Label, Polyline, Shape, clip, text_width, visible
from regard.visual.page import scrolling
from regard.visual.picture import Picture

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
        if self.title:
            shapes.append(Label(8, y, self.title, 13.5, bold=True))
            y += 26
        for index, row in enumerate((self.head, *self.rows)):
            x, first = 8.0, index == 0
            for column, (cell, wide) in enumerate(zip(row, widths, strict=True)):
                at, anchor = (x + wide - 22, "end") if self._numeric(column) else (x, "start")
                ink, bold = ("muted" if first else "ink"), index - 1 == self.best
                shapes.append(Label(at, y, clip(cell, 60), 12.5, anchor, ink, bold=bold))
                x += wide
            shapes.append(Polyline(((8, y + 12), (total, y + 12)), "faint"))
            y += 24
        width = max(total, text_width(self.title, 14) + 16)
        return Drawing(width, y, tuple(shapes), self.title or "table")

    def terminal(self, width: int, color: bool) -> Text:
        text, widths = self._title_text(width), self._fitted(width)
        for index, row in enumerate((self.head, *self.rows)):
            cells = [
                characters.pad(cell, wide, right=self._numeric(column))
                for column, (cell, wide) in enumerate(zip(row, widths, strict=True))
            ]
            style = "dim" if index == 0 else "bold" if index - 1 == self.best else ""
            text.append("  ".join(cells).rstrip() + "\n", style=style)
        return text

    def _fitted(self, width: int) -> list[int]:
        """The widths of the columns, the widest cut until the line fits."""
        widths = self._widths()
        while sum(widths) + 2 * len(widths) - 2 > width and max(widths) > 4:
            widths[widths.index(max(widths))] -= 1
        return widths

    def body(self) -> str:
        head = "".join(self._cell("th", name, column) for column, name in enumerate(self.head))
        rows = []
        for index, row in enumerate(self.rows):
            mark = ' class="rg-best"' if index == self.best else ""
            cells = "".join(self._cell("td", cell, column) for column, cell in enumerate(row))
            rows.append(f"<tr{mark}>{cells}</tr>")
        table = f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
        table = f'<table class="rg-table">{table}</table>'
        return self._title_html() + scrolling(table, self.title or "table")

    def _cell(self, tag: str, text: str, column: int) -> str:
        kind = ' dir="auto"'
        if self._numeric(column):
            kind = ' class="rg-number"'
        elif max(cell_len(visible(row[column])) for row in (self.head, *self.rows)) > LONG:
            kind += ' class="rg-long"'
        return f"<{tag}{kind}>{escape(visible(text))}</{tag}>"
