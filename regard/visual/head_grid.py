"""Every head of every layer as an interactive page, and what one token attends to.

Weights are embedded as 16-bit integers (weight * 65535 / scale), so that those on the page differ
from the float by at most 0.000008 (times the scale, which is 1 unless weights exceed it); six
layers of eight heads of three attentions over sixty tokens take 1.4 MB.
"""

from __future__ import annotations

import base64
import sys
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from typing import Any, Self

import numpy as np
import torch
from rich.text import Text
from torch import Tensor

from regard.errors import ConfigError, check_choice
from regard.visual import recorded_attention
from regard.visual.charts import Heatmap
from regard.visual.decoding import Distribution
from regard.visual.drawing import Drawing, clip, stack, tile, visible
from regard.visual.picture import (
    Illustration,
    Matrix,
    Picture,
    as_labels,
    as_matrix,
    asset,
    inert_json,
    page,
)


def index_of(token: int | str, tokens: Sequence[str]) -> int:
    """The index of `token` among `tokens`, whose space markers are ignored.

    Case is ignored where no token is spelled in the same way.

    Raises:
        ConfigError: none or several are spelled so, or the index is out of range.
    """
    if isinstance(token, int) and -len(tokens) <= token < len(tokens):
        return token % len(tokens)
    bare = [each.strip("▁Ġ ").removesuffix("</w>") for each in tokens]
    indices = [index for index, each in enumerate(bare) if each == token] or [
        index for index, each in enumerate(bare) if each.casefold() == str(token).casefold()
    ]
    if len(indices) != 1:
        where = f"at {', '.join(map(str, indices))}" if indices else "nowhere"
        text = " ".join(tokens)
        raise ConfigError(f"`token` {token!r} occurs {where} in {text!r}. Give the index of one.")
    return indices[0]


KINDS = {
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
    "cross": "cross-attention",
    "query": "query stream",
}
STEPS = 65535


@dataclass(frozen=True)
class Panel:
    """The heads of one layer for one text; make it with `of`.

    `layer` counts from 1; `example` is the number of the text, from 0.
    """

    kind: str
    layer: int
    heads: tuple[Matrix, ...]  # (H, T, S)
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    example: int = 0
    numbers: tuple[int, ...] = ()  # of the heads, where some were pruned; else 1, 2, 3, ...

    @classmethod
    def of(
        cls,
        kind: str,
        layer: int,
        weights: Any,
        queries: recorded_attention.Tokens = None,
        keys: recorded_attention.Tokens = None,
        example: int = 0,
        numbers: Sequence[int] = (),
    ) -> Self:
        """One layer of attention for one text.

        kind: "encoder", "decoder" or "cross".  layer: from 1.  weights: (H, T, S).  queries, keys:
        T and S labels, by default numbers from 0.  numbers: of the heads, where some were pruned.

        Raises:
            ConfigError: the labels are more or fewer.
        """
        heads = tuple(as_matrix(head) for head in weights)
        rows = as_labels(queries, len(heads[0]), "queries")
        columns = as_labels(keys, len(heads[0][0]), "keys")
        return cls(kind, layer, heads, rows, columns, example, numbers=tuple(numbers))

    @property
    def attention(self) -> str:
        """Which attention this is."""
        return KINDS.get(self.kind, self.kind)

    @property
    def title(self) -> str:
        """The attention and the layer."""
        return f"{self.attention}, layer {self.layer}"

    @property
    def numbered(self) -> dict[int, Matrix]:
        """The heads by their numbers."""
        return dict(zip(self.numbers or range(1, 1 + len(self.heads)), self.heads, strict=True))

    def head(self, number: int | None) -> Matrix:
        """The weights of one head (from 1); None: the mean of all heads.

        Raises:
            ConfigError: there is no such head.
        """
        if number is None:
            return mean(self.heads)
        if number not in self.numbered:
            numbers = ", ".join(map(str, self.numbers)) or f"from 1 to {len(self.heads)}"
            raise ConfigError(f"`head` must be {numbers}, but is {number}.")
        return self.numbered[number]

    def by_words(self) -> Panel:
        """Attention between words: see `merged`."""
        rows, columns = (
            recorded_attention.words_of(self.queries),
            recorded_attention.words_of(self.keys),
        )
        return replace(
            self,
            heads=tuple(
                map(as_matrix, recorded_attention.merged(torch.tensor(self.heads), rows, columns))
            ),
            queries=tuple(word for word, _ in rows),
            keys=tuple(word for word, _ in columns),
        )


