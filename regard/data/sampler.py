"""Batches without end that can stop anywhere and go on from there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from regard.errors import CheckpointError, ConfigError


class EpochData(Protocol):
    """Data as a sequence of batches for each epoch, made from the epoch's number alone."""

    def epoch(self, number: int) -> Sequence[Any]: ...
    def identity(self) -> dict[str, Any]: ...


class EpochSampler:
    """Batch after batch, epoch after epoch, over data such as `Buckets`, `Streams` or `Blocks`.

    A position is the epoch, the number of the next batch in it, and what tells this data and its
    order from others. To restore it only the order of that epoch is computed: no batch is made
    twice, nothing is read or encoded again. `epoch` is that of the batch that came last.
    """

    def __init__(self, data: EpochData):
        self.data = data
        self._start(0, 0)

    def __iter__(self) -> EpochSampler:
        return self

    def __next__(self) -> Any:
        if self._next == len(self._batches):
            self._start(self.epoch + 1, 0)
        batch = self._batches[self._next]
        self._next += 1
        return batch

    @property
    def batches_per_epoch(self) -> int:
        """Batches in the current epoch; where lengths decide, epochs differ by a few."""
        return len(self._batches)

    def position(self) -> dict[str, Any]:
        """Where the next batch is; a dict for JSON."""
        return {"epoch": self.epoch, "batch": self._next, **self.data.identity()}

    def restore(self, position: dict[str, Any]) -> None:
        """Go where `position()` said; refuses a position over other data or in another order."""
        for name, mine in self.data.identity().items():
            if position.get(name) != mine:
                raise CheckpointError(
                    f"The saved place in the data has {name} = {position.get(name)!r}, but here it "
                    f"is {mine!r}. Resume with the same data and options, or begin anew."
                )
        self._start(position["epoch"], position["batch"])
        if not 0 <= self._next <= self.batches_per_epoch:
            raise CheckpointError(
                f"The saved place is batch {self._next} of epoch {self.epoch}, "
                f"which has {self.batches_per_epoch}. Begin anew."
            )

    def _start(self, epoch: int, batch: int) -> None:
        self.epoch = epoch
        self._batches = self.data.epoch(epoch)
        self._next = batch


def permutation(count: int, seed: int, *parts: int) -> np.ndarray:
    """(count,) the numbers from 0 on in an order that depends on the seed and its parts alone.

    It sorts the raw numbers of a PCG64, whose stream is fixed; numpy's own `permutation` may change
    from one release to the next, and with it a run that is resumed.
    """
    if seed < 0:
        raise ConfigError(f"`seed` must be 0 or more, but is {seed}.")
    return np.argsort(np.random.PCG64([seed, *parts]).random_raw(count), kind="stable")
