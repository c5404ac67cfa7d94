"""serve."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from regard.cli.console import load_task, say
from regard.cli.options import Device, Quantize, existing
from regard.errors import ConfigError, MissingExtra

KEY = "REGARD_API_KEY"  # an environment variable


def serve(
    folders: Annotated[
        list[Path],
        Argument(metavar="FOLDER...", help="Runs or folders with models."),
    ],
    host: Annotated[str, Option(help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="The port.")] = 8000,
    api_key_file: Annotated[
        Path | None, Option(help=f"A file with the key that requests need; or set {KEY}.")
    ] = None,
    queue_tokens: Annotated[
        int, Option(min=1, help="Tokens of requests that may wait; then 429.")
    ] = 1_000_000,
    deadline: Annotated[
        float, Option(min=0.1, help="Seconds in which a request must be answered.")
    ] = 600.0,
    prefix_cache: Annotated[
        int, Option(min=0, help="MiB of prompts to keep for those that begin alike; 0: none.")
    ] = 256,
    quantize: Quantize = None,
    device: Device = None,
) -> None:
    """Answer over HTTP, each model under the name of its folder.

    Task routes (/translate, /tag, /embed, ...) have the fields of Python and of the command line;
    /v1/completions and /v1/embeddings those of OpenAI. /openapi.json describes all of them. The
    server listens to this machine alone unless --host says otherwise. SIGTERM answers what was
    asked, then ends.
    """
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingExtra(error.name or "starlette", "serve", "`regard serve`") from None
    from regard.serving.models import names_of
    from regard.serving.options import ServerOptions

    named = names_of([existing(folder) for folder in folders])
    options = ServerOptions(
        host, port, _key(api_key_file), queue_tokens, deadline, prefix_cache * 2**20
    )
    from regard.serving.server import serve as run  # imports torch

    run(named, partial(load_task, quantize=quantize, device=device), options, say)


def _key(file: Path | None) -> str:
    """The key of the file, or of the environment; "" where there is none.

    Raises:
        ConfigError: the file has no key.
    """
    if file is None:
        return os.environ.get(KEY, "").strip()
    key = file.read_text(encoding="utf-8").strip()
    if not key or any(letter.isspace() for letter in key):
        raise ConfigError(f"{file} must hold one key, without spaces.")
    return key
