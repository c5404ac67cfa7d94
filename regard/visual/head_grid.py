"""Every head of every layer as one page: hover shows the weight, kind, layer and head are picked.

Weights are embedded as 16-bit integers (weight * 65535 / scale), so what the page shows differs
from the float by at most 0.000008 (times the scale, which is 1 unless weights exceed it); six
layers of eight heads of three attentions over sixty words take 1.4 MB.
"""

from __future__ import annotations

import base64
import sys
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from rich.text import Text

from regard.errors import ConfigError
from regard.visual.attention_lines import AttentionLines, position
from regard.visual.drawing import Drawing, clip, stack, tile, visible
from regard.visual.heatmap import Heatmap
from regard.visual.merge_subwords import merged, words_of
from regard.visual.page import asset, inert_json
from regard.visual.picture import Matrix, Picture, PictureColumn, as_labels, as_matrix

KINDS = {
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
    "cross": "cross-attention",
}
STEPS = 65535


@dataclass(frozen=True)
class Panel:
    """The heads of one layer for one sentence. Make it with `of`, which checks it.

    `layer` counts from 1; `example` is the number of the sentence in the page.
    """

    kind: str
    layer: int
    heads: tuple[Matrix, ...]  # (H, T, S)
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    example: int = 0
    name: str = ""
    numbers: tuple[int, ...] = ()  # of the heads, where some were pruned; else 1, 2, 3, ...

    @classmethod
    def of(
        cls,
        kind: str,
        layer: int,
        weights: Any,
        queries: Sequence[str] | None = None,
        keys: Sequence[str] | None = None,
        example: int = 0,
        numbers: Sequence[int] = (),
    ) -> Self:
        """One layer's `weights` (H, T, S) of attention `kind` for one sentence."""
        heads = tuple(as_matrix(head) for head in weights)
        if not heads or not heads[0] or not heads[0][0]:
            raise ConfigError(
                "`weights` must be (heads, queries, keys) with at least one of each, but is empty."
            )
        asking = as_labels(queries, len(heads[0]), "queries")
        answering = as_labels(keys, len(heads[0][0]), "keys")
        return cls(kind, layer, heads, asking, answering, example, numbers=tuple(numbers))

    @property
    def attention(self) -> str:
        """The name of the model, or else which attention this is."""
        return self.name or KINDS.get(self.kind, self.kind)

    @property
    def title(self) -> str:
        return f"{self.attention}, layer {self.layer}"

    @property
    def numbered(self) -> dict[int, Matrix]:
        """The heads by their numbers."""
        return dict(zip(self.numbers or range(1, 1 + len(self.heads)), self.heads, strict=True))

    def by_words(self) -> Panel:
        """Words in place of pieces: a word looks as its pieces do on average, and is looked at as
        much as they are together (Clark et al. 2019, section 4.1)."""
        rows, columns = words_of(self.queries), words_of(self.keys)
        return replace(
            self,
            heads=tuple(merged(head, rows, columns) for head in self.heads),
            queries=tuple(word for word, _ in rows),
            keys=tuple(word for word, _ in columns),
        )


