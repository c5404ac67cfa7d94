"""serve."""

import os
from pathlib import Path
from typing import Annotated, Any

from typer import Argument

from regard.cli import console, options
from regard.cli.embed import load_index, of_model
from regard.cli.options import check_none, flag
from regard.errors import ConfigError
from regard.schema import read_text
from regard.serving.server import ServerOptions, check_packages

KEY = "REGARD_API_KEY"  # an environment variable


@options.with_opening
@options.with_flags("server", ServerOptions)
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
    api_key_file: Path | None = flag(f"A file with the key that requests need; or set {KEY}."),
    ui: bool = flag("Serve a web page that shows what the models do, too.", False),
    texts: Path | None = flag("With --ui: draw a map of these texts, lines or a table."),
    labels: str | None = flag("With --ui: the column of --texts that holds labels."),
    *,
    opening: options.Opening,
    server: ServerOptions,
) -> None:
    """Serve models over HTTP, with a web page where asked (--ui).

    Routes of tasks such as /translate, /tag and /embed have the fields of Python and of the command
    line; /v1/completions and /v1/embeddings those of OpenAI. /openapi.json describes all of them.
    With --ui a page at the server's address shows attention, tokens, searches and maps of
    texts; it needs no network. The server listens to this machine alone unless --host says
    otherwise. SIGTERM answers what was asked, then ends.
    """
    if not ui:
        check_none("without --ui", {"texts": texts})
    if not models:
        check_none("without a MODEL: an index has a model of its own", of_model(opening))
    if texts is None:
        check_none("without --texts FILE", {"labels": labels})
    check_packages()
    from regard.serving.models import named_folders

    folders = named_folders([*(models or ()), *(index or ())])
    indexes = set(named_folders(index or ()).values())
    for folder in folders.values():
        options.existing(folder)
    if not folders and not ui:
        raise ConfigError("Name a model to serve: regard serve MODEL. With --ui none is needed.")
    sources = None
    with console.no_garbage_collection():  # imports torch
        from regard.serving.server import run

        if ui:
            from regard.serving.ui.sources import UISources

            sources = UISources(folders, texts, labels)

    def load(folder: Path) -> Any:
        if folder in indexes:
            return load_index(folder, device=opening.device)
        return console.load_task(folder, **vars(opening))

    run(folders, load, server, console.say, sources, _key(api_key_file))


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
