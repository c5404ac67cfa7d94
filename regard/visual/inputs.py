"""What an encoder reads of a text or of two: pieces, ids, segments, mask and positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from rich.cells import cell_len
from rich.text import Text

from regard.errors import ConfigError
from regard.text.templates import Template
from regard.visual import characters
from regard.visual.drawing import (
    SERIES,
    Drawing,
    Label,
    Rect,
    Shape,
    clip,
    text_width,
    visible,
)
from regard.visual.picture import Picture

LONGEST = 18  # columns of a piece
ROOM = 1100  # pixels of a line of pieces; what does not fit goes on below


@dataclass(frozen=True)
class Inputs(Picture):
    """One place of the row a column; make it with `of`. `mask` is 0 where there is padding."""

    pieces: tuple[str, ...]
    ids: tuple[int, ...]
    segments: tuple[int, ...]
    mask: tuple[int, ...]
    title: str = ""

    @classmethod
    def of(
        cls,
        texts: str | Sequence[str],
        tokenizer: Any,
        template: Template,
        *,
        length: int | None = None,
        pad: int | None = None,
        title: str = "",
    ) -> Inputs:
        """The row of a text, or of a pair of texts (a, b), padded to `length`.

        Args:
            tokenizer, template: those of the model; see `regard.text.templates`.
            length: of the row, with padding behind it; by default as long as the texts need.
            pad: the id of padding, by default the tokenizer's.

        Raises:
            ConfigError: the row is longer than `length`, or padding has no id.
        """
        given = (texts,) if isinstance(texts, str) else tuple(texts)
        if len(given) not in (1, 2):
            raise ConfigError(f"`texts` must be one text or two, but is {len(given)}.")
        row = template.apply([tokenizer.encode(text).ids for text in given])
        missing = 0 if length is None else length - len(row)
        if missing < 0:
            raise ConfigError(
                f"`length` must be at least {len(row)}, what these texts need, but is {length}."
            )
        padding = tokenizer.pad_id if pad is None else pad
        if missing and padding is None:
            raise ConfigError("`pad` must be given: this tokenizer has no pad piece.")
        ids = (*row.ids, *[padding] * missing)
        return cls(
            tuple(tokenizer.token(number) for number in ids),
            ids,
            (*row.segments, *[0] * missing),
            (*[1] * len(row), *[0] * missing),
            title,
        )

    @property
    def rows(self) -> dict[str, tuple[str, ...]]:
        """Name -> a text for each place."""
        return {
            "pieces": self.pieces,
            "ids": tuple(map(str, self.ids)),
            "segments": tuple(map(str, self.segments)),
            "mask": tuple(map(str, self.mask)),
            "positions": tuple(map(str, range(len(self.ids)))),
        }

    def drawing(self) -> Drawing:
        left, top, line = 84, 34 if self.title else 8, 26
        shapes: list[Shape] = [Label(8, 14, self.title, 14, bold=True)] if self.title else []
        width = text_width(self.title, 14.5) + 16
        for places in self._lines(ROOM - left, lambda text: text_width(text, 12.5) + 14):
            for number, (name, texts) in enumerate(self.rows.items()):
                y = top + (number + 0.5) * line
                shapes.append(Label(left - 10, y, name, 12, "end", "muted"))
                x = float(left)
                for place, wide in places:
                    shapes += self._cell(name, place, texts[place], (x, y), wide, line)
                    x += wide
                width = max(width, x + 8)
            top += line * len(self.rows) + 20
        return Drawing(width, top - 12, tuple(shapes), self.title or "input rows")

    def _cell(
        self, name: str, place: int, text: str, at: tuple[float, float], wide: float, high: float
    ) -> list[Shape]:
        real = self.mask[place] == 1
        fill, strength = "faint", 0.5 if name != "mask" or real else 0.0
        if name in ("pieces", "segments") and real:
            fill, strength = SERIES[self.segments[place] % len(SERIES)], 0.16
        x, y = at
        box = Rect(x + 1, y - high / 2 + 1, wide - 2, high - 2, fill, strength, radius=3)
        ink, bold = ("ink" if real else "muted"), name == "pieces"
        middle = x + wide / 2
        shown = clip(text, LONGEST)
        return [box, Label(middle, y, shown, 12.5, "middle", ink, bold=bold, title=text)]

    def _lines(self, room: float, measure: Any) -> list[list[tuple[int, float]]]:
        """The places with the widths of their columns, in lines that fit."""
        lines: list[list[tuple[int, float]]] = [[]]
        used = 0.0
        for place, texts in enumerate(zip(*self.rows.values(), strict=True)):
            wide = max(measure(clip(text, LONGEST)) for text in texts)
            if used + wide > room and lines[-1]:
                lines.append([])
                used = 0.0
            lines[-1].append((place, wide))
            used += wide
        return lines

    def terminal(self, width: int, color: bool) -> Text:
        text = Text(no_wrap=True)
        if self.title:
            text.append(clip(self.title, width) + "\n", style="bold")
        for number, places in enumerate(self._lines(width - 10, lambda t: cell_len(t) + 1)):
            text.append("\n" if number else "")
            for name, texts in self.rows.items():
                text.append(characters.pad(name, 9, right=True) + " ", style="dim")
                for place, wide in places:
                    style = "dim" if not self.mask[place] else ""
                    if name in ("pieces", "segments") and self.mask[place]:
                        style = ("blue", "yellow", "green")[self.segments[place] % 3]
                    cells = min(int(wide) - 1, width - 11)
                    text.append(characters.pad(texts[place], cells) + " ", style=style)
                text.append("\n")
        return text

    def body(self) -> str:
        title = f"<h3>{escape(visible(self.title))}</h3>" if self.title else ""
        rows = []
        for name, texts in self.rows.items():
            cells = "".join(
                f'<td dir="auto"{self._tint(name, place)}>{escape(visible(text))}</td>'
                for place, text in enumerate(texts)
            )
            rows.append(f"<tr><th>{name}</th>{cells}</tr>")
        return (
            f'{title}<div class="rg-figure"><table class="rg-table"><tbody>{"".join(rows)}</tbody>'
            "</table></div>"
        )

    def _tint(self, name: str, place: int) -> str:
        if not self.mask[place]:
            return ' class="rg-muted"'
        if name not in ("pieces", "segments"):
            return ""
        role = SERIES[self.segments[place] % len(SERIES)]
        return f' style="background:color-mix(in srgb, var(--rg-{role}) 16%, transparent)"'