@dataclass(frozen=True, repr=False)
class HeadGrid(Picture):
    """Attention of one or several texts; `select` chooses panels, `mean` is one picture of them.

    Subwords are shown merged to words; a page can show them one by one, other pictures do so after
    `by_tokens`.
    """

    panels: tuple[Panel, ...]
    title: str = ""
    tokens: bool = False  # whether subwords are shown, not merged

    def __post_init__(self) -> None:
        if not self.panels:
            raise ConfigError("Nothing is recorded: run the model inside `regard.look(model)`.")

    @classmethod
    def of(cls, passes: Sequence[recorded_attention.ForwardPass]) -> Self:
        """Recorded forward passes; every row of every pass is an example, without its padding.

        Layers are numbered from 1 in the order in which they ran.
        """
        panels: list[Panel] = []
        for attentions in passes:
            first = panels[-1].example + 1 if panels else 0
            layers: Counter[str] = Counter()
            recorded = [(each, each.weights) for each in attentions.attentions.values()]
            used, earlier = _used_keys(recorded), _earlier_positions(recorded)
            for attention, weights in recorded:
                kind = attention.kind
                layers[kind] += 1
                for row, heads in enumerate(weights if weights.size(1) else ()):
                    queries, keys = attentions.labels(kind, row)
                    count = used[kind][row]
                    before = earlier[kind]
                    height = _length(queries, heads.size(1), count if kind == "encoder" else 0)
                    cut = heads[:, :height, : _length(keys, heads.size(2), count, before)]
                    labels = _first(queries, height), _first(keys, cut.size(2), before)
                    which = kind, layers[kind]
                    panels.append(Panel.of(*which, cut, *labels, first + row, attention.heads))
        return cls(tuple(sorted(panels, key=lambda panel: panel.example)))

    def select(
        self, kind: str | None = None, layer: int | None = None, example: int | None = None
    ) -> HeadGrid:
        """Only these panels; None selects all.

        Raises:
            ConfigError: there are none; the message names those that there are.
        """
        panels = self.panels
        for field, value in {"kind": kind, "layer": layer, "example": example}.items():
            if value is None:
                continue
            values = sorted({getattr(panel, field) for panel in panels})
            check_choice(field, value, values)
            panels = tuple(panel for panel in panels if getattr(panel, field) == value)
        return replace(self, panels=panels)

    def by_words(self) -> HeadGrid:
        """Attention between words instead of subwords: see `Panel.by_words`."""
        return replace(self, panels=tuple(panel.by_words() for panel in self.panels))

    def by_tokens(self) -> HeadGrid:
        """The same, with subwords shown, not merged."""
        return replace(self, tokens=True)

    @cached_property
    def shown(self) -> tuple[Panel, ...]:
        """The panels as they are shown: between words, or between tokens."""
        return self.panels if self.tokens else self.by_words().panels

    def for_token(self, token: str | int, head: int | None = None, **which: Any) -> Illustration:
        """What one token attends to: its weights for every key token, as bars and as numbers.

        In one layer: each of its heads and their mean. Without a layer: each layer (the mean of its
        heads, or one `head`) and the mean of the layers. The subwords of a word count as one token,
        except after `by_tokens`.

        Args:
            token: "it", or its index (from 0).
            head: from 1.
            which: kind, layer and example, as for `select`.

        Raises:
            ConfigError: the token does not occur once, or several attentions or texts are selected.
        """
        panels = self.select(**which).shown
        first = panels[0]
        check_one({(panel.kind, panel.example) for panel in panels})
        if len(panels) == 1 and head is None:
            matrices = {f"head {number}": matrix for number, matrix in first.numbered.items()}
            title = first.title
        else:
            matrices = {f"layer {panel.layer}": panel.head(head) for panel in panels}
            title = first.title if len(panels) == 1 else first.attention
            title += ", mean of the heads" if head is None else f", head {head}"
        query = index_of(token, first.queries)
        rows = {name: matrix[query] for name, matrix in matrices.items()}
        unit, several = next(iter(rows)).split()[0], len(rows) > 1  # "head" or "layer"
        average = tuple(np.mean([*rows.values()], axis=0).tolist())
        rows = rows | {"mean": average} if several else {title: average}
        order = sorted(range(len(first.keys)), key=lambda key: -average[key])
        keys, shares = tuple(first.keys[s] for s in order), tuple(average[s] for s in order)
        word = first.queries[query]
        name = f"{title}, mean of the {unit}s" if several else title
        parts: list[Picture] = [Distribution(keys, shares, title=f"{name}: “{word}”")]
        if several:
            name = f"attention weights of “{word}” in each {unit}"
            parts.append(Heatmap(tuple(rows.values()), tuple(rows), first.keys, name))
        numbers = {
            "kind": first.kind,
            "layers": [panel.layer for panel in panels],
            "head": head,
            "token": word,
            "rows": list(rows),
            "columns": first.keys,
            "weights": list(rows.values()),
        }
        return Illustration(tuple(parts), title, numbers)

    @property
    def main_kind(self) -> str:
        """The attention that is shown where no kind is chosen: cross-attention where there is."""
        kinds = [panel.kind for panel in self.panels]
        return "cross" if "cross" in kinds else kinds[0]

    def mean(self, head: int | None = None) -> Heatmap:
        """The mean over all layers of their heads, or of one head (from 1)."""
        first, count = self.shown[0], len(self.shown)
        matrices = [
            matrix
            for panel in self.shown
            for matrix in (panel.heads if head is None else (panel.head(head),))
        ]
        title = first.title if count == 1 else f"{first.attention}, mean of {count} layers"
        if len(first.heads) > 1:
            title += f", mean of {len(first.heads)} heads" if head is None else f", head {head}"
        return Heatmap(mean(matrices), first.queries, first.keys, title)

    def heatmaps(self) -> list[Heatmap]:
        """One heatmap per head, in order."""
        return [
            Heatmap(
                matrix,
                panel.queries,
                panel.keys,
                panel.title + f", head {n}" * (len(panel.heads) > 1),
            )
            for panel in self.shown
            for n, matrix in panel.numbered.items()
        ]

    def drawing(self) -> Drawing:
        """All heads with their tokens, one row of pictures per layer."""
        rows = []
        for panel in self.panels:
            row = replace(self, panels=(panel,))
            maps = [replace(picture, side=260) for picture in row.heatmaps()]
            rows.append(tile((picture.drawing() for picture in maps), min(len(maps), 4)))
        return stack(rows, self.title or "attention")

    def terminal(self, width: int, color: bool) -> Text:
        return Text("\n").join(picture.terminal(width, color) for picture in self.heatmaps())

    def body(self) -> str:
        """The interactive part: data, style and script together, without ids."""
        name = escape(visible(self.title or "attention"))
        return (
            '<div class="rg rg-heads" data-rg="heads-1">'
            f"<style>{asset('page.css')}{asset('heads.css')}</style>"
            '<p class="rg-fallback rg-muted">This picture is interactive and needs JavaScript '
            "(in a notebook: trust it, or run the cell again).</p>"
            f'<svg class="rg-stage" role="img" aria-label="{name}" tabindex="0" hidden>'
            f"<title>{name}</title></svg>"
            f'<script type="application/json">{inert_json(self._data())}</script>'
            f"<script>{asset('heads.js')}</script></div>"
        )

    def html(self) -> str:
        heading = f"<h1>{escape(visible(self.title))}</h1>" if self.title else ""
        return page(self.title or "Attention", heading + self.body())

    def _data(self) -> dict[str, Any]:
        labels: dict[tuple[str, ...], int] = {}
        examples = sorted({panel.example for panel in self.panels})
        order = {number: index for index, number in enumerate(examples)}
        packed = [_packed(panel, labels, order[panel.example]) for panel in self.panels]
        return {
            "panels": packed,
            "labels": [[visible(token) for token in tokens] for tokens in labels],
            "words": [_sizes(tokens) for tokens in labels],
            "examples": [f"{number + 1}. {self.text_of(number)}" for number in examples],
            "view": "matrix",
            "unit": "tokens" if self.tokens else "words",
            "head": 0,
            "note": "Weights are shown to four decimals, stored to 0.00001. "
            "An empty row attends to no key.",
        }

    def text_of(self, example: int) -> str:
        """The words of an example, in one line."""
        panels = [panel for panel in self.panels if panel.example == example]
        sides = {panel.kind: panel for panel in panels}
        source = sides["cross"].keys if "cross" in sides else panels[0].keys
        return clip(" ".join(word for word, _ in recorded_attention.words_of(source)), 70)


