"""Callbacks: objects whose methods are called while a training runs, to log, draw or stop it.

class Stop(Callback):
    def on_validation(self, update, scores):
        if scores["loss"] > 10:
            raise RuntimeError("diverged")

regard.train("recipe.toml", callbacks=[Stop()])
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.errors import ConfigError
from regard.training.result import Result


@dataclass(frozen=True)
class Update:
    """An update that was applied: its number, from 1, and what it was computed with.

    norm: of the gradient, before clipping.
    """

    number: int
    epochs: float
    learning_rate: float
    norm: float


class Callback:
    """Base of callbacks; a subclass defines those of these methods that it needs.

    A callback may read everything. A run resumes exactly, and repeats to the last bit, as long as
    callbacks do not change the model, the options or the batches, and draw random numbers only from
    generators of their own. An exception ends the training: what was saved stays, and
    `regard.resume` goes on from the last checkpoint.
    """

    def on_update(self, update: Update) -> None:
        """After each update."""

    def on_log(self, update: int, values: Mapping[str, Any]) -> None:
        """With each line of metrics.jsonl: numbers by name, such as "train/loss"."""

    def on_validation(self, update: int, scores: Mapping[str, float]) -> None:
        """After each validation: scores by the names of the metrics."""

    def on_checkpoint(self, path: Path) -> None:
        """After a checkpoint was written into this folder."""

    def on_end(self, result: Result) -> None:
        """After the last update, when the final weights are in model/."""


def check_callbacks(callbacks: object) -> None:
    """Check what `regard.train` is given, before anything is written.

    Raises:
        ConfigError: it is no list of callbacks.
    """
    if not isinstance(callbacks, list | tuple):
        raise ConfigError(f"`callbacks` must be a list, [callback], but is {callbacks!r:.80}.")
    for one in callbacks:
        if not isinstance(one, Callback):
            raise ConfigError(
                f"`callbacks` must hold objects of classes that inherit regard.training.Callback, "
                f"but has {one!r:.80}."
            )


class Callbacks(Callback):
    """Several callbacks as one, in their order."""

    def __init__(self, callbacks: Sequence[Callback] = ()):
        self.callbacks = tuple(callbacks)

    def on_update(self, update: Update) -> None:
        self._each(lambda one: one.on_update(update))

    def on_log(self, update: int, values: Mapping[str, Any]) -> None:
        self._each(lambda one: one.on_log(update, values))

    def on_validation(self, update: int, scores: Mapping[str, float]) -> None:
        self._each(lambda one: one.on_validation(update, scores))

    def on_checkpoint(self, path: Path) -> None:
        self._each(lambda one: one.on_checkpoint(path))

    def on_end(self, result: Result) -> None:
        self._each(lambda one: one.on_end(result))

    def _each(self, call: Callable[[Callback], None]) -> None:
        for one in self.callbacks:
            call(one)
