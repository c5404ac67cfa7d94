"""look."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.console import AsJson, Model, emit, say, show, with_decoding
from regard.errors import ConfigError

if TYPE_CHECKING:
    from regard.visual import Heads, Heatmap


@with_decoding
def look(
    model: Model,
    text: Annotated[str, typer.Argument(help="What the model is to read.")],
    kind: Annotated[str | None, typer.Option(help="encoder, decoder or cross.")] = None,
    layer: Annotated[int | None, typer.Option(help="From 1; the mean of all without it.")] = None,
    head: Annotated[int | None, typer.Option(help="From 1; the mean of all without it.")] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Every head as a page to look through.")
    ] = None,
    png: Annotated[Path | None, typer.Option(metavar="FILE", help="What is shown, drawn.")] = None,
    as_json: AsJson = False,
    *,
    decoding: dict[str, Any],
) -> None:
    """Show which words a model looks at while it answers a text."""
    from regard.runs import load

    for path, suffix in ((html, ".html"), (png, ".png")):
        if path is not None and path.suffix != suffix:
            raise ConfigError(f"`--{suffix[1:]}` must name a file {suffix}, but is {path}.")
    task = load(model)
    heads, answer = _seen(task, text, decoding)
    kinds = [panel.kind for panel in heads.panels]
    shown = Shown.of(heads, kind or ("cross" if "cross" in kinds else kinds[0]), layer, head)
    picture = shown.picture
    if html is not None:
        heads.select(kind, layer).save(html)
        say(f"every head: {html}")
    if png is not None:
        picture.save(png)
        say(f"the picture: {png}")
    if as_json:
        show({"source": text, "answer": answer, **shown.facts()}, "", as_json)
        return
    emit(answer + "\n\n")
    picture.show()


def _seen(task: Any, text: str, decoding: dict[str, Any]) -> tuple[Heads, str]:
    """Every head while the task answers the text, and the answer."""
    import regard

    try:
        with regard.look(task) as seen:
            answer = task.predict([text], **decoding)[0]
    except ValueError as error:
        if isinstance(error, regard.RegardError):
            raise
        raise ConfigError(str(error)) from None
    return seen.heads(), answer


@dataclass(frozen=True)
class Shown:
    """One matrix of weights, and of which heads it is the mean."""

    picture: Heatmap
    kind: str
    layers: tuple[int, ...]
    head: int | None

    @classmethod
    def of(cls, heads: Heads, kind: str, layer: int | None, head: int | None) -> Shown:
        """One head, or the mean of those of a layer, or of all layers."""
        from regard.visual.heads import KINDS, mean

        chosen = heads.select(kind, layer)
        panels = chosen.panels
        if head is not None:
            maps = [chosen.head(head, layer=panel.layer) for panel in panels]
        else:
            maps = chosen.heatmaps()
        layers = tuple(panel.layer for panel in panels)
        where = f"layer {layers[0]}" if len(layers) == 1 else f"mean of {len(layers)} layers"
        which = f"head {head}" if head is not None else f"mean of {len(panels[0].heads)} heads"
        title = f"{KINDS.get(kind, kind)}, {where}"
        title += f", {which}" if len(panels[0].heads) > 1 else ""
        first = type(maps[0]).of(
            mean(one.weights for one in maps), maps[0].rows, maps[0].columns, title
        )
        return cls(first, kind, layers, head)

    def facts(self) -> dict[str, Any]:
        """All of it as plain values."""
        picture = self.picture
        return {
            "kind": self.kind,
            "layers": self.layers,
            "head": self.head,
            "rows": picture.rows,
            "columns": picture.columns,
            "weights": picture.weights,
        }
