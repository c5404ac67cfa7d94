"""When a checkpoint is due, what happens when the disk refuses, and which old ones go."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from regard.checkpoints.store import write_folder
from regard.errors import CheckpointError
from regard.training.folder import RunFolder, Tables
from regard.training.options import CheckpointOptions

RETRY = 60.0
"""Seconds until a checkpoint that the disk refused is tried again."""


class Saver:
    """Writes checkpoints of what `gather` gives, and then deletes those that may go.

    A full disk does not end a training of hours: the refusal is told, the checkpoints before stay
    as they are, and it is tried again every minute. Only a checkpoint that must not be missed (the
    first, the last, the one after a signal) raises CheckpointError.
    """

    def __init__(
        self,
        place: RunFolder,
        options: CheckpointOptions,
        gather: Callable[[], tuple[Tables, dict[str, Any]]],
        warn: Callable[[str], None],
    ):
        self.place, self.options, self.gather, self.warn = place, options, gather, warn
        self.saved_update = -1
        self._saved_at = time.monotonic()
        self._refused_at: float | None = None

    def resumed(self, update: int) -> None:
        """The checkpoint of this update exists already."""
        self.saved_update, self._saved_at = update, time.monotonic()

    def save(self, update: int, best: str) -> None:
        """Write one now; old ones are deleted when it is safe on the disk.

        best: the name of the best checkpoint, which is kept whatever its age.
        """
        tensors, facts = self.gather()
        write_folder(self.place.place(update), tensors, facts)
        self.saved_update, self._saved_at, self._refused_at = update, time.monotonic(), None
        self.prune(best)

    def prune(self, best: str) -> None:
        """Delete the checkpoints that may go; a process that was killed may not have come to it."""
        kept = {best, *(path.name for path in self.to_average())}
        self.place.prune(self.options.keep, also=kept)

    def save_unless_saved(self, update: int, best: str) -> None:
        if self.saved_update != update:
            self.save(update, best)

    def try_to_save(self, update: int, best: str) -> bool:
        """The same, but a refusal is told and the training goes on."""
        try:
            self.save(update, best)
        except (OSError, CheckpointError) as error:
            self._refused_at = time.monotonic()
            self.warn(f"{error} The training goes on; it is tried again in {RETRY:.0f} seconds.")
            return False
        return True

    def save_if_due(self, update: int, best: str) -> None:
        if update != self.saved_update and self._is_due(update):
            self.try_to_save(update, best)

    def to_average(self) -> list[Any]:
        """The checkpoints whose mean is published; none unless averaging is asked for."""
        if not self.options.average:
            return []
        return self.place.regular(self.options.every)[-self.options.average :]

    def _is_due(self, update: int) -> bool:
        now = time.monotonic()
        if self._refused_at is not None:
            return now - self._refused_at > RETRY
        by_update = self.options.every and update % self.options.every == 0
        by_clock = self.options.seconds and now - self._saved_at > self.options.seconds
        return bool(by_update or by_clock)
