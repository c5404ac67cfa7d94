"""`regard.serve`: models over HTTP, with a page if it is asked for."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import MissingExtra

if TYPE_CHECKING:
    from regard.layers.quantized import WeightType
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
    from regard.serving.server import ServerOptions, run
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

        sources = UISources.of(
            {name: Path(one) for name, one in served.items() if not isinstance(one, Task)}
        )

    def loaded(model: Any) -> Any:
        return model if isinstance(model, Task) else load(model, quantize=quantize, device=device)

    options = ServerOptions(host, port, api_key)
    run(served, loaded, options, lambda message: print(message, file=sys.stderr), sources)
