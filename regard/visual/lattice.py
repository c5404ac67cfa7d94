"""The lattice of a word: every subword in it, and the segmentation that encodes it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rich.text import Text

from regard.text.explain import SegmentedWord
from regard.text.unigram import Edge
from regard.visual.drawing import Drawing, Label, Rect, Shape, clip, text_width
from regard.visual.picture import Picture

CHARACTER, LINE, LEFT = 46.0, 30.0, 12.0
LEGEND = "each box: a subword and its log-probability; orange: the most probable segmentation"


@dataclass(frozen=True)
class Lattice(Picture):
    """All segmentations of one word by the unigram language model (Kudo 2018, figure 1).

    A path is a chain of boxes, each of which begins where the one before ends.
    """

    word: SegmentedWord
    title: str = ""

    def drawing(self) -> Drawing:
        top = 34.0 if self.title else 8.0
        shapes = self._title_shapes()
        for index, char in enumerate(self.word.word):
            middle = LEFT + (index + 0.5) * CHARACTER
            shapes.append(Label(middle, top + 8, char, 14, "middle", bold=True))
        levels = self._levels()
        for edge, level in zip(self.word.edges, levels, strict=True):
            shapes += self._box(edge, top + 24 + level * LINE)
        bottom = top + 24 + (max(levels, default=0) + 1) * LINE
        shapes.append(Label(LEFT, bottom + 12, LEGEND, 11, fill="muted"))
        lattice = 2 * LEFT + len(self.word.word) * CHARACTER
        width = max(lattice, text_width(LEGEND, 11) + 2 * LEFT, self._title_width())
        name = self.title or f"segmentations of {self.word.word}"
        return Drawing(width, bottom + 26, tuple(shapes), name)

    def _box(self, edge: Edge, y: float) -> list[Shape]:
        best = edge in self.word.best
        color = "warm" if best else "accent" if edge.known else "muted"
        left, width = LEFT + edge.start * CHARACTER, (edge.end - edge.start) * CHARACTER
        known = "" if edge.known else ", unknown"
        tip = f"{edge.subword}: p = {math.exp(edge.score):.3g}, log p = {edge.score:.3f}{known}"
        opacity = 0.25 if best else 0.08
        return [
            Rect(left + 1.5, y, width - 3, LINE - 5, color, opacity, tip, 4, color),
            Label(left + 6, y + 8, clip(edge.subword, edge.end - edge.start + 3), 11.5, bold=best),
            Label(left + width - 6, y + 18, f"{edge.score:.1f}", 9, "end", "muted"),
        ]

    def _levels(self) -> list[int]:
        """The line of each box: the highest one where nothing overlaps, the best path first."""
        ends: list[list[Edge]] = [[]]
        found: dict[Edge, int] = {}
        for edge in (*self.word.best, *(e for e in self.word.edges if e not in self.word.best)):
            free = (n for n, line in enumerate(ends) if not any(_overlap(edge, e) for e in line))
            level = next(free, len(ends))
            if level == len(ends):
                ends.append([])
            ends[level].append(edge)
            found[edge] = level
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
