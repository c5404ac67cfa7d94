"""What an encoder reads of a text or of two: tokens, ids, segments, mask and positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from rich.cells import cell_len
from rich.text import Text

from regard.errors import ConfigError
from regard.text import Tokenizer
from regard.text.templates import Template
from regard.visual import characters
from regard.visual.drawing import SERIES, Drawing, Label, Rect, Shape, clip, text_width, visible
from regard.visual.page import scrolling
from regard.visual.picture import Picture

LONGEST = 18  # columns of a token
WIDTH, LEFT, LINE = 1100, 84, 26  # pixels of a line of tokens, of the names of rows, of a row
TINTED = ("tokens", "segments")  # rows with a colour for each segment


@dataclass(frozen=True, repr=False)
class Inputs(Picture):
    """A column for each token; make it with `of`. `mask` is 0 where there is padding."""

    tokens: tuple[str, ...]
    ids: tuple[int, ...]
    segments: tuple[int, ...]
    mask: tuple[int, ...]
    title: str = ""

    @classmethod
    def of(
        cls,
        texts: str | Sequence[str],
        tokenizer: Tokenizer,
        template: Template,
        *,
        length: int | None = None,
        pad: int | None = None,
        title: str = "",
    ) -> Inputs:
        """The input for a text, or for a pair of texts (a, b), padded to `length`.

        Args:
            texts: one text or two.
            tokenizer, template: those of the model; see `regard.text.templates`.
            length: tokens of the row, padding included; by default as many as the texts need.
            pad: the id of padding, by default the tokenizer's.
            title: of the picture.

        Raises:
            ConfigError: the texts need more than `length` tokens, or padding has no id.
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
            raise ConfigError("`pad` must be given: this tokenizer has no padding token.")
        ids = [*row.ids, *[padding or 0] * missing]
        segments, mask = [*row.segments, *[0] * missing], [1] * len(row) + [0] * missing
        tokens = map(tokenizer.token, ids)
        return cls(tuple(tokens), tuple(ids), tuple(segments), tuple(mask), title)

    @property
    def rows(self) -> dict[str, tuple[str, ...]]:
        """Name -> a text for each token."""
        columns = (self.ids, self.segments, self.mask, range(len(self.ids)))
        named = zip(("ids", "segments", "mask", "positions"), columns, strict=True)
        return {"tokens": self.tokens} | {name: tuple(map(str, row)) for name, row in named}

    def drawing(self) -> Drawing:
        shapes, top, width = self._title_shapes(), 34 if self.title else 8, self._title_width()
        for columns in self._lines(WIDTH - LEFT, lambda text: text_width(text, 12.5) + 14):
            for number, (name, texts) in enumerate(self.rows.items()):
                x, y = float(LEFT), top + (number + 0.5) * LINE
                shapes.append(Label(LEFT - 10, y, name, 12, "end", "muted"))
                for index, wide in columns:
                    shapes += self._cell(name, index, texts[index], x, y, wide)
                    x += wide
                width = max(width, x + 8)
            top += LINE * len(self.rows) + 20
        return Drawing(width, top - 12, tuple(shapes), self.title or "input rows")

    def _cell(
        self, name: str, index: int, text: str, x: float, y: float, wide: float
    ) -> list[Shape]:
        real = self.mask[index] == 1
        fill, strength = "faint", 0.5 if name != "mask" or real else 0.0
        if name in TINTED and real:
            fill, strength = _color(self.segments[index]), 0.16
        box = Rect(x + 1, y - LINE / 2 + 1, wide - 2, LINE - 2, fill, strength, radius=3)
        ink, bold, shown = "ink" if real else "muted", name == "tokens", clip(text, LONGEST)
        return [box, Label(x + wide / 2, y, shown, 12.5, "middle", ink, bold=bold, title=text)]

    def _lines(
        self, width: float, measure: Callable[[str], float]
    ) -> list[list[tuple[int, float]]]:
        """(index, width) of the columns, in lines that fit."""
        lines: list[list[tuple[int, float]]] = [[]]
        used = 0.0
        for index, texts in enumerate(zip(*self.rows.values(), strict=True)):
            wide = max(measure(clip(text, LONGEST)) for text in texts)
            if used + wide > width and lines[-1]:
                lines.append([])
                used = 0.0
            lines[-1].append((index, wide))
            used += wide
        return lines

    def terminal(self, width: int, color: bool) -> Text:
        text = self._title_text(width)
        for number, columns in enumerate(self._lines(width - 10, lambda t: cell_len(t) + 1)):
            text.append("\n" if number else "")
            for name, texts in self.rows.items():
                text.append(characters.pad(name, 9, right=True) + " ", style="dim")
                for index, wide in columns:
                    style = "" if self.mask[index] else "dim"
                    if name in TINTED and self.mask[index]:
                        style = ("blue", "yellow", "green")[self.segments[index] % 3]
                    cells = min(int(wide) - 1, width - 11)
                    text.append(characters.pad(texts[index], cells) + " ", style=style)
                text.append("\n")
        return text

    def body(self) -> str:
        rows = []
        for name, texts in self.rows.items():
            cells = "".join(
                f'<td dir="auto"{self._style(name, index)}>{escape(visible(text))}</td>'
                for index, text in enumerate(texts)
            )
            rows.append(f"<tr><th>{name}</th>{cells}</tr>")
        table = f'<table class="rg-table"><tbody>{"".join(rows)}</tbody></table>'
        return self._title_html() + scrolling(table, self.title or "input rows")

    def _style(self, name: str, index: int) -> str:
        if not self.mask[index]:
            return ' class="rg-muted"'
        color = f"var(--rg-{_color(self.segments[index])})"
        tint = f' style="background:color-mix(in srgb, {color} 16%, transparent)"'
        return tint if name in TINTED else ""


def _color(segment: int) -> str:
    return SERIES[segment % len(SERIES)]
