"""The process: loads models in the engine's thread, listens meanwhile, drains when it is told."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import uvicorn

from regard.serving.app import Application, Service
from regard.serving.connections import Connection
from regard.serving.counters import RequestCounters
from regard.serving.engine import Engine
from regard.serving.loading import served_model
from regard.serving.models import ServedModels
from regard.serving.options import ServerOptions
from regard.serving.served_page import Say, ServedPage

# Seconds after which a thread of Python lets another one go on: the engine asks for that behind
# each operation of a model, while the server reads requests. Python's own number is ten times it.
SWITCH = 0.0005


def serve(
    folders: Mapping[str, Any],
    load: Callable[[Any], Any],
    options: ServerOptions,
    say: Say,
    page: ServedPage,
) -> None:
    """Serve models until SIGTERM or Ctrl-C; requests that were taken are answered first.

    Args:
        folders: of the models, or what else `load` takes, by their names.
        load: gives the task of a folder.
        say: prints a message.
        page: what can be asked.

    Raises:
        RegardError: a folder cannot be loaded, or the server may not listen as asked.
    """
    counters = RequestCounters()
    engine = Engine(options.max_queued_tokens, counters)
    guard = page.guard(options.key, options.loopback)
    service = Service(engine, counters, guard, options.timeout, page=page)
    server = _Server(service, options)
    errors: list[BaseException] = []

    def compute() -> None:
        try:
            models = {
                name: served_model(name, load(folder), counters, options.prefix_bytes)
                for name, folder in folders.items()
            }
            ready = ServedModels(models)
            page.prepare(ready, say)
            service.models = ready
            say(f"serving {', '.join(models) or 'no model'} at {server.address()}")
            engine.run()
        except BaseException as error:  # noqa: BLE001  # raised again below
            errors.append(error)
            server.should_exit = True

    sys.setswitchinterval(SWITCH)
    thread = threading.Thread(target=compute, name="engine", daemon=True)
    thread.start()
    server.run()
    engine.stop()
    thread.join(timeout=options.timeout)
    if errors:
        raise errors[0]


class _Server(uvicorn.Server):
    """Says so when it stops: requests on open connections are refused from then on."""

    def __init__(self, service: Service, options: ServerOptions):
        super().__init__(
            uvicorn.Config(
                Application(service),
                host=options.host,
                port=options.port,
                log_level="error",  # no mistake of a client is a warning here
                access_log=False,
                http=Connection,
                ws="none",
                lifespan="off",
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=int(options.timeout) + 1,
            )
        )
        self.service = service

    def address(self) -> str:
        """Where it listens, as soon as it does; called from another thread than that of `run`."""
        while not (self.started or self.should_exit):
            time.sleep(0.01)
        host, port = self.config.host, self.config.port
        if self.started and not port:  # the system has chosen one
            port = self.servers[0].sockets[0].getsockname()[1]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def shutdown(self, sockets: Any = None) -> None:
        """See `uvicorn.Server`."""
        self.service.stopping = True
        await super().shutdown(sockets)
