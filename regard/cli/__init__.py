"""The command line: one function per verb; the signature is the flags.

    console.py      what goes to which stream, what an error looks like, exit codes
    training.py     train, resume, compare
    using.py        predict, generate; lines.py reads what comes through a pipe
    embedding.py    embed
    evaluating.py   evaluate
    looking.py      look
    quantizing.py   quantize
    verifying.py    verify
    tokenizing.py   tokenizer train, encode, explain
    listing.py      list
    kernels.py      kernels, kernels build

Heavy parts are imported inside the verbs, so that `regard --help` answers at once.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from regard import __version__
from regard.cli import (
    embedding,
    evaluating,
    kernels,
    listing,
    looking,
    quantizing,
    tokenizing,
    training,
    using,
    verifying,
)
from regard.cli.console import Verbs, write_utf8

app = typer.Typer(
    name="regard",
    cls=Verbs,
    help="Train sequence models on your text, look into them, compare them fairly.",
    epilog="Exit codes: 0 done; 1 unexpected; 2 something to mend, told in the message; 130 Ctrl-C "
    "and 143 SIGTERM, training saved; 141 the reader of the output has gone.",
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


app.command()(training.train)
app.command()(training.resume)
app.command()(evaluating.evaluate)
app.command()(using.predict)
app.command()(using.generate)
app.command()(embedding.embed)
app.command()(looking.look)
app.add_typer(tokenizing.app, name="tokenizer")
app.command()(training.compare)
app.command()(quantizing.quantize)
app.command()(verifying.verify)
app.command("list")(listing.list_)
app.add_typer(kernels.app, name="kernels")


def main() -> None:
    """Run the command line."""
    write_utf8(sys.stdout)
    app()
