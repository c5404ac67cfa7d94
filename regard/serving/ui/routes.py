"""The web UI: its page, and what its views ask models for, besides the routes of tasks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi import Request as Http
from fastapi.responses import Response
from fastapi.staticfiles import StaticFiles

from regard.serving.calls import Call
from regard.serving.routes import (
    CAT,
    IMAGE,
    Route,
    has_attention,
    task_route,
)
from regard.serving.ui import attention, decoding_steps, requests, views
from regard.serving.ui.sources import UISources

if TYPE_CHECKING:
    from regard.tasks.task import Task

PAGE = Path(__file__).parents[1] / "page"
# No file names an address of another machine, and none has a script or a style within another
# file: the policy forbids both, so that a text that a model read or wrote is never run.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


SIGNS = 'The cat said: "I sat on the mat (in the sun)."'
HEAD = {"kind": "encoder", "layer": 1, "head": 1}


def ui_route(
    name: str,
    request: type[requests.ShownTexts],
    call: Call,
    condition: Callable[[Task], bool] = lambda task: True,
    **example: Any,
) -> Route:
    """A route of a view, on the example CAT where none is given."""
    fields = {"texts": CAT, **example}
    return task_route(f"/ui/{name}", "", request, call, condition, **fields)


ALL = (
    ui_route("tokens", requests.ShownTexts, views.tokenization_steps),
    ui_route("attention", requests.AttentionOfAll, attention.small_maps, has_attention),
    ui_route("head", requests.AttentionOfHead, attention.one_head, has_attention, **HEAD),
    ui_route(
        "masked_heads",
        requests.MaskedHeads,
        attention.answers_with_masked_heads,
        has_attention,
        masked_heads=[HEAD],
    ),
    ui_route(
        "next",
        requests.NextTokens,
        decoding_steps.next_tokens,
        decoding_steps.decodes_texts,
        top_k=10,
    ),
    ui_route(
        "beam",
        requests.BeamSearch,
        decoding_steps.beam_searches,
        decoding_steps.decodes_texts,
        beams=3,
    ),
    ui_route("cell", requests.OneCell, views.one_cell, views.has_cells, layer=1, number=1),
    ui_route("cells", requests.CellSearch, views.found_cells, views.has_cells, texts=SIGNS),
    task_route(
        "/ui/regions",
        "",
        requests.OneImage,
        views.pictures_of_regions,
        lambda task: task.reads_images,
        images=IMAGE,
    ),
)
UI_ROUTES = {route.path: route for route in ALL}


def add_page(app: FastAPI, sources: UISources) -> None:
    """Add the page and the routes that no model answers."""
    app.include_router(sources.router())
    static = StaticFiles(directory=PAGE)

    @app.get("/", include_in_schema=False)
    @app.get("/page/{path:path}", include_in_schema=False)
    async def page(http: Http, path: str = "index.html") -> Response:
        response = await static.get_response(path, http.scope)
        response.headers.update(HEADERS)
        return response
