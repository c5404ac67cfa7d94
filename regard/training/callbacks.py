"""Callbacks: objects whose methods are called during a training, to log, draw or stop it.

class StopWhenDiverged(Callback):
    def on_validation(self, step, scores):
        if scores["loss"] > 10:
            raise RuntimeError("diverged")

regard.train("recipe.toml", callbacks=[StopWhenDiverged()])
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.errors import ConfigError
from regard.training.result import Result


@dataclass(frozen=True)
class Step:
    """A training step that was applied.

    number: from 1.
    epochs: how many epochs of the training data are done, such as 1.5.
    learning_rate: the rate of this step.
    gradient_norm: the norm of the gradient before clipping.
    """

    number: int
    epochs: float
    learning_rate: float
    gradient_norm: float


class Callback:
    """Base class of callbacks; a subclass overrides the methods that it needs.

    A callback may read everything. A run can be resumed exactly and repeated bit for bit as long as
    its callbacks do not change the model, the options or the batches, and draw random numbers only
    from their own generators. An exception ends the training; its checkpoints stay, and
    `regard.resume` continues from the last one.
    """

    def on_step(self, step: Step) -> None:
        """Called after each step."""

    def on_log(self, step: int, values: Mapping[str, Any]) -> None:
        """Called for each line of metrics.jsonl: values by name, such as "train/loss"."""

    def on_validation(self, step: int, scores: Mapping[str, float]) -> None:
        """Called after each validation: scores by the names of the metrics."""

    def on_checkpoint(self, path: Path) -> None:
        """Called after a checkpoint was written: `path` is its folder."""

    def on_end(self, result: Result) -> None:
        """Called at the end, when the final weights are in model/."""


def check_callbacks(callbacks: object) -> None:
    """Check the `callbacks` of `regard.train` before anything is written.

    Raises:
        ConfigError: it is not a list of callbacks.
    """
    if not isinstance(callbacks, list | tuple):
        raise ConfigError(f"`callbacks` must be a list, [callback], but is {callbacks!r:.80}.")
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise ConfigError(
                f"`callbacks` must hold objects of classes that inherit regard.training.Callback, "
                f"but has {callback!r:.80}."
            )


class Callbacks(Callback):
    """Several callbacks as one; they are called in their order."""

    def __init__(self, callbacks: Sequence[Callback] = ()):
        self.callbacks = tuple(callbacks)

    def on_step(self, step: Step) -> None:
        self._each(lambda callback: callback.on_step(step))

    def on_log(self, step: int, values: Mapping[str, Any]) -> None:
        self._each(lambda callback: callback.on_log(step, values))

    def on_validation(self, step: int, scores: Mapping[str, float]) -> None:
        self._each(lambda callback: callback.on_validation(step, scores))

    def on_checkpoint(self, path: Path) -> None:
        self._each(lambda callback: callback.on_checkpoint(path))

    def on_end(self, result: Result) -> None:
        self._each(lambda callback: callback.on_end(result))

    def _each(self, call: Callable[[Callback], None]) -> None:
        for callback in self.callbacks:
            call(callback)
