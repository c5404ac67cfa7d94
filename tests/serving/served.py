"""A service with tiny random models, asked in process as a web server would ask it."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from regard.serving.app import Application, Service
from regard.serving.connections import Connection
from regard.serving.counters import RequestCounters
from regard.serving.engine import Engine
from regard.serving.guards import Guard
from regard.serving.loading import served_model
from regard.serving.models import ServedModels
from regard.tasks.folders import load
from regard.tasks.search_index import FACTS, SearchIndex

LEAVES = {"type": "http.disconnect"}


@dataclass
class Answered:
    """What came back. parts: of the body."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    parts: list[bytes] = field(default_factory=list)

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def message(self) -> str:
        return self.json()["error"]["message"]


def service_of(
    folders: dict[str, Path], *, most: int = 10**6, prefix_bytes: int = 0, **options: Any
) -> Service:
    """A service with the models of folders, whose engine does not run yet."""
    counters = RequestCounters()
    models = {
        name: served_model(name, opened(folder), counters, prefix_bytes)
        for name, folder in folders.items()
    }
    return Service(Engine(most, counters), counters, models=ServedModels(models), **options)


def opened(folder: Path) -> Any:
    """The model of a folder, or the index."""
    return SearchIndex.load(folder) if (folder / FACTS).exists() else load(folder)


def start(service: Service) -> threading.Thread:
    thread = threading.Thread(target=service.engine.run, daemon=True)
    thread.start()
    return thread


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@contextmanager
def listening(service: Service) -> Iterator[str]:
    """The address at which a service answers clients of HTTP."""
    import uvicorn

    port = free_port()
    app = Application(service)
    config = uvicorn.Config(app, port=port, log_level="error", lifespan="off", http=Connection)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}/"
    finally:
        server.should_exit = True
        thread.join(10)


async def exchange(
    service: Service,
    path: str,
    messages: list[dict[str, Any]],
    headers: dict[str, str] | None = None,
    method: str = "POST",
    leaves_after: float | None = None,
    reads: int | None = None,
) -> Answered:
    """One request in ASGI's messages.

    leaves_after: seconds until its client goes.
    reads: parts of the answer that its client reads; None: all.
    """
    answered, waiting = Answered(), iter(messages)
    path, _, query = path.partition("?")
    given = {"host": "localhost", "content-type": "application/json", **(headers or {})}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(k.lower().encode(), v.encode("latin-1")) for k, v in given.items()],
        "server": ("localhost", 80),
        "client": ("127.0.0.1", 1),
    }

    async def receive() -> dict[str, Any]:
        message = next(waiting, None)
        if message is None:
            await asyncio.sleep(1e6 if leaves_after is None else leaves_after)
            return LEAVES
        return message

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            answered.status = message["status"]
            answered.headers = {k.decode(): v.decode() for k, v in message["headers"]}
        else:
            if len(answered.parts) == reads:
                await asyncio.sleep(1e6)
            answered.parts.append(message.get("body", b""))

    await Application(service)(scope, receive, send)
    return answered


def body_of(body: Any) -> list[dict[str, Any]]:
    """The messages with a body: bytes, or what JSON can hold."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    size = 1 << 16
    parts = [data[at : at + size] for at in range(0, len(data), size)] or [b""]
    return [
        {"type": "http.request", "body": part, "more_body": number + 1 < len(parts)}
        for number, part in enumerate(parts)
    ]


def ask(service: Service, path: str, body: Any = None, **options: Any) -> Answered:
    """The answer to one request; without a body by GET."""
    method = "GET" if body is None else "POST"
    messages = body_of(b"" if body is None else body)
    return asyncio.run(exchange(service, path, messages, **{"method": method, **options}))


def ask_together(service: Service, requests: list[tuple[str, Any]]) -> list[Answered]:
    """The answers to requests that arrive at the same time."""

    async def all_of_them() -> list[Answered]:
        return list(
            await asyncio.gather(*(exchange(service, path, body_of(b)) for path, b in requests))
        )

    return asyncio.run(all_of_them())


def near(value: Any) -> Any:
    """What equals this value up to rounding: batches of other texts round differently."""
    if isinstance(value, float):
        return pytest.approx(value, rel=1e-5, abs=1e-6)
    if isinstance(value, dict):
        return {key: near(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [near(one) for one in value]
    return value


KEYED = Guard("a-key")
