"""look."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.console import AsJson, Model, emit, loaded, say, show, with_decoding
from regard.cli.lines import one_argument
from regard.cli.using import refuse_decoding, texts_of
from regard.errors import ConfigError

if TYPE_CHECKING:
    from regard.visual import HeadGrid, Heatmap
    from regard.visual.attention_record import AttentionRecord


@with_decoding
def look(
    model: Model,
    text: Annotated[
        str, typer.Argument(help="What the model is to read; a tab between two texts.")
    ],
    kind: Annotated[str | None, typer.Option(help="encoder, decoder or cross.")] = None,
    layer: Annotated[int | None, typer.Option(help="From 1; the mean of all without it.")] = None,
    head: Annotated[int | None, typer.Option(help="From 1; the mean of all without it.")] = None,
    word: Annotated[str | None, typer.Option(help="What this word looks at, head by head.")] = None,
    beside: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Another model on the same text, side by side."),
    ] = None,
    silence: Annotated[
        list[str] | None,
        typer.Option(metavar="LAYER:HEADS", help="Heads that are silenced: 3:1,6 of layer 3."),
    ] = None,
    inputs: Annotated[
        bool, typer.Option("--inputs", help="The row that the model reads: ids, segments, mask.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Every head as a page to look through.")
    ] = None,
    png: Annotated[Path | None, typer.Option(metavar="FILE", help="What is shown, drawn.")] = None,
    as_json: AsJson = False,
    *,
    decoding: dict[str, Any],
) -> None:
    """Show which words a model looks at while it reads, or answers, a text."""
    for path, suffix in ((html, ".html"), (png, ".png")):
        if path is not None and path.suffix != suffix:
            raise ConfigError(f"`--{suffix[1:]}` must name a file {suffix}, but is {path}.")
    text, task = one_argument(text), loaded(model)
    if inputs:
        row = _row(task, text)
        _give(row, row, html, png, {"source": text, **row.rows} if as_json else None)
        return
    with _silenced(task, silence or ()):
        seen, answer = _seen(task, text, decoding)
    facts: dict[str, Any] = {"source": text, "answer": answer}
    if beside is not None:
        other, _ = _seen(loaded(beside), text, {})
        both = dict(zip(_names(model, beside), (seen, other), strict=True))
        page = picture = _beside(both, layer, kind, head)
    elif word is not None:
        page = picture = seen.from_word(word, layer, head, kind)
    else:
        heads = seen.heads()
        kinds = [panel.kind for panel in heads.panels]
        shown = Shown.of(heads, kind or ("cross" if "cross" in kinds else kinds[0]), layer, head)
        picture, page, facts = shown.picture, heads.select(kind, layer), {**facts, **shown.facts()}
    if not as_json and answer:
        emit(answer + "\n\n")
    _give(picture, page, html, png, facts if as_json else None)


def _give(
    picture: Any, page: Any, html: Path | None, png: Path | None, facts: dict[str, Any] | None
) -> None:
    """The page and the drawing where they are asked for; the facts as JSON, or the picture."""
    if html is not None:
        page.save(html)
        say(f"the page: {html}")
    if png is not None:
        picture.save(png)
        say(f"the picture: {png}")
    if facts is not None:
        show(facts, "", True)
    else:
        picture.show()


def _row(task: Any, text: str) -> Any:
    """What the encoder of a task reads."""
    from regard.visual import Inputs

    if task.decodes:
        raise ConfigError(f"--inputs is for encoders: {task.name} reads plain ids.")
    pieces = task.pieces
    return Inputs.of(texts_of(task, [text])[0], pieces.tokenizer, pieces.template)


def _silenced(task: Any, heads: Sequence[str]) -> AbstractContextManager[Any]:
    """These heads of these layers give nothing."""
    import regard

    found: dict[int, list[int]] = {}
    for one in heads:
        layer, _, numbers = one.partition(":")
        if not layer.isdecimal() or not all(part.isdecimal() for part in numbers.split(",")):
            raise ConfigError(f"`--silence` must be LAYER:HEADS such as 3:1,6, but is {one!r}.")
        found[int(layer)] = [int(part) for part in numbers.split(",")]
    return regard.heads_masked(task, found) if found else nullcontext()


def _names(*models: str | Path) -> list[str]:
    """The ends of paths, longer where two are alike; a model beside itself is numbered."""
    parts = [tuple(p for p in Path(model).parts if p != "model") for model in models]
    for length in range(1, max(map(len, parts)) + 1):
        short = ["/".join(part[-length:]) for part in parts]
        if len(set(short)) == len(short):
            return short
    return [f"{name} ({number})" for number, name in enumerate(map(str, models), 1)]


def _beside(seen: dict[str, Any], layer: int | None, kind: str | None, head: int | None) -> Any:
    """Models side by side: one layer, or the first and the last that all of them have."""
    from regard.visual import AttentionComparison

    kinds = [panel.kind for one in seen.values() for panel in one.heads().panels]
    kind = kind or ("cross" if "cross" in kinds else kinds[0])
    last = min(max(p.layer for p in one.heads(kind).panels) for one in seen.values())
    layers = [layer] if layer is not None else sorted({1, last})
    return AttentionComparison.of(seen, layers, kind=kind, head=head)


def _seen(task: Any, text: str, decoding: dict[str, Any]) -> tuple[AttentionRecord, str]:
    """What is seen while the task reads the text, and what it answers where it decodes."""
    import regard
    from regard.tasks.inputs import text_or_pair
    from regard.visual.attention_record import run_encoder

    try:
        with regard.look(task) as seen:
            if task.decodes:
                return seen, task.predict([text], **decoding)[0]
            refuse_decoding(task.name, decoding)
            run_encoder(task, [text_or_pair(texts_of(task, [text])[0], 0)])
            _check(seen)
            return seen, ""
    except ValueError as error:
        if isinstance(error, regard.RegardError):
            raise
        raise ConfigError(str(error)) from None


def _check(seen: AttentionRecord) -> None:
    """Refuses weights that are no numbers: a picture would show them as zeros."""
    sites = (site for view in seen.views for site in view.sites.values())
    if not all(bool(site.weights.isfinite().all()) for site in sites):
        raise ConfigError(
            "The attention weights are infinite or not numbers. The model's weights may have "
            "diverged in training: use others."
        )


@dataclass(frozen=True)
class Shown:
    """One matrix of weights, and of which heads it is the mean."""

    picture: Heatmap
    kind: str
    layers: tuple[int, ...]
    head: int | None

    @classmethod
    def of(cls, heads: HeadGrid, kind: str, layer: int | None, head: int | None) -> Shown:
        """One head, or the mean of those of a layer, or of all layers."""
        from regard.visual.head_grid import KINDS, mean

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
