"""Cells, bars and vertical labels made of characters, for the terminal."""

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from rich.cells import cell_len
from rich.color import Color
from rich.style import Style
from rich.text import Text

from regard.visual.drawing import clip, visible

SHADES = " .:-=+*#%@"
EIGHTHS = " ▏▎▍▌▋▊▉█"
DARK, COLD, WARM = (30, 33, 41), (110, 160, 255), (255, 150, 84)
HEADER_ROWS = 12


def number(value: float, digits: int) -> str:
    """.88, 1.00, -.50: no leading zero, since most weights are below one."""
    return f"{value:.{digits}f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.{digits}f}"


def pad(text: str, cells: int, right: bool = False) -> str:
    """`text` cut and padded to exactly `cells` columns, wide characters counted as two."""
    text = clip(text, cells)
    room = " " * (cells - cell_len(text))
    return room + text if right else text + room


def clusters(text: str) -> list[str]:
    """The characters of `text` with their combining marks and joiners, one column entry each."""
    parts: list[str] = []
    for character in visible(text):
        joins = unicodedata.combining(character) or character in "\u200d\ufe0e\ufe0f"
        if parts and (joins or parts[-1].endswith("\u200d")):
            parts[-1] += character
        else:
            parts.append(character)
    return parts


def shade(share: float) -> Style:
    """Dark to bright for a share in [-1, 1]; the sign chooses the hue."""
    peak, amount = (COLD if share >= 0 else WARM), min(1.0, abs(share))
    red, green, blue = (
        round(low + (high - low) * amount) for low, high in zip(DARK, peak, strict=True)
    )
    ink = "black" if amount > 0.5 else "white"
    return Style(color=ink, bgcolor=Color.from_rgb(red, green, blue))


def bar(share: float, cells: int, color: bool) -> str:
    """A bar of at most `cells` columns, with colour to an eighth of a column."""
    if not color:
        return "#" * round(share * cells)
    eighths = round(share * cells * 8)
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()


@dataclass(frozen=True)
class Grid:
    """A matrix in characters: numbers where they fit, or shades of two columns, or in parts."""

    values: Sequence[Sequence[float]]
    rows: Sequence[str]
    columns: Sequence[str]
    peak: float
    digits: int = 2

    def terminal(self, width: int, color: bool) -> Text:
        names = min(14, max((cell_len(visible(name)) for name in self.rows), default=0))
        room = max(2, width - names - 1)
        text = Text(no_wrap=True)
        for start, stop, cell in self._parts(room):
            text.append_text(self._header(start, stop, cell, names))
            for name, row in zip(self.rows, self.values, strict=True):
                text.append(pad(name, names, right=True) + " ")
                text.append_text(self._row(row[start:stop], any(row), cell, color))
                text.append("\n")
            if cell == 2 and stop == len(self.columns):
                text.append(f"blank = {self.low:.3g}, @ = {self.peak:.3g}\n" if not color else "")
        return text

    @cached_property
    def low(self) -> float:
        """The value of a blank cell: zero, or the lowest one where values are signed."""
        return -self.peak if any(value < 0 for row in self.values for value in row) else 0.0

    def _parts(self, room: int) -> Iterator[tuple[int, int, int]]:
        """(first column, end, columns of characters per cell) for each part that fits."""
        count, wide = len(self.columns), self.digits + 4
        cell = wide if count * wide <= room else 2
        step = max(1, room // cell)
        for start in range(0, count, step):
            yield start, min(count, start + step), cell

    def _header(self, start: int, stop: int, cell: int, names: int) -> Text:
        shown, margin = self.columns[start:stop], " " * (names + 1)
        if not any(shown):
            return Text()
        if cell > 2:
            line = "".join(pad(clip(name, cell - 1), cell, right=True) for name in shown)
            return Text(margin + line + "\n", style="bold")
        labels = [clusters(name) for name in shown]
        labels = [x if len(x) <= HEADER_ROWS else [*x[: HEADER_ROWS - 1], "…"] for x in labels]
        height = max(map(len, labels), default=0)
        aligned = [[""] * (height - len(label)) + label for label in labels]
        lines = (
            margin + "".join(pad(x, cell) for x in line) for line in zip(*aligned, strict=True)
        )
        return Text("".join(line.rstrip() + "\n" for line in lines), style="bold")

    def _row(self, row: Sequence[float], alive: bool, cell: int, color: bool) -> Text:
        text, low = Text(), self.low
        for value in row:
            share = value / self.peak
            shown = number(value, self.digits).rjust(cell - 1) + " " if cell > 2 else "  "
            if not alive:
                text.append("·".rjust(cell - 1) + " " if color else "- ".rjust(cell), "dim")
            elif color:
                text.append(shown, shade(share))
            else:
                part = (value - low) / (self.peak - low)
                text.append(shown if cell > 2 else mark(part) * 2)
        return text


def mark(share: float) -> str:
    """The character for a share from 0 to 1, where there are no colours."""
    return SHADES[round(min(1.0, max(0.0, share)) * (len(SHADES) - 1))]