@dataclass(frozen=True)
class HeadGrid(Picture):
    """Attention of one or several sentences; `select` narrows, `head` and `lines` pick one."""

    panels: tuple[Panel, ...]
    title: str = ""
    view: str = "matrix"  # what the page shows first: "matrix" or "lines"

    def __post_init__(self) -> None:
        if not self.panels:
            raise ConfigError(
                "`panels` must hold at least one layer of attention, but is empty. "
                "Run the model inside `with regard.look(model) as seen:`."
            )

    @classmethod
    def of(cls, views: Sequence[Any], title: str = "", view: str = "matrix") -> Self:
        """What `regard.look` saw, as one page: every row of every view is an example.

        A view has `sites` (name -> kind and weights (B, H, T, S)) and the words of each row in
        `source` and `target`, where they are known; padding behind them is cut off. Layers are
        numbered from 1 in the order in which they ran.
        """
        panels: list[Panel] = []
        for one in views:
            first = panels[-1].example + 1 if panels else 0
            layers: Counter[str] = Counter()
            for site in one.sites.values():
                layers[site.kind] += 1
                for row, weights in enumerate(site.weights if site.weights.size(1) else ()):
                    asking, answering = _words(site.kind, one, row)
                    most = _looked_at(one, site.kind, row)
                    height = _count(asking, weights.size(1), most if site.kind == "encoder" else 0)
                    cut = weights[:, :height, : _count(answering, weights.size(2), most)]
                    words = _fitting(asking, cut.shape[1]), _fitting(answering, cut.shape[2])
                    which = (site.kind, layers[site.kind])
                    panels.append(Panel.of(*which, cut, *words, first + row, site.heads))
        return cls(tuple(sorted(panels, key=lambda panel: panel.example)), title, view)

    def select(
        self, kind: str | None = None, layer: int | None = None, example: int | None = None
    ) -> HeadGrid:
        """Only the layers asked for; an absent one is refused with what there is."""
        wanted = {"kind": kind, "layer": layer, "example": example}
        panels = self.panels
        for field, value in wanted.items():
            if value is None:
                continue
            there = sorted({getattr(panel, field) for panel in panels})
            if value not in there:
                raise ConfigError(f"`{field}` must be one of {there}, but is {value!r}.")
            panels = tuple(panel for panel in panels if getattr(panel, field) == value)
        return replace(self, panels=panels)

    def head(self, number: int, **which: Any) -> Heatmap:
        """One head (from 1) as a heatmap, of the layer that `which` selects."""
        one = self._one(**which)
        title = f"{one.title}, head {number}"
        return Heatmap(_matrix(one, number), one.queries, one.keys, title)

    def lines(
        self, focus: int | str | None = None, head: int | None = None, **which: Any
    ) -> AttentionLines:
        """Which words each word looks at, or one word (`focus`: "it"), in one head or the mean."""
        one = self._one(**which)
        matrix = mean(one.heads) if head is None else _matrix(one, head)
        title = f"{one.title}, " + ("mean of the heads" if head is None else f"head {head}")
        return AttentionLines(matrix, one.queries, one.keys, title, position(focus, one.queries))

    def by_words(self) -> HeadGrid:
        """The same with words in place of their pieces: see `Panel.by_words`."""
        return replace(self, panels=tuple(panel.by_words() for panel in self.panels))

    def from_word(self, word: str | int, head: int | None = None, **which: Any) -> Picture:
        """What one word looks at, its lines and their numbers: "it", or its place (from 0).

        In one layer, each of its heads and their mean; without a layer, each layer (the mean of
        its heads, or one `head`) and the mean of the layers. Words of several pieces count as one.
        """
        panels = self.by_words().select(**which).panels
        if len({(panel.kind, panel.example) for panel in panels}) > 1:
            there = sorted({(panel.kind, panel.example) for panel in panels})
            raise ConfigError(
                f"One text and one kind of attention must be chosen of (kind, example) = "
                f"{there[:8]}. Give kind= and example=."
            )
        one, place = panels[0], position(word, panels[0].queries)
        if len(panels) == 1 and head is None:
            each = {f"head {number}": matrix for number, matrix in one.numbered.items()}
            title = one.title
        else:
            each = {
                f"layer {panel.layer}": mean(panel.heads) if head is None else _matrix(panel, head)
                for panel in panels
            }
            title = f"{one.title if len(panels) == 1 else one.attention}, "
            title += "mean of the heads" if head is None else f"head {head}"
        return _from_word(one, place or 0, each, title)

    def _one(self, **which: Any) -> Panel:
        panels = self.select(**which).panels
        if len(panels) > 1:
            there = sorted({(panel.kind, panel.layer, panel.example) for panel in panels})
            raise ConfigError(
                "One layer must be chosen, but there are (kind, layer, example) = "
                f"{there[:8]}. Give kind=, layer= and example=."
            )
        return panels[0]

    @property
    def main_kind(self) -> str:
        """The attention that is shown where no kind is chosen: cross-attention where there is."""
        kinds = [panel.kind for panel in self.panels]
        return "cross" if "cross" in kinds else kinds[0]

    def mean(self, head: int | None = None) -> Heatmap:
        """The mean over all layers of their heads, or of one head (from 1)."""
        first, *others = self.panels
        matrices = [
            matrix
            for panel in self.panels
            for matrix in (panel.heads if head is None else (_matrix(panel, head),))
        ]
        title = f"{first.attention}, layer {first.layer}"
        if others:
            title = f"{first.attention}, mean of {len(self.panels)} layers"
        if len(first.heads) > 1:
            title += f", mean of {len(first.heads)} heads" if head is None else f", head {head}"
        return Heatmap(mean(matrices), first.queries, first.keys, title)

    def heatmaps(self) -> list[Heatmap]:
        """One heatmap per head, in order."""
        return [
            Heatmap(matrix, one.queries, one.keys, _head_title(one, number))
            for one in self.panels
            for number, matrix in one.numbered.items()
        ]

    def drawing(self) -> Drawing:
        """All heads with their words, one row of pictures per layer."""
        rows = []
        for one in self.panels:
            maps = [replace(picture, side=260) for picture in HeadGrid((one,)).heatmaps()]
            columns = min(len(maps), 4)
            rows.append(tile((picture.drawing() for picture in maps), columns))
        return stack(rows, self.title or "attention")

    def terminal(self, width: int, color: bool) -> Text:
        return Text("\n").join(picture.terminal(width, color) for picture in self.heatmaps())

    def body(self) -> str:
        """The interactive part: data, style and script together, nothing shared by id."""
        return (
            '<div class="rg rg-heads" data-rg="heads-1">'
            f"<style>{asset('page.css')}{asset('heads.css')}</style>"
            '<p class="rg-fallback rg-muted">This picture is interactive and needs JavaScript '
            "(in a notebook: trust it, or run the cell again).</p>"
            '<svg class="rg-stage" hidden></svg>'
            f'<script type="application/json">{inert_json(self._data())}</script>'
            f"<script>{asset('heads.js')}</script></div>"
        )

    def html(self) -> str:
        from regard.visual.page import page

        return page(self.title or "Attention", self._heading() + self.body())

    def _heading(self) -> str:
        from html import escape

        return f"<h1>{escape(visible(self.title))}</h1>" if self.title else ""

    def _data(self) -> dict[str, Any]:
        labels: dict[tuple[str, ...], int] = {}
        examples = sorted({panel.example for panel in self.panels})
        order = {number: index for index, number in enumerate(examples)}
        packed = [_packed(panel, labels, order[panel.example]) for panel in self.panels]
        return {
            "panels": packed,
            "labels": [[visible(word) for word in words] for words in labels],
            "examples": [self._sentence(number) for number in examples],
            "view": self.view,
            "head": 0,
            "note": "Weights are shown to four decimals, stored to 0.00001. "
            "A row without colour has nothing to attend to.",
        }

    def _sentence(self, example: int) -> str:
        """The words of an example, as the picker shows them."""
        panels = [panel for panel in self.panels if panel.example == example]
        sides = {panel.kind: panel for panel in panels}
        source = sides["cross"].keys if "cross" in sides else panels[0].keys
        return f"{example + 1}. " + clip(" ".join(source), 70)