def check_one(selected: set[tuple[Any, ...]], where: str = "") -> None:
    """Check that one text and one kind of attention are selected.

    selected: (kind, example) of the panels.  where: begins the message.

    Raises:
        ConfigError: several are selected, of which one must be chosen.
    """
    if len(selected) > 1:
        choices = sorted(selected)[:8]
        raise ConfigError(f"{where}one must be chosen by kind= and example= of {choices}.")


def _used_keys(
    recorded: Sequence[tuple[recorded_attention.RecordedAttention, Tensor]],
) -> dict[str, list[int]]:
    """For each kind how many keys of each row have weights: padding has none."""
    positions: dict[str, list[int]] = {}
    for attention, weights in recorded:  # (B, H, T, S)
        numbers = torch.arange(1, weights.size(3) + 1)
        used = (weights.ne(0).any(1).any(1) * numbers).amax(1).tolist()  # (B, S) -> (B,)
        positions[attention.kind] = list(map(max, used, positions.get(attention.kind, used)))
    return positions


def _earlier_positions(
    recorded: Sequence[tuple[recorded_attention.RecordedAttention, Tensor]],
) -> dict[str, int]:
    """For each kind how many keys stand before the first query: those of a memory."""
    order = {"cross": 0}
    for attention, weights in recorded:  # (B, H, T, S)
        order.setdefault(attention.kind, max(0, weights.size(3) - weights.size(2)))
    # A query stream may have fewer queries than tokens; its keys are those of the content stream.
    return {**order, "query": order.get("encoder", 0)}


