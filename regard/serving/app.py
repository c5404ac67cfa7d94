"""From HTTP to the table of routes and back: an ASGI application."""

from __future__ import annotations

import asyncio
import re
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request as Http
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from regard.plain_json import to_json, to_json_bytes
from regard.schema import checked, parse_json
from regard.serving.counters import RequestCounters
from regard.serving.engine import Engine, QueuedRequest, deadline_passed
from regard.serving.guards import ClientDisconnected, Guard, read_body
from regard.serving.models import ServedModel, ServedModels
from regard.serving.openapi import openapi
from regard.serving.page_files import HEADERS
from regard.serving.problems import Problem, problem_of
from regard.serving.request_targets import in_origin_form
from regard.serving.requests import Request
from regard.serving.routes import GETS, Route
from regard.serving.served_page import RouteWithoutModel, ServedPage
from regard.serving.streams import EventStream, GrowingTexts
from regard.serving.tokens import tokenizer_info
from regard.serving.work import Work

Answer = Callable[[Http], Awaitable[Response]]
JSON = "application/json"
SMALL, FEW = 2**14, 16  # bytes of a body, and results, that do not keep other requests waiting
BODY = "The body"  # how errors name it
NO_SNIFFING = {"X-Content-Type-Options": "nosniff"}  # browsers take no text for a page
DISCONNECTED = 499  # the status of requests whose client has disconnected, in the counters


