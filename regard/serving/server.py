"""The process of a server: loads models in the engine's thread, listens meanwhile, drains when it
is told. `regard.serve` starts it.

What needs fastapi and uvicorn is imported late: `check_packages` tells first that they are missing.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from regard.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    from regard.layers.quantized import WeightType
    from regard.serving.ui.sources import UISources
    from regard.tasks.task import Task

    Folder = str | PathLike[str]


def check_packages() -> None:
    """Check that the packages of a server are installed.

    Raises:
        MissingExtra: one is not.
    """
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingExtra(error.name or "fastapi", "serve", "A server") from None


# Seconds after which a thread of Python lets another one go on: the engine asks for that behind
# each operation of a model, while the server reads requests. Python's own number is ten times it.
SWITCH = 0.0005


@dataclass(frozen=True)
class ServerOptions:
    """How a server is started."""

    host: Annotated[str, "Listen at this address; others than this machine need a key."] = (
        "127.0.0.1"
    )
    port: Annotated[
        Annotated[int, Field(ge=0, le=65535)], "Listen at this port; 0 is a free one."
    ] = 8000
    max_queued_tokens: Annotated[
        Annotated[int, Field(ge=1)], "Let requests of N tokens wait; more are answered with 429."
    ] = 1_000_000
    timeout: Annotated[
        Annotated[float, Field(ge=0.1, le=604_800)],
        "Answer a request with 504 after this number of seconds.",
    ] = 600.0
    prefix_cache: Annotated[
        Annotated[int, Field(ge=0)],
        "Cache keys and values of prompt prefixes in N MiB for each model; 0 caches none.",
    ] = 256

    @property
    def loopback(self) -> bool:
        """Whether only programs of this machine reach it."""
        from regard.serving.app import is_loopback

        return is_loopback(self.host)


def run(
    folders: Mapping[str, Any],
    load: Callable[[Any], Any],
    options: ServerOptions,
    say: Callable[[str], None],
    ui: UISources | None = None,
    key: str = "",
) -> None:
    """Serve models until SIGTERM or Ctrl-C; requests that were taken are answered first.

    Args:
        folders: of the models, or what else `load` takes, by their names.
        load: gives the task of a folder.
        say: prints a message.
        ui: what the web UI shows besides the models; None: there is no web UI.
        key: that requests must have; "": none.

    Raises:
        ConfigError: the server would listen to other machines without a key.
        RegardError: a folder cannot be loaded, or the server cannot listen as asked.
    """
    import uvicorn

    from regard.serving.app import Service, application
    from regard.serving.engine import Engine
    from regard.serving.models import RequestCounters, ServedModels, served_model

    listening = _listen(options, key)
    counters = RequestCounters()
    engine = Engine(options.max_queued_tokens, counters)
    service = Service(engine, counters, key, options.loopback, options.timeout, ui=ui)
    server = uvicorn.Server(
        uvicorn.Config(
            application(service),
            log_level="error",  # no mistake of a client is a warning here
            access_log=False,
            ws="none",
            lifespan="off",
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=int(options.timeout) + 1,
        )
    )
    errors: list[BaseException] = []

    def compute() -> None:
        try:
            models = {
                name: served_model(name, load(folder), counters, options.prefix_cache * 2**20)
                for name, folder in folders.items()
            }
            ready = ServedModels(models)
            if ui is not None:
                ui.prepare(ready, say)
            service.models = ready
            say(f"serving {', '.join(models) or 'no model'} at {_address(listening)}")
            engine.run()
        except BaseException as error:  # noqa: BLE001  # raised again below
            errors.append(error)
            server.should_exit = True

    sys.setswitchinterval(SWITCH)
    thread = threading.Thread(target=compute, name="engine", daemon=True)
    thread.start()
    server.run(sockets=[listening])
    engine.stop()
    thread.join(timeout=options.timeout)
    if errors:
        raise errors[0]


def _listen(options: ServerOptions, key: str) -> socket.socket:
    """A socket that listens at an address.

    Raises:
        ConfigError: it cannot, for instance since another process does; or other machines would
            be listened to without a key.
    """
    host, port = options.host, options.port
    if not options.loopback and not key:
        raise ConfigError(
            f"--host {host} lets other machines ask, so a key is needed: put one into a file and "
            "give --api-key-file FILE, or set REGARD_API_KEY."
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=2048)
        # Connections inherit it: a small answer does not wait for the client's acknowledgement.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            problem = f"Port {port} of {host} is in use: choose another --port; 0 is a free one."
        else:
            problem = f"The server cannot listen at --host {host} --port {port}: {error.strerror}."
        raise ConfigError(problem) from None


def _address(listening: socket.socket) -> str:
    host, port, *_ = listening.getsockname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(
    models: Folder | Sequence[Folder] | Mapping[str, Folder | Task],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    api_key: str = "",
    ui: bool = False,
    quantize: WeightType | None = None,
    device: str | None = None,
) -> None:
    """Answer requests over HTTP until SIGTERM or Ctrl-C, as `regard serve` does.

        regard.serve("runs/reviews", ui=True)
        regard.serve({"reviews": model, "translator": "runs/demo"})

    Args:
        models: a folder or a run, several, or either by the names under which they are served; with
            names also models that are loaded.
        host: the address to listen at; one that other machines reach needs an `api_key`.
        port: 0: the system chooses one.
        ui: whether the address has a page that shows what the models do.
        quantize, device: as of `regard.load`.

    Raises:
        ConfigError: two folders have the same name, or the server cannot listen as asked.
        MissingExtra: the packages of a server are not installed.
    """
    check_packages()
    from regard.serving.models import named_folders
    from regard.tasks.folders import load
    from regard.tasks.task import Task

    if isinstance(models, Mapping):
        served: dict[str, Any] = dict(models)
    else:
        folders = [models] if isinstance(models, str | PathLike) else models
        served = dict(named_folders([os.fspath(folder) for folder in folders]))
    sources = None
    if ui:
        from regard.serving.ui.sources import UISources

        sources = UISources(
            {name: Path(one) for name, one in served.items() if not isinstance(one, Task)}
        )

    def loaded(model: Any) -> Any:
        return model if isinstance(model, Task) else load(model, quantize=quantize, device=device)

    options = ServerOptions(host, port)
    run(served, loaded, options, lambda message: print(message, file=sys.stderr), sources, api_key)