def _first(
    tokens: recorded_attention.Tokens, count: int, earlier: int = 0
) -> recorded_attention.Tokens:
    """The labels of the first positions; `earlier` ones before the tokens are [-2], [-1]."""
    if not earlier:
        return None if tokens is None else tokens[:count]
    names = map(str, range(count - earlier)) if tokens is None else tokens
    return [*(f"[{position}]" for position in range(-earlier, 0)), *names][:count]


def _length(tokens: recorded_attention.Tokens, size: int, used: int, earlier: int = 0) -> int:
    """How many positions are tokens: as many as are known, or else as many as are used."""
    return min(size, (used or size) if tokens is None else earlier + len(tokens))


def mean(heads: Iterable[Matrix]) -> Matrix:
    """(H, T, S) -> (T, S)"""
    return as_matrix(np.mean(list(heads), axis=0))


def _sizes(tokens: tuple[str, ...]) -> list[tuple[str, int]] | None:
    """The words, each with its number of tokens; None: they are the tokens."""
    words = [(visible(word), len(run)) for word, run in recorded_attention.words_of(tokens)]
    return words if [word for word, _ in words] != [visible(token) for token in tokens] else None


def _packed(panel: Panel, labels: dict[tuple[str, ...], int], example: int) -> dict[str, Any]:
    flat = [max(0.0, value) for head in panel.heads for row in head for value in row]
    scale = max(1.0, max(flat))
    numbers = array("H", (round(value * STEPS / scale) for value in flat))
    if sys.byteorder == "big":
        numbers.byteswap()
    return {
        "kind": panel.kind,
        "layer": panel.layer,
        "heads": len(panel.heads),
        "numbers": list(panel.numbered),
        "example": example,
        "queries": labels.setdefault(panel.queries, len(labels)),
        "keys": labels.setdefault(panel.keys, len(labels)),
        "scale": scale,
        "data": base64.b64encode(numbers.tobytes()).decode(),
    }
