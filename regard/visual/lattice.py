"""Picture of the lattice of a word: all subwords in it, and the best segmentation."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rich.text import Text

from regard.text.explain import SegmentedWord
from regard.text.unigram import Edge
from regard.visual.drawing import Drawing, Label, Rect, Shape, clip, text_width
from regard.visual.picture import Picture

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
        known = "" if edge.known else ", unknown"
        tip = f"{edge.subword}: p = {math.exp(edge.score):.3g}, log p = {edge.score:.3f}{known}"
        opacity = 0.25 if best else 0.08
        return [
            Rect(left + 1.5, y, width - 3, ROW_HEIGHT - 5, color, opacity, tip, 4, color),
            Label(left + 6, y + 8, clip(edge.subword, edge.end - edge.start + 3), 11.5, bold=best),
            Label(left + width - 6, y + 18, f"{edge.score:.1f}", 9, "end", "muted"),
        ]

    def _rows(self) -> list[int]:
        """The row of each box: the highest one in which no box overlaps it, the best path first."""
        boxes: list[list[Edge]] = [[]]
        found: dict[Edge, int] = {}
        for edge in (*self.word.best, *(e for e in self.word.edges if e not in self.word.best)):
            free = (
                n for n, placed in enumerate(boxes) if not any(_overlap(edge, e) for e in placed)
            )
            row = next(free, len(boxes))
            if row == len(boxes):
                boxes.append([])
            boxes[row].append(edge)
            found[edge] = row
        return [found[edge] for edge in self.word.edges]

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
