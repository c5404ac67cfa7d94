"""What views show of tokens, of the cells of recurrent models, and of images."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from functools import singledispatch
from typing import TYPE_CHECKING, Any

from regard.errors import ConfigError
from regard.serving.calls import regions_of
from regard.text.explain import LookedUpWord, MatchedWord, MergedWord, SegmentedWord, encoding
from regard.visual.cell_search import KINDS, find_cells
from regard.visual.drawing import LIGHT, visible
from regard.visual.picture import Note, Picture, PictureColumn, PictureRow, Table
from regard.visual.recurrent_cells import CellText, cell_activation, reader_of

if TYPE_CHECKING:
    from regard.tasks.task import Task


ALGORITHMS: dict[type, str] = {
    MergedWord: "merges",
    MatchedWord: "longest match",
    SegmentedWord: "best segmentation",
    LookedUpWord: "vocabulary",
}


def tokenization_steps(task: Task, items: list[str], options: dict[str, Any]) -> list[Any]:
    """The words of each text, with the steps in which each becomes tokens."""
    return [
        {
            "tokenizer": task.tokenizer.kind,
            "words": [_values(word) for word in encoding(task.tokenizer, text)],
        }
        for text in items
    ]


def _values(word: Any) -> dict[str, Any]:
    """The fields of a word as JSON has them."""
    values = {"algorithm": ALGORITHMS[type(word)], **asdict(word), "tokens": list(word.tokens)}
    if isinstance(word, SegmentedWord):
        values["best_share"] = word.best_share
    return values


def has_cells(task: Task) -> bool:
    """Whether the model of a task has cells that can be shown."""
    with suppress(ConfigError):
        return bool(reader_of(task.module).widths)
    return False


def one_cell(task: Task, items: list[str], options: dict[str, Any]) -> list[Any]:
    """Each text coloured by a cell, with the model's layers."""
    reader = reader_of(task.module)
    pairs = zip(reader.names, reader.widths, strict=True)
    layers = [{"name": name, "cells": width} for name, width in pairs]
    pictures = [cell_activation(task.module, task.tokenizer, text, **options) for text in items]
    return [{"picture": plain_picture(picture), "layers": layers} for picture in pictures]


def found_cells(task: Task, items: list[str], options: dict[str, Any]) -> list[Any]:
    """For each text the cells that follow its properties most closely."""
    properties, _ = KINDS[options["properties"]]
    results = []
    for text in items:
        search = find_cells(task.module, task.tokenizer, [text], properties, best=options["best"])
        cells = {name: [cell._asdict() for cell in best] for name, best in search.numbers.items()}
        results.append({"cells": cells, "lines": plain_picture(search.parts[0])["lines"]})
    return results


def pictures_of_regions(task: Task, items: list[str], options: dict[str, Any]) -> list[Any]:
    """Each image once for each word of its description, bright where its weights are large."""
    return [{"picture": plain_picture(words)} for words in regions_of(task, items, options)]


@singledispatch
def plain_picture(picture: Picture) -> dict[str, Any]:
    """A picture as plain values; "kind" says which."""
    drawing = picture.drawing()
    title, width = visible(drawing.title), round(drawing.width, 2)
    return {"kind": "drawing", "title": title, "width": width, "svg": drawing.svg(of_page)}


def of_page(role: str) -> str:
    """A colour as the variable of the page's style sheet."""
    return f"var(--{role})" if role in LIGHT else role


@plain_picture.register
def _(picture: Note) -> dict[str, Any]:
    lines = [visible(line) for line in picture.lines]
    return {"kind": "note", "title": visible(picture.title), "lines": lines}


@plain_picture.register
def _(picture: Table) -> dict[str, Any]:
    rows = [[visible(cell) for cell in row] for row in picture.rows]
    head = [visible(name) for name in picture.head]
    title = visible(picture.title)
    return {"kind": "table", "title": title, "head": head, "rows": rows, "best": picture.best}


@plain_picture.register
def _(picture: CellText) -> dict[str, Any]:
    pieces = [
        [text.encode(errors="replace").decode(), None if value is None else round(value, 4)]
        for text, value in picture.pieces
    ]
    return {"kind": "cells", "title": visible(picture.title), "pieces": pieces}


@plain_picture.register
def _(picture: PictureColumn) -> dict[str, Any]:
    return _several("column", picture)


@plain_picture.register
def _(picture: PictureRow) -> dict[str, Any]:
    return _several("row", picture)


def _several(kind: str, picture: PictureColumn) -> dict[str, Any]:
    parts = [plain_picture(part) for part in picture.parts]
    return {"kind": kind, "title": visible(picture.title), "parts": parts}