@dataclass
class Service:
    """What answers requests.

    models: None while they are loaded.
    deadline: seconds in which a request must be answered.
    stopping: whether no more requests are taken.
    page: its routes and files.
    """

    engine: Engine
    counters: RequestCounters
    guard: Guard = Guard()
    deadline: float = 600.0
    models: ServedModels | None = None
    stopping: bool = False
    page: ServedPage = field(default_factory=ServedPage)

    # ---- routes asked by GET

    async def health(self, request: Http) -> Response:
        """See `GETS`."""
        models = self._models()
        return _json({"status": "ok", "models": [*models.all]})

    async def metrics(self, request: Http) -> Response:
        """See `GETS`."""
        text = self.counters.text(
            waiting_tokens=self.engine.waiting_tokens, waiting_requests=self.engine.waiting_requests
        )
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def list_models(self, request: Http) -> Response:
        """See `GETS`."""
        data = [
            {
                "id": one.name,
                "object": "model",
                "created": one.created,
                "owned_by": "regard",
                "task": one.task.name,
                "routes": self.page.paths_of(one.task),
            }
            for one in self._models().all.values()
        ]
        return _json({"object": "list", "data": data})

    async def tokenizer(self, request: Http) -> Response:
        """See `GETS`."""
        served = self._models().named(request.query_params.get("model"))
        return _json({"model": served.name, **tokenizer_info(served.task)})

    async def description(self, request: Http) -> Response:
        """See `GETS`."""
        return _json(openapi(self.page.asked))

    # ---- routes asked by POST

    async def post(self, request: Http) -> Response:
        """The answer to a request of `ROUTES`."""
        models, route = self._models(), self.page.routes[path_of(request)]
        body = await _body_of(request)
        large = len(body) > SMALL
        fields = await _called(large, fields_of, body, route)
        served = models.named(fields.model)
        self._check_available(served, route)
        work = await _called(large, route.work, served, fields)
        if not work.items:
            return _json(work.render([]))
        if fields.streams:
            return await self._stream(work, route.path, request)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queued = self._submitted(work, route.path, lambda: _set(future))
        results = await self._results(queued, future, request)
        response: Response = await _called(len(results) > FEW, _rendered, work, results)
        return response

    async def post_without_model(self, request: Http) -> Response:
        """The answer to a request that no model computes."""
        self._models()
        route = self.page.routes_without_model[path_of(request)]
        fields = fields_of(await _body_of(request), route)
        return _json(await run_in_threadpool(route.answer, fields))

    def _submitted(self, work: Work, path: str, finished: Callable[[], None]) -> QueuedRequest:
        """A request in the engine; finished: is called in the server's thread at its end.

        Raises:
            Problem: the queue is full.
        """
        call = _in_loop()
        queued = QueuedRequest(
            work.key,
            path,
            work.items,
            work.costs,
            work.run,
            lambda queued: call(finished),
            time.monotonic() + self.deadline,
            work.generation,
        )
        self.engine.submit(queued)
        return queued

    async def _results(
        self, queued: QueuedRequest, future: asyncio.Future[None], request: Http
    ) -> list[Any]:
        """The results of a request in the engine.

        Raises:
            ClientDisconnected: the client has disconnected; the rest of its items are not computed.
            Problem: the deadline has passed, although the engine may compute something.
        """
        try:
            await _first(future, queued, request)
        finally:
            self.engine.cancel(queued)
        if queued.error is not None:
            raise queued.error
        return queued.results

    async def _stream(self, work: Work, path: str, request: Http) -> Response:
        """The texts of a request as they grow; an error before the first is an answer of its own.

        Raises:
            ClientDisconnected: the client has disconnected.
            Problem: the deadline has passed.
        """
        assert work.generation is not None
        texts = GrowingTexts(_in_loop())
        work.generation.listener = texts.listen
        queued = self._submitted(work, path, texts.end)
        first = asyncio.ensure_future(texts.first())
        try:
            await _first(first, queued, request)
            if first.result() is None and queued.error is not None:
                raise queued.error
        except BaseException:
            self.engine.cancel(queued)
            raise
        finally:
            first.cancel()
        disconnects = partial(_disconnected, request)
        return EventStream(
            work, queued, texts, first.result(), disconnects, partial(self.engine.cancel, queued)
        )

    def _models(self) -> ServedModels:
        """The models.

        Raises:
            Problem: 503 while they are loaded, and while the server stops.
        """
        if self.stopping:
            raise Problem(503, "The server stops.", "stopping", headers={"Retry-After": "10"})
        if self.models is None:
            message = "The models are being loaded. Try again in a moment."
            raise Problem(503, message, "loading", headers={"Retry-After": "1"})
        return self.models

    def _check_available(self, served: ServedModel, route: Route) -> None:
        """Check that the task of a model has a route.

        Raises:
            Problem: 404, which names the routes that it has.
        """
        task = served.task
        if route.available_for(task):
            return
        has = ", ".join(self.page.paths_of(task))
        message = (
            f"{served.name} is a model of {task.name}, which does not have the route {route.path}."
        )
        raise Problem(404, f"{message} Its routes: {has}.", "no_such_route", "model")

    async def file(self, request: Http) -> Response:
        """A file of the page."""
        found = self.page.files[path_of(request)]
        return Response(found.content, headers=HEADERS, media_type=found.media_type)

    # ---- all requests

    async def guarded(self, answer: Answer, request: Http) -> Response:
        """An answer behind the guard, with errors as JSON, counted."""
        began, path = time.monotonic(), path_of(request)
        try:
            self.guard.check(request.headers)
            response = await answer(request)
        except ClientDisconnected:
            response = Response(status_code=DISCONNECTED)
        except Exception as error:
            response = failure(error)
        known = path if path in self.page.asked or path in GETS else "other"
        self.counters.add("regard_requests_total", path=known, status=response.status_code)
        seconds = time.monotonic() - began
        self.counters.add("regard_request_seconds_total", seconds, path=known)
        return response


async def _body_of(request: Http) -> bytes:
    """The body of a request.

    Raises:
        Problem: it is compressed; for others see `read_body`.
    """
    coding = request.headers.get("content-encoding", "identity")
    if coding.lower() != "identity":
        message = f"The body must not be compressed, but its Content-Encoding is {coding:.40}."
        raise Problem(415, message, "unsupported_encoding", headers={"Connection": "close"})
    return await read_body(request.receive)


def path_of(request: Http) -> str:
    """The path, without what a client has written into `Host`."""
    path: str = request.scope["path"]
    return path


