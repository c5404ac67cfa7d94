"""The attention of several models in the same text, layer by layer, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Self

from rich.text import Text

from regard.errors import ConfigError
from regard.visual.attention_record import AttentionRecord
from regard.visual.drawing import Drawing, stack, tile, visible
from regard.visual.head_grid import HeadGrid, Panel, check_one, head_name
from regard.visual.heatmap import Heatmap
from regard.visual.page import page, sections
from regard.visual.picture import Picture


@dataclass(frozen=True, repr=False)
class AttentionComparison(Picture):
    """A row of pictures for each layer, a column for each model; make it with `of`.

    `rows` (layers, models). A drawing has the mean of the heads, or one `head`, with one colour
    scale for each layer; the page has all heads. Subwords are merged to words unless `tokens`.
    """

    rows: tuple[tuple[Panel, ...], ...]
    head: int | None = None
    title: str = ""
    tokens: bool = False

    @classmethod
    def of(
        cls,
        models: Mapping[str, AttentionRecord | HeadGrid],
        layers: Sequence[int],
        *,
        kind: str | None = None,
        example: int | None = None,
        head: int | None = None,
        title: str = "",
        tokens: bool = False,
    ) -> Self:
        """The attention of several models in one text, each with its own tokens as labels.

        AttentionComparison.of({"base": record, "tuned": other}, layers=[1, 6]).save("both.html")

        Args:
            models: name -> what `regard.look` recorded, or its `plot()`.
            layers: which, from 1; every model must have them.
            kind: which attention, where a model has several.
            example: which text, from 0, where several were recorded.
            head: the head that is drawn, from 1; without it the mean of a layer's heads.
            title: of the picture.
            tokens: whether subwords are shown, not merged, at first.

        Raises:
            ConfigError: there are no models or no layers, a layer is absent, or `kind` or `example`
                must be given.
        """
        if not models or not layers:
            raise ConfigError("`models` and `layers` must name at least one each; one is empty.")
        rows = []
        for layer in layers:
            row = []
            for name, record in models.items():
                grid = record if isinstance(record, HeadGrid) else record.plot()
                panels = grid.select(kind, layer, example).panels
                check_one({(panel.kind, panel.example) for panel in panels}, f"{name}: ")
                row.append(replace(panels[0], name=name))
            rows.append(tuple(row))
        return cls(tuple(rows), head, title, tokens)

    def heatmaps(self) -> list[list[Heatmap]]:
        """A heatmap for each layer and model."""
        rows = [[self._heatmap(panel) for panel in row] for row in self.rows]
        return [[replace(one, peak=max(o.largest for o in row)) for one in row] for row in rows]

    def _heatmap(self, panel: Panel) -> Heatmap:
        panel = panel if self.tokens else panel.by_words()
        several = len(panel.heads) > 1 or self.head is not None
        title = f"{panel.title}, {head_name(self.head)}" if several else panel.title
        return Heatmap(panel.head(self.head), panel.queries, panel.keys, title, side=420)

    def drawing(self) -> Drawing:
        rows = [[one.drawing() for one in row] for row in self.heatmaps()]
        # Columns are aligned: every picture of a model is as wide as its widest.
        widths = [max(one.width for one in column) for column in zip(*rows, strict=True)]
        aligned = [
            [replace(one, width=wide) for one, wide in zip(row, widths, strict=True)]
            for row in rows
        ]
        return stack((tile(row, len(row)) for row in aligned), self.title or "attention")

    def terminal(self, width: int, color: bool) -> Text:
        each = (one for row in self.heatmaps() for one in row)
        return Text("\n").join(one.terminal(width, color) for one in each)

    def body(self) -> str:
        """Each layer of each model as the interactive picture of its heads."""
        return self._title_html() + "".join(layer for _, layer in self._layers())

    def html(self) -> str:
        heading = f"<h1>{escape(visible(self.title))}</h1>" if self.title else ""
        return page(self.title, heading + sections(self._layers()))

    def _layers(self) -> list[tuple[str, str]]:
        """(heading, HTML) of each layer."""
        cells = (("".join(map(self._cell, row)), row[0].layer) for row in self.rows)
        return [(f"Layer {n}", f'<div class="rg-beside">{row}</div>') for row, n in cells]

    def _cell(self, panel: Panel) -> str:
        heads = HeadGrid((panel,), panel.title, tokens=self.tokens)
        return f"<div><h3>{escape(visible(panel.title))}</h3>{heads.body()}</div>"
