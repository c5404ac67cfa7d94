"""A text coloured by one value for each token: blue above zero, orange below."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import Self

from rich.cells import cell_len
from rich.text import Text

from regard.errors import ConfigError
from regard.visual import characters
from regard.visual.drawing import Drawing, Label, Raster, Rect, Shape, text_width, visible
from regard.visual.picture import Picture

COLUMNS = 80  # of a drawing
SIZE, LINE = 12.5, 19.0  # pixels: of letters, and from line to line
FULL = 0.65  # opacity of a value of 1, on which letters can be read
TAB = "␉   "
MARKS = " .:-=+*#%@"

Glyph = tuple[str, float | None]  # what stands in a column or two, and its value


@dataclass(frozen=True, repr=False)
class CellText(Picture):
    """`pieces` of text, each with its value in [-1, 1]; None: no token covers it."""

    pieces: tuple[tuple[str, float | None], ...]
    title: str = ""

    @classmethod
    def of(
        cls,
        text: str,
        offsets: Sequence[tuple[int, int]],
        values: Sequence[float],
        title: str = "",
    ) -> Self:
        """A text whose tokens have values.

        offsets: the (start, end) of each token. Of several tokens of one character the last counts.

        Raises:
            ConfigError: there are more or fewer values than tokens, or one is not finite.
        """
        if len(offsets) != len(values):
            raise ConfigError(f"{len(offsets)} tokens have {len(values)} values.")
        if not all(map(math.isfinite, values)):
            raise ConfigError("The activations are infinite or NaN: use other weights.")
        of_character: list[tuple[int, float | None]] = [(-1, None)] * len(text)
        for number, ((start, end), value) in enumerate(zip(offsets, values, strict=True)):
            of_character[start:end] = [(number, value)] * (end - start)
        groups = groupby(zip(text, of_character, strict=True), key=lambda pair: pair[1])
        pieces = tuple(("".join(c for c, _ in group), key[1]) for key, group in groups)
        return cls(pieces, title)

    @property
    def values(self) -> list[float | None]:
        """The value of each character."""
        return [value for piece, value in self.pieces for _ in piece]

    def _lines(self, columns: int) -> Iterator[list[Glyph]]:
        """Lines of at most so many columns; a line break of the text is shown and ends one."""
        line: list[Glyph] = []
        used = 0
        for glyph, value in self._glyphs():
            if used + cell_len(glyph) > columns and line:
                yield line
                line, used = [], 0
            line.append((glyph, value))
            used += cell_len(glyph)
            if glyph == "↵":
                yield line
                line, used = [], 0
        if line:
            yield line

    def _glyphs(self) -> Iterator[Glyph]:
        for piece, value in self.pieces:
            for part in piece.replace("\t", TAB).splitlines(keepends=True):
                ends = part.endswith("\n")
                yield from ((glyph, value) for glyph in characters.clusters(part.rstrip("\n")))
                if ends:
                    yield "↵", value

    def drawing(self) -> Drawing:
        step, top = text_width("x", SIZE, mono=True), 34.0 if self.title else 8.0
        shapes = self._title_shapes()
        lines = list(self._lines(COLUMNS))
        for number, line in enumerate(lines):
            shapes += _drawn(line, 8.0, top + LINE * number, step)
        bottom = top + LINE * len(lines) + 14
        shapes += _scale(8.0, bottom)
        widest = max((sum(cell_len(glyph) for glyph, _ in line) for line in lines), default=1)
        width = max(16 + widest * step, self._title_width(), 140)
        return Drawing(width, bottom + 14, tuple(shapes), self.title or "a cell over a text")

    def terminal(self, width: int, color: bool) -> Text:
        """Colours behind the letters; without colour a mark below each."""
        text = self._title_text(width)
        for line in self._lines(max(2, width)):
            if color:
                for glyph, value in line:
                    text.append(glyph, style="" if value is None else characters.shade(value))
                text.append("\n")
            else:
                text.append("".join(glyph for glyph, _ in line) + "\n")
                marks = (_mark(value) * cell_len(glyph) for glyph, value in line)
                text.append("".join(marks).rstrip() + "\n")
        text.append("" if color else f"blank = -1, {MARKS[-1]} = 1\n")
        return text

    def body(self) -> str:
        spans = (_span(piece, value) for piece, value in self.pieces)
        return f'{self._title_html()}<pre class="rg-cells">{"".join(spans)}</pre>'


def _drawn(line: list[Glyph], x: float, y: float, step: float) -> list[Shape]:
    """The colours of a line, then its words; each word begins in its own column, since letters are
    not of one width in every font.
    """
    columns = [value for glyph, value in line for _ in range(cell_len(glyph))]
    shades = tuple(FULL * (value or 0.0) for value in columns)
    shapes: list[Shape] = [Raster(x, y, step * len(shades), LINE, (shades,))] if shades else []
    at = 0
    for blank, word in groupby(line, key=lambda glyph: glyph[0].isspace() or glyph[0] == "↵"):
        letters = "".join(glyph for glyph, _ in word)
        if letters.strip():
            point, ink = (x + at * step, y + LINE / 2), "muted" if blank else "ink"
            shapes.append(Label(*point, letters, SIZE, mono=True, fill=ink))
        at += cell_len(letters)
    return shapes


def _scale(x: float, y: float) -> list[Shape]:
    """The legend: colours from -1 to 1."""
    shapes: list[Shape] = [Label(x, y, "-1", 10.5, fill="muted")]
    for step in range(24):
        value = (step + 0.5) / 12 - 1
        fill = "accent" if value >= 0 else "warm"
        shapes.append(Rect(x + 16 + 3 * step, y - 4, 3.05, 8, fill, FULL * abs(value)))
    return [*shapes, Label(x + 93, y, "1", 10.5, fill="muted")]


def _mark(value: float | None) -> str:
    return " " if value is None else MARKS[round((value + 1) / 2 * (len(MARKS) - 1))]


def _span(piece: str, value: float | None) -> str:
    """A piece of HTML; a line break stands behind its sign."""
    shown = "".join("↵\n" if c == "\n" else TAB if c == "\t" else visible(c) for c in piece)
    if value is None:
        return escape(shown)
    kind, share = ("rg-above" if value >= 0 else "rg-below"), round(100 * FULL * abs(value))
    return (
        f'<span class="{kind}" style="--rg-a:{share}%" title="{value:.3f}">{escape(shown)}</span>'
    )
