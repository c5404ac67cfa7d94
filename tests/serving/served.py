"""A service with tiny random models, asked in process, or over a socket."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.testclient import TestClient

from regard.serving.app import Service, application
from regard.serving.engine import Engine
from regard.serving.models import RequestCounters, ServedModels, served_model
from regard.tasks.folders import load
from regard.tasks.search_index import FACTS, SearchIndex


def service_of(
    folders: dict[str, Path], *, most: int = 10**6, prefix_bytes: int = 0, **options: Any
) -> Service:
    """A service with the models of folders, whose engine does not run yet."""
    counters = RequestCounters()
    models = {
        name: served_model(name, opened(folder), counters, prefix_bytes)
        for name, folder in folders.items()
    }
    engine = Engine(most, counters)
    return Service(engine, counters, models=ServedModels(models), **options)


def opened(folder: Path) -> Any:
    """The model of a folder, or the index."""
    return SearchIndex.load(folder) if (folder / FACTS).exists() else load(folder)


@contextmanager
def running(service: Service) -> Iterator[Service]:
    """The service with its engine."""
    thread = threading.Thread(target=service.engine.run, daemon=True)
    thread.start()
    yield service
    service.engine.stop()
    thread.join(10)
    assert not thread.is_alive()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@contextmanager
def listening(service: Service) -> Iterator[str]:
    """The address at which a service answers clients of HTTP."""
    import uvicorn

    port = free_port()
    config = uvicorn.Config(application(service), port=port, log_level="error", lifespan="off")
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


_clients: dict[int, TestClient] = {}  # making an application takes longer than most answers


def ask(
    service: Service, path: str, body: Any = None, *, headers: dict[str, str] | None = None
) -> httpx2.Response:
    """The answer to one request; without a body by GET. Bodies are bytes, or what JSON can hold."""
    if id(service) not in _clients:
        _clients[id(service)] = TestClient(
            application(service), "http://localhost", raise_server_exceptions=False
        )
    client = _clients[id(service)]
    if body is None:
        return client.get(path, headers=headers)
    return client.post(path, content=_encoded(body), headers=headers)


def ask_together(service: Service, requests: list[tuple[str, Any]]) -> list[httpx2.Response]:
    """The answers to requests that arrive at the same time."""

    async def all_of_them() -> list[httpx2.Response]:
        transport = httpx2.ASGITransport(application(service))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            asked = [client.post(path, content=_encoded(body)) for path, body in requests]
            return list(await asyncio.gather(*asked))

    return asyncio.run(all_of_them())


def _encoded(body: Any) -> bytes:
    return body if isinstance(body, bytes) else json.dumps(body).encode()


def message_of(answered: httpx2.Response) -> str:
    """What an error says."""
    return answered.json()["error"]["message"]


def near(value: Any) -> Any:
    """What equals this value up to rounding: batches of other texts round differently."""
    if isinstance(value, float):
        return pytest.approx(value, rel=1e-5, abs=1e-6)
    if isinstance(value, dict):
        return {key: near(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [near(one) for one in value]
    return value
