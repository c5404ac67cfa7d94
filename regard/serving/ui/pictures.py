"""Pictures of the library as plain values for a page.

Tables and texts stay tables and texts, so that they can be read aloud; every other picture is the
SVG that notebooks and reports have, too, with the colours of the page.
"""

from __future__ import annotations

from functools import singledispatch
from typing import Any

from regard.visual.drawing import LIGHT, visible
from regard.visual.picture import Note, Picture, PictureColumn, PictureRow, Table
from regard.visual.recurrent_cells import CellText


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
