"""The alignment of a translation: what each word attends to, with windows and hard choices.

    alignment_of(task, "the cat sat on the mat").save("alignment.png")

As figure 3 of Bahdanau et al. 2014 and figures 2 and 3 of Luong et al. 2015 draw it, from a model:
a row for each generated token, the window of local attention with its centre and Gaussian, and the
position that hard attention chose among the weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from rich.text import Text
from torch import Tensor

from regard.attention.selection import AttentionFormLoop, AttentionFormStep
from regard.errors import ConfigError
from regard.tasks.task import Task
from regard.visual import characters
from regard.visual.attention_record import look
from regard.visual.charts import Heatmap, HeatmapLayout
from regard.visual.drawing import Circle, Drawing, Label, Polyline, Rect, Shape, clip, text_width

CURVE_POINTS = 41  # of a Gaussian
LEGEND = {
    "window": "frame: the window",
    "centre": "dot: its centre p",
    "curve": "curve: the Gaussian",
    "chosen": "orange: the chosen position",
}


@dataclass(frozen=True)
class AlignedToken:
    """What a window and a choice add to one row.

    window: its first and last position; None: it has none.
    centre: p_t, a number of positions; None: the window has none.
    deviation: of the Gaussian around the centre; None: there is none.
    chosen: the position that hard attention took; None: attention is soft.
    """

    window: tuple[int, int] | None = None
    centre: float | None = None
    deviation: float | None = None
    chosen: int | None = None


@dataclass(frozen=True, repr=False)
class Alignment(Heatmap):
    """Weights (T, S) and, for each row, its window and its choice; make it with `alignment_of`."""

    tokens: tuple[AlignedToken, ...] = ()

    def drawing(self) -> Drawing:
        """Over the cells the windows, the Gaussians, the centres and the choices, and a legend."""
        plain, layout, legend = super().drawing(), HeatmapLayout.of(self), self._legend()
        shapes = list(plain.shapes)
        for row, token in enumerate(self.tokens):
            shapes += _marks(layout, row, token)
        if not legend:
            return plain
        y = layout.top + layout.cell * len(self.rows) + 36
        shapes.append(Label(layout.left, y, legend, 10.5, fill="muted"))
        wide = max(plain.width, layout.left + text_width(legend, 10.5) + 12)
        return Drawing(wide, plain.height + 18, tuple(shapes), plain.title)

    def _legend(self) -> str:
        first = self.tokens[0] if self.tokens else AlignedToken()
        positions = {
            "window": first.window,
            "centre": first.centre,
            "curve": first.deviation,
            "chosen": first.chosen,
        }
        return "   ".join(LEGEND[name] for name, value in positions.items() if value is not None)

    def terminal(self, width: int, color: bool) -> Text:
        text = super().terminal(width, color)
        for name, token in zip(self.rows, self.tokens, strict=True):
            lines = []
            if token.centre is not None:
                lines.append(f"p = {token.centre:.2f}")
            if token.window is not None:
                first, last = (self.columns[position] for position in token.window)
                lines.append(f"window {first} … {last}")
            if token.chosen is not None:
                lines.append(f"chosen: {self.columns[token.chosen]}")
            if lines:
                text.append(f"{characters.pad(clip(name, 14), 14)}  {', '.join(lines)}\n")
        return text


def _marks(at: HeatmapLayout, row: int, token: AlignedToken) -> list[Shape]:
    """Those of one row."""
    y, shapes = at.top + row * at.cell, list[Shape]()
    if token.window is not None:
        first, last = token.window
        wide = (last - first + 1) * at.cell
        x = at.left + first * at.cell
        shapes.append(Rect(x + 1, y + 1.5, wide - 2, at.cell - 3, "none", stroke="good"))
    if token.centre is not None:
        middle = at.left + (token.centre + 0.5) * at.cell
        if token.deviation is not None and token.window is not None:
            shapes.append(_gaussian(at, y, token.window, token.centre, token.deviation))
        shapes.append(Circle(middle, y + at.cell - 4, 2.5, "good", f"p = {token.centre:.3f}"))
    if token.chosen is not None:
        x = at.left + token.chosen * at.cell
        for inset in (1.0, 2.0):
            side = at.cell - 2 * inset
            shapes.append(Rect(x + inset, y + inset, side, side, "none", stroke="warm"))
    return shapes


def _gaussian(
    at: HeatmapLayout, y: float, window: tuple[int, int], centre: float, deviation: float
) -> Polyline:
    """exp(-(s - p)^2 / (2 deviation^2)) over the window, as high as the row at s = p."""
    left, right = window[0] - 0.5, window[1] + 0.5
    points = []
    for step in range(CURVE_POINTS):
        s = left + (right - left) * step / (CURVE_POINTS - 1)
        height = math.exp(-((s - centre) ** 2) / (2 * deviation**2))
        points.append((at.left + (s + 0.5) * at.cell, y + at.cell - 4 - height * (at.cell - 8)))
    return Polyline(tuple(points), "good", 1.2, 0.9)


def alignment_of(task: Task, text: str, title: str = "", **options: Any) -> Alignment:
    """The alignment of what a task generates for a text.

    Args:
        task: a translator or another task from text to text, as `regard.load` gives it, whose model
            is a recurrent encoder-decoder with attention.
        options: how to decode, by name (`beams=4`).

    Raises:
        ConfigError: the model has no attention to its source.
    """
    loops: list[AttentionFormLoop] = []
    forms = [part for part in task.module.modules() if isinstance(part, AttentionFormStep)]
    hooks = [form.register_forward_hook(lambda *given: loops.append(given[2])) for form in forms]
    try:
        with look(task) as attention:
            task.hypotheses([text], **options)
    finally:
        for hook in hooks:
            hook.remove()
    panels = attention.plot(kind="cross").panels
    if len(panels) != 1:
        raise ConfigError(
            f"An alignment is of a model with one attention to its source, but this one has "
            f"{len(panels)}: `regard.look(task)` shows all of them."
        )
    (panel,) = panels
    weights: Any = panel.head(None)
    tokens = tuple(AlignedToken() for _ in panel.queries)
    if loops:  # the last pass reads the whole target
        weights, tokens = _of_form(loops[-1], len(panel.queries), len(panel.keys))
    alignment = Alignment.of(weights, panel.queries, panel.keys, title or text)
    return replace(alignment, tokens=tokens)


def _of_form(
    looks: AttentionFormLoop, rows: int, columns: int
) -> tuple[list[list[float]], tuple[AlignedToken, ...]]:
    """The weights before a choice, (T, S), and what the rows have beside them."""
    weights = [_only(look)[:columns].tolist() for look in looks.weights[:rows]]
    tokens = []
    for view, selected in list(zip(looks.views, looks.selected, strict=True))[:rows]:
        seen = _only(view.allowed).nonzero()[:, 0].tolist()
        tokens.append(
            AlignedToken(
                window=(seen[0], seen[-1]) if view.centre is not None and seen else None,
                centre=None if view.centre is None else float(view.centre.flatten()[0]),
                deviation=view.deviation,
                chosen=None if selected.index is None else int(selected.index.flatten()[0]),
            )
        )
    return weights, tuple(tokens)


def _only(values: Tensor) -> Tensor:
    """Of the only text: (1, 1, 1, S) -> (S,)."""
    return values.flatten(0, -2)[0].detach().float()
