"""The web UI: its page, and what its views ask models for, besides the routes of tasks: the fields
of requests, and the table of routes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from fastapi import FastAPI
from fastapi import Request as Http
from fastapi.responses import Response
from fastapi.staticfiles import StaticFiles
from pydantic import Field

from regard.serving import routes
from regard.serving.requests import Count, Ids, Listed, Request, RequestFields, Seed
from regard.serving.ui import views
from regard.serving.ui.sources import UISources
from regard.serving.work import Call

if TYPE_CHECKING:
    from regard.tasks.task import Task


ShownText = Annotated[str, Field(max_length=20_000)]
Kind = Literal["encoder", "decoder", "cross", "query"]


class ShownTexts(Request):
    """The steps in which the words of a text become tokens."""

    texts: ShownText
    """The text."""


class MaskedHead(RequestFields):
    """A head that is masked."""

    kind: Kind
    layer: Count
    head: Count


class MaskedHeads(ShownTexts):
    """The answer to a text with all heads, and with some of them masked."""

    BESIDE: ClassVar[str] = "second"

    second: ShownText | None = None
    """The second text of a pair."""
    masked_heads: Annotated[Listed[MaskedHead], Field(max_length=1000)] = []
    """Heads that are masked meanwhile."""

    def items(self) -> list[Any]:
        """A text or a pair."""
        return [self.texts] if self.second is None else [(self.texts, self.second)]


class AttentionOfAll(MaskedHeads):
    """Small maps of the attention of all heads while a text is read."""

    unit: Literal["words", "tokens"] = "words"
    """Whether the subwords of a word are merged."""


class AttentionOfHead(AttentionOfAll):
    """The attention weights of one head, or the mean of a layer's heads."""

    kind: Kind
    """Which attention."""
    layer: Count
    """From 1."""
    head: Count | None = None
    """From 1; the mean of the layer's heads where not given."""


class NextTokens(ShownTexts):
    """The most probable next tokens, before and after temperature, top-k and top-p."""

    chosen: Annotated[Ids, Field(max_length=2000)] = []
    """Tokens that were chosen after the text, or as the beginning of its target."""
    most: Annotated[int, Field(ge=1, le=200)] = 20
    """How many tokens to give."""
    temperature: float | None = None
    """Divides the scores."""
    top_k: Count | None = None
    """Only the K most probable tokens."""
    top_p: float | None = None
    """Only the fewest most probable tokens whose probabilities sum to this."""
    seed: Seed = 0
    """Of the token that sampling draws."""


class BeamSearch(ShownTexts):
    """Every token that a beam search tries, as a tree."""

    beams: Annotated[int, Field(ge=2, le=12)] = 3
    """Running hypotheses."""
    max_tokens: Annotated[int, Field(ge=1, le=80)] = 20
    """Of an output at most."""
    length_penalty: float | str | None = None
    """A: score / length^A; or gnmt:A."""
    no_repeat_ngram: Count | None = None
    """No n-gram of this size twice."""


class OneCell(ShownTexts):
    """A text coloured by one cell of a recurrent model, and the model's layers."""

    layer: Count
    """From 1."""
    number: Count
    """Of the cell, from 1."""


class CellSearch(ShownTexts):
    """The cells of a recurrent model that follow properties of a text most closely."""

    properties: Literal["text", "python"] = "text"
    """Which properties."""
    best: Annotated[int, Field(ge=1, le=20)] = 3
    """How many cells of each property."""


class OneImage(Request):
    """What each word of the description of an image attends to, over the image."""

    ITEMS: ClassVar[str] = "images"

    images: str
    """The bytes of a file (PNG, JPEG) in base64."""
    beams: Count | None = None
    """Beam search with this many beams."""


# ---- the table

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
    request: type[ShownTexts],
    call: Call,
    condition: Callable[[Task], bool] = lambda task: True,
    **example: Any,
) -> routes.Route:
    """A route of a view, on the example CAT where none is given."""
    fields = {"texts": routes.CAT, **example}
    return routes.task_route(f"/ui/{name}", "", request, call, condition, **fields)


ALL = (
    ui_route("tokens", ShownTexts, views.tokenization_steps),
    ui_route("attention", AttentionOfAll, views.small_maps, routes.has_attention),
    ui_route("head", AttentionOfHead, views.one_head, routes.has_attention, **HEAD),
    ui_route(
        "masked_heads",
        MaskedHeads,
        views.answers_with_masked_heads,
        routes.has_attention,
        masked_heads=[HEAD],
    ),
    ui_route("next", NextTokens, views.next_tokens, views.decodes_texts, top_k=10),
    ui_route("beam", BeamSearch, views.beam_searches, views.decodes_texts, beams=3),
    ui_route("cell", OneCell, views.one_cell, views.has_cells, layer=1, number=1),
    ui_route("cells", CellSearch, views.found_cells, views.has_cells, texts=SIGNS),
    routes.task_route(
        "/ui/regions",
        "",
        OneImage,
        views.pictures_of_regions,
        lambda task: task.reads_images,
        images=routes.IMAGE,
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
