"""Pictures of the library as plain values, which a page draws itself: no HTML crosses the network.

Tables and texts stay tables and texts, so that they can be read aloud; every other picture is its
shapes, with the roles of its colours: `regard.visual.drawing`.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import MISSING, fields
from functools import singledispatch
from typing import Any

from regard.visual.drawing import Pixels, Raster, Shape, visible
from regard.visual.picture import Note, Picture, PictureChoice, PictureColumn, PictureRow, Table
from regard.visual.recurrent_cells import CellText


@singledispatch
def plain_picture(picture: Picture) -> dict[str, Any]:
    """A picture as plain values; "kind" says which."""
    drawing = picture.drawing()
    return {
        "kind": "drawing",
        "title": visible(drawing.title),
        "width": round(drawing.width, 2),
        "height": round(drawing.height, 2),
        "shapes": [_plain_shape(shape) for shape in drawing.shapes],
    }


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


@plain_picture.register
def _(picture: PictureChoice) -> dict[str, Any]:
    names = [visible(name) for name in picture.names]
    return _several("choice", picture) | {"label": visible(picture.label), "names": names}


def _several(kind: str, picture: PictureColumn) -> dict[str, Any]:
    parts = [plain_picture(part) for part in picture.parts]
    return {"kind": kind, "title": visible(picture.title), "parts": parts}


def _plain_shape(shape: Shape) -> dict[str, Any]:
    """The fields of a shape that differ from their defaults, and its kind.

    Of a raster the opacities of its cells, row after row, the sign being the colour; of pixels
    their RGBA bytes in base64.
    """
    found: dict[str, Any] = {"kind": type(shape).__name__.lower()}
    for field in fields(shape):
        value = getattr(shape, field.name)
        if field.default is MISSING or value != field.default:
            found[field.name] = _plain(value)
    if isinstance(shape, Pixels):
        found = {name: one for name, one in found.items() if name not in ("values", "colours")}
        found["columns"] = len(shape.values[0])
        found["data"] = base64.b64encode(shape.colours).decode()
    elif isinstance(shape, Raster):
        found["columns"] = len(shape.values[0])
        found["values"] = [round(value, 3) for row in shape.values for value in row]
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, float):
        return round(value, 2)
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [_plain(one) for one in value]
    return value
