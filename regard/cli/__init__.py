"""The command line: one function per command; its signature is its flags.

    console.py      output streams, error messages, exit codes
    input_texts.py  texts of the command line or of standard input
    options.py      arguments and options that several commands have
    serve.py        serve, studio
    train.py        train, resume, find-lr, cross-validate, compare
    listing.py      list
    NAME.py         each other command in a file of its name

Heavy modules are imported inside the functions, so that `regard --help` answers at once.

Internal: names that `regard` itself does not have may change with every version.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from regard import __version__
from regard.cli import (
    corpus,
    embed,
    evaluate,
    export,
    generate,
    init,
    kernels,
    listing,
    look,
    predict,
    quantize,
    search,
    serve,
    sweep,
    tokenizer,
    train,
    verify,
)
from regard.cli.console import Commands, open_closed_streams, write_utf8

app = typer.Typer(
    name="regard",
    cls=Commands,
    help="Train sequence models on your text, look into them, compare them fairly.",
    epilog="Exit codes: 0 success; 1 unexpected error; 2 an error that you can correct, see its "
    "message; 130 Ctrl-C and 143 SIGTERM, training saved; 141 the reader of the output has gone.",
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help: importing rich would take longer than printing
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
    """The options before a command."""


app.command()(init.init)
app.command()(train.train)
app.command()(train.resume)
app.command()(evaluate.evaluate)
app.command()(predict.predict)
app.command("translate", help=predict.TRANSLATE)(predict.predict)
app.command("tag", help=predict.TAG)(predict.predict)
app.command()(generate.generate)
app.command()(embed.embed)
app.command()(search.search)
app.command()(serve.serve)
app.command()(serve.studio)
app.command()(look.look)
app.add_typer(tokenizer.app, name="tokenizer")
app.command()(corpus.corpus)
app.command()(train.find_lr)
app.command()(train.cross_validate)
app.command()(train.compare)
app.command()(sweep.sweep)
app.command()(quantize.quantize)
app.command()(export.export)
app.command()(verify.verify)
app.command("list")(listing.list_)
app.add_typer(kernels.app, name="kernels")


def main() -> None:
    """Run the command line."""
    open_closed_streams()
    write_utf8(sys.stdout)
    app()
