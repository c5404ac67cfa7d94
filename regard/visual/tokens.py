"""What an encoder reads, and all segmentations of a word."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from rich.cells import cell_len
from rich.text import Text

from regard.errors import ConfigError
from regard.text import Tokenizer
from regard.text.explain import SegmentedWord
from regard.text.templates import Template
from regard.text.unigram import Edge
from regard.visual import characters
from regard.visual.drawing import SERIES, Drawing, Label, Rect, Shape, clip, text_width, visible
from regard.visual.picture import Picture, scrolling

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
        pair = (texts,) if isinstance(texts, str) else tuple(texts)
        if len(pair) not in (1, 2):
            raise ConfigError(f"`texts` must be one text or two, but is {len(pair)}.")
        row = template.apply([tokenizer.encode(text).ids for text in pair])
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


CHARACTER_WIDTH, ROW_HEIGHT, MARGIN = 46.0, 30.0, 12.0
LEGEND = "each box: a subword and its log-probability; orange: the most probable segmentation"


@dataclass(frozen=True, repr=False)
class Lattice(Picture):
    """All segmentations of one word by the unigram language model (Kudo 2018, figure 1).

    A segmentation is a path of boxes, each of which begins where the one before ends.
    """

    word: SegmentedWord
    title: str = ""

    def drawing(self) -> Drawing:
        top = 34.0 if self.title else 8.0
        shapes = self._title_shapes()
        for index, char in enumerate(self.word.word):
            middle = MARGIN + (index + 0.5) * CHARACTER_WIDTH
            shapes.append(Label(middle, top + 8, char, 14, "middle", bold=True))
        rows = self._rows()
        for edge, row in zip(self.word.edges, rows, strict=True):
            shapes += self._box(edge, top + 24 + row * ROW_HEIGHT)
        bottom = top + 24 + (max(rows, default=0) + 1) * ROW_HEIGHT
        shapes.append(Label(MARGIN, bottom + 12, LEGEND, 11, fill="muted"))
        lattice = 2 * MARGIN + len(self.word.word) * CHARACTER_WIDTH
        width = max(lattice, text_width(LEGEND, 11) + 2 * MARGIN, self._title_width())
        name = self.title or f"segmentations of {self.word.word}"
        return Drawing(width, bottom + 26, tuple(shapes), name)

    def _box(self, edge: Edge, y: float) -> list[Shape]:
        best = edge in self.word.best
        color = "warm" if best else "accent" if edge.known else "muted"
        left, width = (
            MARGIN + edge.start * CHARACTER_WIDTH,
            (edge.end - edge.start) * CHARACTER_WIDTH,
        )
        mark = "" if edge.known else ", unknown"
        tip = f"{edge.subword}: p = {math.exp(edge.score):.3g}, log p = {edge.score:.3f}{mark}"
        opacity = 0.25 if best else 0.08
        return [
            Rect(left + 1.5, y, width - 3, ROW_HEIGHT - 5, color, opacity, tip, 4, color),
            Label(left + 6, y + 8, clip(edge.subword, edge.end - edge.start + 3), 11.5, bold=best),
            Label(left + width - 6, y + 18, f"{edge.score:.1f}", 9, "end", "muted"),
        ]

    def _rows(self) -> list[int]:
        """The row of each box: the highest one in which no box overlaps it, the best path first."""
        boxes: list[list[Edge]] = [[]]
        lanes: dict[Edge, int] = {}
        for edge in (*self.word.best, *(e for e in self.word.edges if e not in self.word.best)):
            free = (
                n for n, placed in enumerate(boxes) if not any(_overlap(edge, e) for e in placed)
            )
            row = next(free, len(boxes))
            if row == len(boxes):
                boxes.append([])
            boxes[row].append(edge)
            lanes[edge] = row
        return [lanes[edge] for edge in self.word.edges]

    def terminal(self, width: int, color: bool) -> Text:
        text = self._title_text(width)
        for edge in self.word.edges:
            best = edge in self.word.best
            lead = " " * edge.start
            line = f"{lead}{edge.subword}{' ' * (len(self.word.word) - edge.end)}"
            text.append(
                f"{clip(line, width - 12)}  {edge.score:8.2f}{' *' * best}\n", "bold" * best
            )
        return text


def _overlap(one: Edge, other: Edge) -> bool:
    return one.start < other.end and other.start < one.end
