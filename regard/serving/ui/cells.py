"""The cells of recurrent models: one over a text, and the search for those with a meaning."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from regard.errors import ConfigError
from regard.serving.ui.pictures import plain_picture
from regard.visual.cell_search import KINDS, find_cells
from regard.visual.recurrent_cells import cell_activation, reader_of

if TYPE_CHECKING:
    from regard.tasks.task import Task


def has_cells(task: Task) -> bool:
    """Whether the model of a task has cells that can be shown."""
    with suppress(ConfigError):
        return bool(reader_of(task.module).widths)
    return False


def one_cell(task: Task, items: list[str], options: dict[str, Any]) -> list[Any]:
    """Each text coloured by a cell, with the model's layers."""
    reader = reader_of(task.module)
    layers = [
        {"name": reader.name(number), "cells": width}
        for number, width in enumerate(reader.widths, 1)
    ]
    pictures = [cell_activation(task.module, task.tokenizer, text, **options) for text in items]
    return [{"picture": plain_picture(one), "layers": layers} for one in pictures]


def found_cells(task: Task, items: list[str], options: dict[str, Any]) -> list[Any]:
    """For each text the cells that follow its properties most closely."""
    properties, _ = KINDS[options["properties"]]
    results = []
    for text in items:
        found = find_cells(task.module, task.tokenizer, [text], properties, best=options["best"])
        numbers = {name: [one._asdict() for one in cells] for name, cells in found.numbers.items()}
        results.append({"cells": numbers, "lines": plain_picture(found.parts[0])["lines"]})
    return results
