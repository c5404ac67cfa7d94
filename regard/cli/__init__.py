"""The command line: one function per command; its signature is its flags.

    console.py      streams, error messages, exit codes
    options.py      arguments and flags that several commands have
    help_texts.py   how flags are declared
    train.py        train, resume, cross-validate, compare, sweep
    predict.py      predict, translate, tag, generate
    listing.py      list, init, kernels
    embed.py        embed, search
    look.py         look, cells
    export.py       export, quantize, verify
    tokenizer.py    tokenizer, corpus
    NAME.py         each other command in a file of its name

Heavy modules are imported inside the functions, so that `regard --help` answers at once.

Internal: names that `regard` itself does not have may change with every version.
"""

import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from regard import __version__
from regard.cli import embed, evaluate, export, listing, look, predict, serve, tokenizer, train
from regard.cli.console import Commands, write_utf8
from regard.cli.help_texts import with_flag_types

app = typer.Typer(
    name="regard",
    cls=Commands,
    help="Train sequence models on your text, look into them, compare them fairly.",
    epilog="Exit codes: 0 success; 1 unexpected error; 2 an error that you can correct, see its "
    "message; 130 Ctrl-C and 143 SIGTERM, training saved; 141 the reader of the output has gone.",
    no_args_is_help=True,
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
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Print the version of Regard."
        ),
    ] = False,
) -> None:
    """The options before a command."""


COMMANDS: dict[str, Mapping[str, Any]] = {  # title in the overview -> commands, by name
    "Train": {
        "init": listing.init,
        "train": train.train,
        "resume": train.resume,
        "cross-validate": train.cross_validate,
        "compare": train.compare,
        "sweep": train.sweep,
    },
    "Use": {
        "predict": predict.predict,
        "translate": predict.predict,
        "tag": predict.predict,
        "generate": predict.generate,
        "embed": embed.embed,
        "search": embed.search,
        "evaluate": evaluate.evaluate,
    },
    "Look into models": {"look": look.look, "cells": look.cells},
    "Serve and export": {
        "serve": serve.serve,
        "export": export.export,
        "quantize": export.quantize,
        "verify": export.verify,
    },
    "Data and tokenizers": {"tokenizer": tokenizer.app, "corpus": tokenizer.corpus},
    "What there is": {"list": listing.list_, "kernels": listing.app},
}
HELP = {"translate": predict.TRANSLATE, "tag": predict.TAG}

for title, commands in COMMANDS.items():
    for name, command in commands.items():
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name, rich_help_panel=title)
        else:
            app.command(name, help=HELP.get(name), rich_help_panel=title)(with_flag_types(command))


def main() -> None:
    """Run the command line."""
    write_utf8(sys.stdout)
    app()
