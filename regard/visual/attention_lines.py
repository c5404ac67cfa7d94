"""Which word looks at which: two columns of words with a line for each weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from rich.cells import cell_len
from rich.text import Text

from regard.errors import ConfigError
from regard.visual import characters
from regard.visual.drawing import Connector, Drawing, Label, Rect, Shape, clip, text_width, visible
from regard.visual.picture import Matrix, Picture, as_labels, as_matrix

FAINTEST = 0.01  # of the largest weight: fainter lines are left out of the drawing
GAP = 220


@dataclass(frozen=True)
class AttentionLines(Picture):
    """`weights` (T, S) from `queries` (left) to `keys` (right); make it with `of`.

    With a `focus` (the number of a query) only that word's lines are drawn.
    """

    weights: Matrix
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    title: str = ""
    focus: int | None = None

    @classmethod
    def of(
        cls,
        weights: Any,
        queries: Sequence[str] | None = None,
        keys: Sequence[str] | None = None,
        focus: int | str | None = None,
        title: str = "",
    ) -> Self:
        """Lines from each query word to the key words it attends to; `weights` (T, S).

        `focus` is one query's number or word ("it"): only its lines are drawn, with numbers.
        A word that is absent, or that stands more than once, is refused: give its number.
        """
        matrix = as_matrix(weights)
        asking = as_labels(queries, len(matrix), "queries")
        answering = as_labels(keys, len(matrix[0]) if matrix else 0, "keys")
        return cls(matrix, asking, answering, title, position(focus, asking))

    @property
    def asked(self) -> Sequence[int]:
        """The queries whose lines are drawn."""
        return range(len(self.queries)) if self.focus is None else (self.focus,)

    def drawing(self) -> Drawing:
        left = 16 + _widest(self.queries)
        right, top = left + GAP, 34 if self.title else 8
        count = max(len(self.queries), len(self.keys))
        shapes = self._strokes(left, right, top)
        if self.title:
            shapes.append(Label(8, 14, self.title, 14, bold=True))
        for t, word in enumerate(self.queries):
            ink = "ink" if t in self.asked else "muted"
            where = (left - 6, top + 24 * (t + 0.5))
            shapes.append(Label(*where, clip(word, 18), 13, "end", ink, bold=t == self.focus))
        for s, word in enumerate(self.keys):
            shapes.append(Label(right + 6, top + 24 * (s + 0.5), clip(word, 18), 13))
        width = max(right + 60 + _widest(self.keys), text_width(self.title, 14.5) + 16)
        return Drawing(width, top + 24 * count + 8, tuple(shapes), self.title or "attention")

    def _strokes(self, left: float, right: float, top: float) -> list[Shape]:
        peak = max((self.weights[t][s] for t, s in self._pairs()), default=0.0) or 1.0
        shapes: list[Shape] = []
        for t, s in self._pairs():
            share = self.weights[t][s] / peak
            if share < FAINTEST:
                continue
            start, end = (left, top + 24 * (t + 0.5)), (right, top + 24 * (s + 0.5))
            if self.focus is not None:
                wide = text_width(clip(self.keys[s], 18), 13) + 10
                box = Rect(right + 1, end[1] - 10, wide, 20, "accent", 0.4 * share, radius=3)
                number = f"{self.weights[t][s]:.3f}"
                shapes += [box, Label(right + 8 + wide, end[1], number, 10.5, fill="muted")]
            shapes.append(Connector(start, end, "accent", 0.6 + 3 * share, share))
        return shapes

    def _pairs(self) -> list[tuple[int, int]]:
        return [(t, s) for t in self.asked for s in range(len(self.keys))]

    def terminal(self, width: int, color: bool) -> Text:
        """For each word, the words it looks at most, as bars."""
        text = Text(no_wrap=True)
        if self.title:
            text.append(clip(self.title, width) + "\n", style="bold")
        most = None if self.focus is not None else 3
        name = min(18, max((cell_len(visible(word)) for word in self.keys), default=1))
        for t in self.asked:
            text.append(clip(self.queries[t], width - 1) + "\n", style="bold")
            order = sorted(range(len(self.keys)), key=lambda s: -self.weights[t][s])[:most]
            for s in order:
                weight = self.weights[t][s]
                drawn = characters.bar(min(1, weight), max(1, width - name - 12), color)
                text.append(f"  {characters.pad(self.keys[s], name)} {weight:.4f} ")
                text.append(drawn + "\n", style="blue" if color else "")
        return text


def _widest(words: Sequence[str]) -> float:
    return max((text_width(clip(word, 18), 13) for word in words), default=10.0)


def position(word: int | str | None, words: Sequence[str]) -> int | None:
    """The number of `word` among `words`; a leading space marker of a piece is ignored, and so is
    case where nothing is spelled alike."""
    if word is None or isinstance(word, int):
        if word is not None and not -len(words) <= word < len(words):
            raise ConfigError(f"`focus` must be below {len(words)}, but is {word}.")
        return word if word is None else word % len(words)
    bare = [text.strip("▁Ġ ").removesuffix("</w>") for text in words]
    found = [index for index, text in enumerate(bare) if text == word] or [
        index for index, text in enumerate(bare) if text.casefold() == word.casefold()
    ]
    if len(found) != 1:
        where = f"at {', '.join(map(str, found))}" if found else "nowhere"
        raise ConfigError(
            f"`focus` must be a word that stands once, but {word!r} stands {where} in "
            f"{' '.join(words)!r}. Give its number instead."
        )
    return found[0]
