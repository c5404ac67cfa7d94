"""The application: who may ask, routes, errors, streams."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.parse import urlsplit

from fastapi import Depends, FastAPI
from fastapi import Request as Http
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, Response, StreamingResponse
from fastapi.security import (
    HTTPAuthorizationCredentials,
    HTTPBasic,
    HTTPBasicCredentials,
    HTTPBearer,
)
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import regard
from regard.errors import RegardError
from regard.schema import to_json_bytes
from regard.serving.engine import Engine, deadline_passed
from regard.serving.models import RequestCounters, ServedModel, ServedModels, tokenizer_info
from regard.serving.problems import NO_SNIFFING, ErrorAnswer, Problem, error_response, problem_of
from regard.serving.requests import Request
from regard.serving.routes import ROUTES, Route
from regard.serving.work import Piece, Work

if TYPE_CHECKING:
    from regard.decoding.streaming import GeneratedText
    from regard.serving.ui.sources import UISources
    from regard.tasks.task import Task


Token = Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))]
# Browsers give the key as a password, with any user name.
Password = Annotated[HTTPBasicCredentials | None, Depends(HTTPBasic(auto_error=False))]
PASSWORD = 'Basic realm="regard", charset="UTF-8"'


class SameSite:
    """Refuses what a page of another site asks through the browser of its reader.

    `Host` then names that site, or `Origin` does. Starlette's middlewares for both answer 400, or
    answer the request, and leave it to the browser to hide the answer.

    Args:
        loopback: whether the server listens to this machine alone, so that hosts are known.
    """

    def __init__(self, app: ASGIApp, loopback: bool):
        self.app, self.loopback = app, loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI's specification."""
        problem = self._problem(Headers(scope=scope)) if scope["type"] == "http" else None
        await (self.app if problem is None else problem.response())(scope, receive, send)

    def _problem(self, headers: Headers) -> Problem | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if self.loopback and not is_loopback(_host_name(f"//{host}")):
            message = f"This server answers as localhost, but `Host` is {host!r:.80}."
            return Problem(403, message, "wrong_host")
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            message = f"Pages of another site may not ask this server: `Origin` is {origin!r:.80}."
            return Problem(403, message, "wrong_origin")
        return None


def is_loopback(host: str) -> bool:
    """Whether a host is this machine and no other: a name that DNS resolves is not known to be."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host_name(url: str) -> str:
    """The host in a URL; "" where it is none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def key_check(key: str, challenge: str) -> Callable[..., Awaitable[None]]:
    """A dependency that refuses requests without the key; "" is none.

    challenge: what browsers and other clients are asked for.
    """

    async def check(token: Token, password: Password) -> None:
        sent = token.credentials if token else password.password if password else ""
        # Headers are decoded as Latin-1.
        if key and not hmac.compare_digest(sent.encode("latin-1", "replace"), key.encode()):
            wrong = "The API key is wrong. " if sent else ""
            message = f"{wrong}This server needs its API key: `Authorization: Bearer KEY`."
            raise Problem(401, message, "wrong_key", headers={"WWW-Authenticate": challenge})

    return check


MOST_BYTES = 5 * 2**19  # of a body: 2.5 MiB
SMALL, FEW = 2**14, 16  # bytes of a body, and results, that do not keep other requests waiting
DISCONNECTED = 499  # the status of requests whose client has disconnected, in the counters
ERRORS: dict[int | str, dict[str, Any]] = {"default": {"model": ErrorAnswer}}
Result = TypeVar("Result")


