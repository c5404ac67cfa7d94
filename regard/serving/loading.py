"""A task as a model of the server, with a prefix cache and a batch where it can have them."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from regard.errors import ConfigError
from regard.serving.counters import RequestCounters
from regard.serving.models import ServedModel
from regard.tasks.task import Task

if TYPE_CHECKING:
    from regard.tasks.search_index import SearchIndex


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
