"""cells."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from regard.cli.console import load_task
from regard.cli.look import PictureOutput, page_of
from regard.cli.options import Device, ModelFolder, with_flags
from regard.errors import ConfigError
from regard.schema import read_text

LARGEST_TEXT = 1 << 26  # bytes of a file in which cells are looked for


@with_flags("output", PictureOutput, html="Write a page with all cells that were found.")
def cells(
    model: ModelFolder,
    file: Annotated[Path, Argument(help="A text, or a folder with texts, that the model reads.")],
    kind: Annotated[
        Literal["text", "python"],
        Option(help="Compare cells with properties of running text or of Python programs."),
    ] = "text",
    device: Device = None,
    *,
    output: PictureOutput,
) -> None:
    """Find the cells of a recurrent model that have a meaning.

    The value of each cell is correlated with properties of the text, such as the position in the
    line or whether a quote is open.
    """
    output.check()
    task = load_task(model, device=device)
    from regard.visual import find_cells
    from regard.visual.cell_search import KINDS

    properties, suffix = KINDS[kind]
    files = sorted(file.rglob(f"*{suffix}")) if file.is_dir() else [file]
    if not files:
        raise ConfigError(f"{file} has no file that ends in {suffix}.")
    texts = [read_text(one, max_bytes=LARGEST_TEXT, error=ConfigError) for one in files]
    picture = find_cells(task.module, task.tokenizer, texts, properties)
    numbers = {name: [one._asdict() for one in best] for name, best in picture.numbers.items()}
    output.write(picture, page_of(picture, str(file)), {"source": file, "cells": numbers})