@dataclass
class Service:
    """What answers requests.

    key: that requests must have; "": none.
    loopback: whether the server listens to this machine alone.
    timeout: seconds in which a request must be answered.
    models: None while they are loaded.
    ui: what the web UI shows besides models; None: there is no web UI.
    """

    engine: Engine
    counters: RequestCounters
    key: str = ""
    loopback: bool = True
    timeout: float = 600.0
    models: ServedModels | None = None
    ui: UISources | None = None

    @cached_property
    def routes(self) -> dict[str, Route]:
        """The routes that a model answers, by their paths."""
        if self.ui is None:
            return ROUTES
        from regard.serving.ui.routes import UI_ROUTES

        return {**ROUTES, **UI_ROUTES}

    def ready(self) -> ServedModels:
        """The models.

        Raises:
            Problem: 503 while they are loaded.
        """
        if self.models is None:
            message = "The models are being loaded. Try again in a moment."
            raise Problem(503, message, "loading", headers={"Retry-After": "1"})
        return self.models

    def paths_of(self, task: Task) -> list[str]:
        """The paths of the routes that a task has."""
        return [path for path, route in self.routes.items() if route.available_for(task)]

    def card(self, served: ServedModel) -> dict[str, Any]:
        """What `/v1/models` says of a model."""
        return {
            "id": served.name,
            "object": "model",
            "created": served.created,
            "owned_by": "regard",
            "task": served.task.name,
            "routes": self.paths_of(served.task),
        }

    async def answer(self, route: Route, fields: Request, http: Http) -> Response:
        """The answer to a request.

        Raises:
            Problem: 404 where the model does not have the route; as of `Engine.submit`; 504 where
                the deadline has passed.
        """
        served = self.ready().named(fields.model)
        if not route.available_for(served.task):
            has = ", ".join(self.paths_of(served.task))
            what = f"{served.name} is a model of {served.task.name}, which does not have the route"
            message = f"{what} {route.path}. Its routes: {has}."
            raise Problem(404, message, "no_such_route", "model")
        large = len(await http.body()) > SMALL
        work: Work = await _called(large, route.work, served, fields)
        work.path, work.deadline = route.path, time.monotonic() + self.timeout
        if not work.items:
            return _json(work.render([]))
        if fields.streams:
            events = await _begun(self._events(work), http)
            return StreamingResponse(
                events, headers={"Cache-Control": "no-store"}, media_type="text/event-stream"
            )
        try:
            computed = asyncio.wrap_future(self.engine.submit(work))
            results = await _unless_disconnected(computed, http, work.seconds_left)
        finally:
            self.engine.cancel(work)
        return _json(await _called(len(results) > FEW, work.render, results))

    async def _events(self, work: Work) -> AsyncIterator[bytes]:
        """The texts of a request as they grow, as server-sent events.

        Raises:
            Exception: of the request; also after some events.
        """
        assert work.chunks is not None
        pieces: asyncio.Queue[Piece | None] = asyncio.Queue()
        put = partial(_put, asyncio.get_running_loop(), pieces)

        def listen(prompt: int, row: int, text: GeneratedText) -> None:
            piece, reason = text.ready(), text.reason
            if piece or reason is not None:
                put((prompt, row, piece, reason))

        generated = work.generation is not None
        if work.generation is not None:
            work.generation.listener = listen
        future = self.engine.submit(work)
        future.add_done_callback(lambda _: put(None))
        try:
            while (piece := await asyncio.wait_for(pieces.get(), work.seconds_left)) is not None:
                yield _event(work.chunks.chunk(*piece))
            results = future.result()
        except TimeoutError:
            raise deadline_passed() from None
        finally:
            self.engine.cancel(work)
        if not generated:
            for piece in work.chunks.pieces(results):
                yield _event(work.chunks.chunk(*piece))
        if (end := work.chunks.end(results)) is not None:
            yield _event(end)
        yield b"data: [DONE]\n\n"


def _put(loop: asyncio.AbstractEventLoop, queue: asyncio.Queue[Any], value: Any) -> None:
    with suppress(RuntimeError):  # the loop has been closed: no request waits
        loop.call_soon_threadsafe(queue.put_nowait, value)


def _event(body: Any) -> bytes:
    return b"data: %b\n\n" % to_json_bytes(body)


async def _begun(events: AsyncIterator[bytes], http: Http) -> AsyncIterator[bytes]:
    """The same events, of which the first has arrived: an error before it is raised, and a later
    one is the last event.
    """
    first = await _unless_disconnected(anext(events), http)

    async def from_the_first() -> AsyncIterator[bytes]:
        yield first
        try:
            async for event in events:
                yield event
        except Exception as error:
            yield _event(problem_of(error).body())

    return from_the_first()


