"""The command line: one function per verb; the signature is the flags.

Heavy parts are imported inside the verbs, so that `regard --help` answers at once.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Annotated, Literal

import typer

from regard import __version__
from regard.errors import RegardError

app = typer.Typer(
    name="regard",
    help="Train sequence models on your text, look into them, compare them fairly.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain help: loading rich would take longer than answering
    pretty_exceptions_enable=False,
)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"regard {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """What every verb has."""


@app.command("list")
def list_(
    what: Annotated[Literal["models", "tasks"], typer.Argument(help="What to list.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the models or tasks that there are."""
    table = import_module(f"regard.{what}")
    names = list(getattr(table, what.upper()))
    typer.echo(json.dumps(names) if as_json else "\n".join(names))


def main() -> None:
    """Run the command line; what the user can mend is one line and exit code 2, no traceback."""
    try:
        app()
    except RegardError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
