"""serve."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument

from regard.cli import console, options
from regard.cli.embed import load_index
from regard.cli.options import check_none, flag
from regard.errors import ConfigError
from regard.schema import read_text
from regard.serving.server import check_packages

if TYPE_CHECKING:
    from regard.serving.ui.sources import UISources

KEY = "REGARD_API_KEY"  # an environment variable


@dataclass(frozen=True)
class ServerFlags:
    """How a server is started."""

    host: str = flag(
        "Listen at this address; others than this machine need a key.",
        "127.0.0.1",
        metavar="ADDRESS",
    )
    port: int = flag("Listen at this port; 0 is a free one.", 8000, min=0, max=65535)
    api_key_file: Path | None = flag(
        f"A file with the key that requests need; or set {KEY}.", metavar="FILE"
    )
    max_queued_tokens: int = flag(
        "Let requests of N tokens wait; more are answered with 429.", 1_000_000, min=1
    )
    timeout: float = flag(
        "Answer a request with 504 after this number of seconds.", 600.0, min=0.1, max=604_800
    )
    prefix_cache: int = flag(
        "Cache keys and values of prompt prefixes in N MiB for each model; 0 caches none.",
        256,
        min=0,
    )


@dataclass(frozen=True)
class WebUi:
    """The web UI that is served with the models."""

    ui: bool = flag("Serve a web page that shows what the models do, too.", False)
    texts: Path | None = flag(
        "With --ui: draw a map of these texts, lines or a table.", metavar="FILE"
    )
    labels: str | None = flag(
        "With --ui: the column of --texts that holds labels.", metavar="COLUMN"
    )

    def sources(self, folders: dict[str, Path]) -> UISources | None:
        """What the page shows besides the models of folders; None: there is no page."""
        if not self.ui:
            return None
        with console.no_garbage_collection():  # imports torch
            from regard.serving.ui.sources import UISources

        return UISources(folders, self.texts, self.labels)


@options.with_opening
@options.with_flags("flags", ServerFlags)
@options.with_flags("web", WebUi)
def serve(
    models: Annotated[
        list[str] | None,
        Argument(
            metavar="[NAME=]MODEL",
            help="Runs or folders with models; NAME is how requests name the model, by default "
            "the name of its folder.",
        ),
    ] = None,
    index: list[str] | None = flag(
        "Serve this index and its model at /search; may be repeated.", metavar="[NAME=]FOLDER"
    ),
    *,
    opening: options.Opening,
    web: WebUi,
    flags: ServerFlags,
) -> None:
    """Serve models over HTTP, with a web page where asked (--ui).

    Routes of tasks such as /translate, /tag and /embed have the fields of Python and of the command
    line; /v1/completions and /v1/embeddings those of OpenAI. /openapi.json describes all of them.
    With --ui a page at the server's address shows attention, tokens, searches and maps of
    texts; it needs no network. The server listens to this machine alone unless --host says
    otherwise. SIGTERM answers what was asked, then ends.
    """
    if not web.ui:
        check_none("without --ui", {"texts": web.texts, "labels": web.labels})
    if web.texts is None:
        check_none("without --texts FILE", {"labels": web.labels})
    check_packages()
    from regard.serving.models import named_folders

    folders = named_folders([*(models or ()), *(index or ())])
    indexes = set(named_folders(index or ()).values())
    for folder in folders.values():
        options.existing(folder)
    if not folders and not web.ui:
        raise ConfigError("Name a model to serve: regard serve MODEL. With --ui none is needed.")
    sources = web.sources(folders)
    with console.no_garbage_collection():
        from regard.serving.server import ServerOptions, run

    def load(folder: Path) -> Any:
        if folder in indexes:
            return load_index(folder, device=opening.device)
        return console.load_task(folder, **vars(opening))

    server = ServerOptions(
        flags.host,
        flags.port,
        _key(flags.api_key_file),
        flags.max_queued_tokens,
        flags.timeout,
        flags.prefix_cache * 2**20,
    )
    run(folders, load, server, console.say, sources)


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
