"""Which token attends to which: two columns of tokens with an arc for each weight."""

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

FAINTEST = 0.01  # of the largest weight: fainter arcs are left out of the drawing
GAP, LINE = 180, 24  # pixels between the columns, and of a token
LABEL_CELLS = 18


@dataclass(frozen=True, repr=False)
class AttentionArcs(Picture):
    """`weights` (T, S) from `queries` (left) to `keys` (right); make it with `of`.

    With a `focus` (the index of a query) only the arcs of this token are drawn.
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
        """Arcs from each query to the keys that it attends to.

        weights: (T, S), a tensor, an array or lists.  queries, keys: T and S labels, by default
        numbers from 0.  focus: the index or the label of one query; only its arcs are drawn, with
        their weights.

        Raises:
            ConfigError: shapes do not fit, or no query or several have the label `focus`.
        """
        matrix = as_matrix(weights)
        rows = as_labels(queries, len(matrix), "queries")
        columns = as_labels(keys, len(matrix[0]) if matrix else 0, "keys")
        return cls(matrix, rows, columns, title, index_of(focus, rows))

    def _shown(self) -> Sequence[int]:
        """The queries whose arcs are drawn."""
        return range(len(self.queries)) if self.focus is None else (self.focus,)

    def drawing(self) -> Drawing:
        left, top = 16 + _widest(self.queries), 34 if self.title else 8
        right = left + GAP
        shapes = [*self._arcs(left, right, top), *self._title_shapes()]
        for t, token in enumerate(self.queries):
            ink = "ink" if t in self._shown() else "muted"
            y, bold = top + LINE * (t + 0.5), t == self.focus
            shapes.append(Label(left - 6, y, clip(token, LABEL_CELLS), 13, "end", ink, bold=bold))
        for s, token in enumerate(self.keys):
            shapes.append(Label(right + 6, top + LINE * (s + 0.5), clip(token, LABEL_CELLS), 13))
        width = max(right + 60 + _widest(self.keys), self._title_width())
        height = top + LINE * max(len(self.queries), len(self.keys)) + 8
        return Drawing(width, height, tuple(shapes), self.title or "attention")

    def _arcs(self, left: float, right: float, top: float) -> list[Shape]:
        pairs = [(t, s) for t in self._shown() for s in range(len(self.keys))]
        peak = max((self.weights[t][s] for t, s in pairs), default=0.0) or 1.0
        shapes: list[Shape] = []
        for t, s in pairs:
            share = self.weights[t][s] / peak
            if share < FAINTEST:
                continue
            start, end = (left, top + LINE * (t + 0.5)), (right, top + LINE * (s + 0.5))
            if self.focus is not None:
                wide = text_width(clip(self.keys[s], LABEL_CELLS), 13) + 10
                box = Rect(right + 1, end[1] - 10, wide, 20, "accent", 0.4 * share, radius=3)
                number = f"{self.weights[t][s]:.3f}"
                shapes += [box, Label(right + 8 + wide, end[1], number, 10.5, fill="muted")]
            shapes.append(Connector((start, end), "accent", 0.6 + 3 * share, share))
        return shapes

    def terminal(self, width: int, color: bool) -> Text:
        """The keys that each query attends to most, as bars."""
        text, most = self._title_text(width), None if self.focus is not None else 3
        label = min(LABEL_CELLS, max((cell_len(visible(key)) for key in self.keys), default=1))
        for t in self._shown():
            text.append(clip(self.queries[t], width - 1) + "\n", style="bold")
            for s in sorted(range(len(self.keys)), key=lambda s: -self.weights[t][s])[:most]:
                weight = self.weights[t][s]
                bar = characters.bar(min(1, weight), max(1, width - label - 12), color)
                text.append(f"  {characters.pad(self.keys[s], label)} {weight:.4f} ")
                text.append(bar + "\n", style="blue" if color else "")
        return text


def _widest(labels: Sequence[str]) -> float:
    return max((text_width(clip(label, LABEL_CELLS), 13) for label in labels), default=10.0)


def index_of(token: int | str | None, tokens: Sequence[str], option: str = "focus") -> int | None:
    """The index of `token` among `tokens`, whose space markers are ignored.

    option: what a message calls the token.

    Case is ignored where no token is spelled in the same way. None, and an index, stay.

    Raises:
        ConfigError: none or several are spelled so, or the index is out of range.
    """
    if token is None:
        return None
    if isinstance(token, int):
        if not -len(tokens) <= token < len(tokens):
            raise ConfigError(f"`{option}` must be below {len(tokens)}, but is {token}.")
        return token % len(tokens)
    bare = [each.strip("▁Ġ ").removesuffix("</w>") for each in tokens]
    indices = [index for index, each in enumerate(bare) if each == token] or [
        index for index, each in enumerate(bare) if each.casefold() == token.casefold()
    ]
    if len(indices) != 1:
        where = f"at {', '.join(map(str, indices))}" if indices else "nowhere"
        raise ConfigError(
            f"`{option}` must be a token that occurs once, but {token!r} occurs {where} in "
            f"{' '.join(tokens)!r}. Give its index instead."
        )
    return indices[0]
