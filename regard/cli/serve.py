"""serve, studio."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from regard.cli.console import load_task, no_garbage_collection, say
from regard.cli.options import Device, Quantize, existing, with_flags
from regard.errors import ConfigError, MissingExtra
from regard.schema import read_text

if TYPE_CHECKING:
    from regard.serving.served_page import ServedPage

KEY = "REGARD_API_KEY"  # an environment variable


def all_existing(folders: list[Path]) -> list[Path]:
    """Folders with models: that one is missing is reported before torch is imported."""
    return [existing(folder) for folder in folders]


Folders = Annotated[
    list[Path],
    Argument(metavar="FOLDER...", help="Runs or folders with models.", callback=all_existing),
]


@dataclass(frozen=True)
class ServerFlags:
    """How a server is started."""

    host: Annotated[str, Option(help="The address to listen at.")] = "127.0.0.1"
    port: Annotated[int, Option(min=0, max=65535, help="The port.")] = 8000
    api_key_file: Annotated[
        Path | None, Option(help=f"A file with the key that requests need; or set {KEY}.")
    ] = None
    queue_tokens: Annotated[
        int, Option(min=1, help="Tokens of requests that may wait; then 429.")
    ] = 1_000_000
    deadline: Annotated[
        float, Option(min=0.1, help="Seconds in which a request must be answered.")
    ] = 600.0
    prefix_cache: Annotated[
        int,
        Option(
            min=0, help="MiB of cached keys and values of prompt prefixes, for each model; 0: none."
        ),
    ] = 256
    quantize: Quantize = None
    device: Device = None


with_server = with_flags("flags", ServerFlags)


@with_server
def serve(folders: Folders, flags: ServerFlags) -> None:
    """Answer over HTTP, each model under the name of its folder.

    Task routes (/translate, /tag, /embed, ...) have the fields of Python and of the command line;
    /v1/completions and /v1/embeddings those of OpenAI. /openapi.json describes all of them. The
    server listens to this machine alone unless --host says otherwise. SIGTERM answers what was
    asked, then ends.
    """
    _check_extra("serve")
    with no_garbage_collection():
        from regard.serving.served_page import ServedPage  # imports torch

    _run(folders, flags, ServedPage())


@with_server
def studio(
    folders: Annotated[
        list[Path] | None,
        Argument(metavar="[FOLDER...]", help="Runs or folders with models."),
    ] = None,
    runs: Annotated[
        list[Path] | None,
        Option(metavar="DIR", help="A folder of runs, whose curves are shown as they grow."),
    ] = None,
    texts: Annotated[
        Path | None, Option(metavar="FILE", help="Texts for a map: lines, or a table.")
    ] = None,
    labels: Annotated[
        str | None, Option(metavar="COLUMN", help="The labels of the texts, in a table.")
    ] = None,
    *,
    flags: ServerFlags,
) -> None:
    """Show what models do on a page: attention, tokens, searches, maps of texts, runs, lessons.

    It is the server of `regard serve` with a page at its address, which is opened in a browser. It
    needs no network. The server listens to this machine alone unless --host says otherwise.
    """
    if labels is not None and texts is None:
        raise ConfigError("--labels names a column of --texts FILE, which is not given.")
    _check_extra("studio")
    with no_garbage_collection():
        from regard.serving.models import names_of
        from regard.serving.ui.examples import Examples
        from regard.serving.ui.maps import TextMaps
        from regard.serving.ui.routes import ui_page
        from regard.serving.ui.runs import RunFolders
        from regard.serving.ui.sources import UISources

    examples = Examples(names_of(folders or []))
    sources = UISources(RunFolders(runs or ()), TextMaps(texts, labels), examples)
    _run(folders or [], flags, ui_page(sources))


def _check_extra(command: str) -> None:
    """Check that the packages of a server are installed.

    Raises:
        MissingExtra: they are not.
    """
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingExtra(error.name or "starlette", "serve", f"`regard {command}`") from None


def _run(folders: list[Path], flags: ServerFlags, page: ServedPage) -> None:
    """Serve the models of folders until the process is told to end."""
    from regard.serving.models import names_of
    from regard.serving.options import ServerOptions

    named = names_of(folders)
    options = ServerOptions(
        flags.host,
        flags.port,
        _key(flags.api_key_file),
        flags.queue_tokens,
        flags.deadline,
        flags.prefix_cache * 2**20,
    )
    with no_garbage_collection():
        from regard.serving.server import serve as run

    load = partial(load_task, quantize=flags.quantize, device=flags.device)
    run(named, load, options, say, page)


def _key(file: Path | None) -> str:
    """The key of the file, or of the environment; "" where there is none.

    Raises:
        ConfigError: the file cannot be read, or has no key.
    """
    if file is None:
        return os.environ.get(KEY, "").strip()
    key = read_text(file, error=ConfigError).strip()
    if not key or any(letter.isspace() for letter in key):
        raise ConfigError(f"{file} must hold one key, without spaces.")
    return key