def _from_word(panel: Panel, place: int, each: dict[str, Matrix], title: str) -> Picture:
    """Lines of the mean, and a row for each of the matrices."""
    together = mean(each.values())
    several = len(each) > 1
    about = next(iter(each)).split()[0]  # "head" or "layer"
    lines = AttentionLines(
        together,
        panel.queries,
        panel.keys,
        f"{title}, mean of the {about}s" if several else title,
        place,
    )
    if not several:
        return lines
    rows = (*(matrix[place] for matrix in each.values()), together[place])
    asked = f"what “{panel.queries[place]}” looks at in each {about}"
    return PictureColumn((lines, Heatmap(rows, (*each, "mean"), panel.keys, asked)), title)


def _words(kind: str, view: Any, row: int) -> tuple[Sequence[str] | None, Sequence[str] | None]:
    """The words that ask and the words that answer in attention of this kind."""
    source, target = (None if side is None else side[row] for side in (view.source, view.target))
    if kind == "encoder" or (kind == "decoder" and target is None):
        return source, source
    if source is None or target is None:
        return target, source if kind == "cross" else target
    # The decoder reads bos … and says … eos: its memory is asked about the word to be said next.
    return (target[1:], source) if kind == "cross" else (target[:-1], target[:-1])


def _looked_at(view: Any, kind: str, row: int) -> int:
    """How many keys of a row are there to be looked at: nobody looks at the padding behind them."""
    found = 0
    for site in view.sites.values():
        if site.kind == kind and site.weights.size(1):
            (used,) = site.weights[row].ne(0).any(0).any(0).nonzero(as_tuple=True)
            found = max(found, int(used[-1]) + 1 if len(used) else 0)
    return found


def _count(words: Sequence[str] | None, size: int, looked_at: int) -> int:
    """How many of the places are real: as many as words, or where those are not known, as many as
    anybody looks at."""
    return min(size, looked_at or size) if words is None else min(size, len(words))


def _fitting(words: Sequence[str] | None, count: int) -> Sequence[str] | None:
    return words if words is None else words[:count]


def _matrix(panel: Panel, number: int) -> Matrix:
    if number not in panel.numbered:
        there = ", ".join(map(str, panel.numbers)) or f"from 1 to {len(panel.heads)}"
        raise ConfigError(f"`head` must be {there}, but is {number}.")
    return panel.numbered[number]


def _head_title(panel: Panel, number: int) -> str:
    return f"{panel.title}, head {number}" if len(panel.heads) > 1 else panel.title


def mean(heads: Iterable[Matrix]) -> Matrix:
    """(H, T, S) -> (T, S)"""
    stacked = list(heads)
    return tuple(
        tuple(sum(column) / len(stacked) for column in zip(*rows, strict=True))
        for rows in zip(*stacked, strict=True)
    )


def _packed(panel: Panel, labels: dict[tuple[str, ...], int], example: int) -> dict[str, Any]:
    flat = [max(0.0, value) for head in panel.heads for row in head for value in row]
    scale = max(1.0, max(flat))
    numbers = array("H", (round(value * STEPS / scale) for value in flat))
    if sys.byteorder == "big":
        numbers.byteswap()
    return {
        "kind": panel.kind,
        "layer": panel.layer,
        "name": panel.name,
        "heads": len(panel.heads),
        "numbers": list(panel.numbered),
        "example": example,
        "queries": labels.setdefault(panel.queries, len(labels)),
        "keys": labels.setdefault(panel.keys, len(labels)),
        "scale": scale,
        "data": base64.b64encode(numbers.tobytes()).decode(),
    }
