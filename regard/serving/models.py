"""The models of a server, by the names that clients use."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from regard.errors import ConfigError
from regard.serving.problems import Problem

if TYPE_CHECKING:
    from regard.serving.generation import ServedBatch
    from regard.tasks.search_index import SearchIndex
    from regard.tasks.task import Task


def named_folders(models: Sequence[str]) -> dict[str, Path]:
    """The folders of models by name.

    models: FOLDER, whose name is that of the model, or NAME=FOLDER.

    Raises:
        ConfigError: two have the same name, or one has none.
    """
    found: dict[str, Path] = {}
    for text in models:
        name, equals, path = text.partition("=")
        if not equals or Path(text).exists():
            name, path = "", text
        elif not name or not path:
            raise ConfigError(f"A model to serve must be FOLDER or NAME=FOLDER, but is {text!r}.")
        folder = Path(path)
        name = name or folder.name or folder.resolve().name
        if name in found:
            raise ConfigError(
                f"{found[name]} and {folder} would both be served as {name!r}. Give one "
                f"another name: NAME={folder}."
            )
        found[name] = folder
    return found


@dataclass(frozen=True)
class ServedModel:
    """A model under its name.

    index: the texts that its route /search searches; None: each request has its texts.
    batch: where its prompts are continued together; None: its task continues none, or its states
        do not join others.
    created: when it was loaded, in seconds since 1970.
    """

    name: str
    task: Task
    batch: ServedBatch | None = None
    index: SearchIndex | None = None
    created: int = field(default_factory=lambda: int(time.time()))


class ServedModels:
    """The models that requests name."""

    def __init__(self, models: Mapping[str, ServedModel]):
        self.all = dict(models)

    def named(self, name: str | None) -> ServedModel:
        """The model of this name; without a name the only one.

        Raises:
            Problem: 404 where there is none of this name; 400 where one must be named.
        """
        served = ", ".join(self.all)
        if name is None:
            if len(self.all) != 1:
                message = f"`model` must name one of the models that are served: {served}."
                raise Problem(400, message, "model_missing", "model")
            return next(iter(self.all.values()))
        if name not in self.all:
            message = f"This server has no model {name!r:.80}. Its models: {served}."
            raise Problem(404, message, "model_not_found", "model")
        return self.all[name]