async def _unless_disconnected(
    result: Awaitable[Result], http: Http, seconds: float | None = None
) -> Result:
    """The result, which is awaited for so many seconds.

    Raises:
        Problem: the client has disconnected before, or the time is over.
    """
    waited, gone = asyncio.ensure_future(result), asyncio.ensure_future(_disconnected(http))
    try:
        await asyncio.wait({waited, gone}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if waited.done():
            return waited.result()
        if gone.done():
            raise Problem(DISCONNECTED, "The client has disconnected.")
        raise deadline_passed()
    finally:
        waited.cancel()
        gone.cancel()


async def _disconnected(http: Http) -> None:
    """Returns when the client has closed its connection."""
    while (await http.receive())["type"] != "http.disconnect":
        pass


async def _called(large: bool, function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a function, in another thread where it may take long."""
    return await run_in_threadpool(function, *arguments) if large else function(*arguments)


def _json(value: Any) -> Response:
    return Response(to_json_bytes(value), headers=NO_SNIFFING, media_type="application/json")


class Entrance:
    """Counts requests by path and status.

    All bodies are JSON, whatever type curl names.
    """

    def __init__(self, app: ASGIApp, counters: RequestCounters):
        self.app, self.counters = app, counters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI's specification."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        began, status = time.monotonic(), 500

        async def noted(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        scope["headers"] = [header for header in scope["headers"] if header[0] != b"content-type"]
        try:
            await self.app(scope, receive, noted)
        finally:
            path = getattr(scope.get("route"), "path", "other")
            self.counters.requests.labels(path, status).inc()
            self.counters.seconds.labels(path).inc(time.monotonic() - began)


def application(service: Service) -> FastAPI:
    """The application of a service."""
    challenge = "Bearer" if service.ui is None else PASSWORD
    app = FastAPI(
        title="Regard",
        version=regard.__version__,
        dependencies=[Depends(key_check(service.key, challenge))],
        openapi_url=None,  # and no docs: these have no dependencies, so the routes below are ours
        redirect_slashes=False,
        strict_content_type=False,
        responses=ERRORS,
        exception_handlers={
            kind: error_response
            for kind in (HTTPException, RequestValidationError, RegardError, Exception)
        },
    )
    app.add_middleware(RequestBodyLimitMiddleware, max_body_size=MOST_BYTES)
    app.add_middleware(SameSite, loopback=service.loopback)
    app.add_middleware(Entrance, counters=service.counters)
    _add_gets(app, service)
    for route in service.routes.values():
        _add_route(app, service, route)
    if service.ui is not None:
        from regard.serving.ui.routes import add_page

        add_page(app, service.ui)
    return app


def _add_route(app: FastAPI, service: Service, route: Route) -> None:
    async def answer(fields: Any, http: Http) -> Response:
        return await service.answer(route, fields, http)

    answer.__annotations__ = {"fields": route.request, "http": Http}
    extra = {"requestBody": {"content": {"application/json": {"example": route.example}}}}
    app.post(route.path, summary=route.summary, response_model=None, openapi_extra=extra)(answer)


def _add_gets(app: FastAPI, service: Service) -> None:
    """The routes that are asked by GET."""

    @app.head("/health", include_in_schema=False)
    @app.get("/health")
    async def health() -> dict[str, Any]:
        """200 when the models are loaded; 503 before."""
        return {"status": "ok", "models": [*service.ready().all]}

    @app.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """What the server counts, in Prometheus' text format."""
        return Response(generate_latest(service.counters.registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The models and the routes that each has."""
        cards = [service.card(served) for served in service.ready().all.values()]
        return {"object": "list", "data": cards}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        """One model."""
        return service.card(service.ready().named(name))

    @app.get("/tokenizer_info")
    async def tokenizer(model: str | None = None) -> dict[str, Any]:
        """The kind, the size and the special tokens of a model's tokenizer."""
        served = service.ready().named(model)
        return tokenizer_info(served.name, served.task)

    @app.get("/openapi.json", include_in_schema=False)
    async def description() -> dict[str, Any]:
        """All routes, with the fields of requests and answers."""
        return app.openapi()

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        """The same as a page, whose scripts come from the internet."""
        return get_swagger_ui_html(openapi_url="openapi.json", title="Regard")