def fields_of(body: bytes, route: Route | RouteWithoutModel) -> Any:
    """The fields of a request.

    Raises:
        Problem: the body is not JSON, or has other fields or types than the route.
    """

    def problem(message: str) -> Problem:
        field = re.match(rf"{BODY}: `(\w+)", message)
        said = message.replace(f"{BODY}: ", "")
        return Problem(400, said, "invalid_body", field[1] if field else None)

    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        message = f"{BODY} must be UTF-8, but byte {error.start} is 0x{body[error.start]:02x}."
        raise problem(message) from None
    value = parse_json(text, BODY, problem)  # type: ignore[arg-type]
    if not isinstance(value, dict):
        raise problem(f"{BODY} must be a JSON object, such as {to_json(route.example)}.")
    if issubclass(route.request, Request):
        value = route.request.own_names(value)
    return checked(value, route.request, BODY, problem)  # type: ignore[arg-type]


def failure(error: Exception) -> Response:
    """The response to an error; an unexpected one, of status 500, is printed with its traceback."""
    problem = problem_of(error)
    if problem.status == 500:
        traceback.print_exception(error, file=sys.stderr)
    return _json(problem.body(), problem.status, problem.headers)


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(to_json_bytes(value), status, {**NO_SNIFFING, **(headers or {})}, JSON)


async def _called(large: bool, function: Callable[..., Any], *given: Any) -> Any:
    """The result of a function, in another thread where it may take long."""
    return await run_in_threadpool(function, *given) if large else function(*given)


def _rendered(work: Work, results: list[Any]) -> Response:
    return _json(work.render(results))


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _in_loop() -> Callable[..., None]:
    """What calls a function in the thread of this server, from another thread."""
    loop = asyncio.get_running_loop()

    def call(function: Callable[..., None], *given: Any) -> None:
        with suppress(RuntimeError):  # the loop has been closed: no request waits
            loop.call_soon_threadsafe(function, *given)

    return call


async def _first(found: asyncio.Future[Any], queued: QueuedRequest, request: Http) -> None:
    """Wait for the first result of a request in the engine, or for its only one.

    Raises:
        ClientDisconnected: the client has disconnected before.
        Problem: the deadline has passed before.
    """
    disconnected = asyncio.ensure_future(_disconnected(request))
    waited: set[asyncio.Future[Any]] = {found, disconnected}
    try:
        await asyncio.wait(waited, timeout=queued.seconds_left, return_when=asyncio.FIRST_COMPLETED)
        if not found.done():
            raise ClientDisconnected if disconnected.done() else deadline_passed()
    finally:
        disconnected.cancel()


async def _disconnected(request: Http) -> None:
    """Returns when the client has closed its connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


class Application:
    """The ASGI application of a service: no path is a pattern; those of GET also answer HEAD."""

    def __init__(self, service: Service):
        page, self.service = service.page, service
        gets: dict[str, Answer] = {
            "/health": service.health,
            "/metrics": service.metrics,
            "/v1/models": service.list_models,
            "/tokenizer_info": service.tokenizer,
            "/openapi.json": service.description,
            **dict.fromkeys(page.files, service.file),
        }
        posts: dict[str, Answer] = {
            **dict.fromkeys(page.routes, service.post),
            **dict.fromkeys(page.routes_without_model, service.post_without_model),
        }
        self.answers = {
            **{(method, path): gets[path] for path in gets for method in ("GET", "HEAD")},
            **{("POST", path): posts[path] for path in posts},
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI's specification."""
        request = Http(in_origin_form(scope), receive, send)
        found = self.answers.get((request.method, path_of(request)), self._without_route)
        response = await self.service.guarded(found, request)
        await response(scope, receive, send)

    async def _without_route(self, request: Http) -> Response:
        path, asked = path_of(request), self.service.page.asked
        allowed = [method for method, known in self.answers if known == path]
        if allowed:
            message = f"{path} needs the method {allowed[0]}."
            raise Problem(405, message, "wrong_method", headers={"Allow": ", ".join(allowed)})
        known = ", ".join([*asked, *GETS])
        message = f"This server has no path {path!r:.80}. Its paths: {known}."
        raise Problem(404, message, "no_such_path")
