"""The library's own training loop, one update at a time."""

from __future__ import annotations

import math
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard import ops
from regard.data.sampler import EpochSampler
from regard.training.callbacks import Trainable, display_of
from regard.training.checkpointing import RunFolder
from regard.training.interrupt import Interruption
from regard.training.loop import Loop, start_run
from regard.training.options import TrainingOptions


class Listed:
    """The same batches in every epoch."""

    def __init__(self, batches: Sequence[Any]):
        self.batches = batches

    def epoch(self, number: int) -> Sequence[Any]:
        """All of them."""
        return self.batches

    def identity(self) -> dict[str, Any]:
        """Nothing to tell them by."""
        return {}


class Updates(Trainable, ABC):
    """A task as the loop knows it: its model, its batches, and losses from `losses`."""

    goal = ("loss", "min")

    def __init__(self, model: Any, batches: Sequence[Any], options: TrainingOptions):
        self.module, self.batches = model, batches
        self.folder = tempfile.TemporaryDirectory()
        run = RunFolder(Path(self.folder.name))
        self.last = math.nan
        shown, signals = display_of(False), Interruption()
        ops.load_kernels()
        self.loop = Loop(self, options, run, {}, lambda *given: None, shown, signals, ())
        start_run(self.loop, 1)
        model.train()

    def run(self, updates: int) -> float:
        """So many updates; the loss of the last, in nats per item."""
        for _ in range(updates):
            self.loop.step()
        return float(self.last)

    def train_batches(self) -> EpochSampler:
        """See `regard.training.callbacks.Trainable`."""
        return EpochSampler(Listed(self.batches))

    def counts(self, batch: Any) -> dict[str, int]:
        """See `regard.training.callbacks.Trainable`."""
        return {"loss": batch.count}

    def losses(self, batch: Any, carry: Any) -> tuple[dict[str, Any], Any]:
        """See `regard.training.callbacks.Trainable`."""
        (loss, count), carry = self.loss(batch, carry)
        self.last = loss.detach() / count
        return {"loss": (loss, count)}, carry

    @abstractmethod
    def loss(self, batch: Any, carry: Any) -> tuple[tuple[Any, int], Any]:
        """The sum of the losses and their count; and what goes on to the next batch."""

    def validate(self) -> dict[str, float]:
        """Nothing is held out."""
        return {}
