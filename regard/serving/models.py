"""The models of a server, by the names that clients use."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import ConfigError
from regard.serving.counters import RequestCounters
from regard.serving.problems import Problem
from regard.tasks.task import Task

if TYPE_CHECKING:
    from regard.serving.generation import ServedBatch
    from regard.tasks.search_index import SearchIndex


def named_folders(models: Sequence[str]) -> dict[str, Path]:
    """The folders of models by name.

    models: FOLDER, whose name is that of the model, or NAME=FOLDER.

    Raises:
        ConfigError: two have the same name, or one has none.
    """
    folders: dict[str, Path] = {}
    for text in models:
        name, equals, path = text.partition("=")
        if not equals or Path(text).exists():
            name, path = "", text
        elif not name or not path:
            raise ConfigError(f"A model to serve must be FOLDER or NAME=FOLDER, but is {text!r}.")
        folder = Path(path)
        name = name or folder.name or folder.resolve().name
        if name in folders:
            raise ConfigError(
                f"{folders[name]} and {folder} would both be served as {name!r}. Give one "
                f"another name: NAME={folder}."
            )
        folders[name] = folder
    return folders


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


def served_model(
    name: str, loaded: Task | SearchIndex, counters: RequestCounters, prefix_bytes: int = 0
) -> ServedModel:
    """A model under a name, or an index with its model.

    prefix_bytes: of cached keys and values of prompt prefixes; 0: none.
    """
    if not isinstance(loaded, Task):
        return ServedModel(name, loaded.model, index=loaded)
    task = loaded
    if not task.has("cache_prefixes") or task.module.reads_backward:
        return ServedModel(name, task)
    from regard.serving.generation import ServedBatch

    if prefix_bytes:
        with suppress(ConfigError):  # a model without keys and values
            task.cache_prefixes(prefix_bytes)
    try:
        return ServedModel(name, task, ServedBatch(name, task.generator, counters))
    except TypeError:  # its states do not join others
        return ServedModel(name, task)


def tokenizer_info(name: str, task: Task) -> dict[str, Any]:
    """The kind, the size and the special tokens of a model's tokenizer; some also under the names
    that vLLM's `/tokenizer_info` has for them.
    """
    tokenizer = task.tokenizer
    ids = {
        "bos": tokenizer.bos_id,
        "eos": tokenizer.eos_id,
        "pad": tokenizer.pad_id,
        "unk": tokenizer.unk_id,
        "mask": tokenizer.mask_id,
    }
    special = {
        role: {"id": number, "token": tokenizer.token(number)}
        for role, number in ids.items()
        if number is not None
    }
    return {
        "model": name,
        "kind": tokenizer.kind,
        "vocab_size": tokenizer.vocab_size,
        "special_tokens": special,
        "max_length": task.module.config.max_length,
        "bos_token": tokenizer.roles.get("bos"),
        "eos_token": tokenizer.roles.get("eos"),
        "pad_token": tokenizer.roles.get("pad"),
    }
