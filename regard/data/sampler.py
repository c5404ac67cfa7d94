"""Endless batches, epoch after epoch, that can stop after any batch and resume exactly."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from regard.errors import CheckpointError, ConfigError

Batch = TypeVar("Batch")


class BatchSequence(Sequence[Batch]):
    """A sequence of batches, each made when it is asked for."""

    @abstractmethod
    def batch(self, index: int) -> Batch:
        """Batch number `index`, from 0."""

    def __getitem__(self, index: Any) -> Any:
        """Batch number `index`.

        Raises:
            IndexError: it is below 0, or not below the number of batches.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"a batch's index must be from 0 to {len(self) - 1}, but is {index}.")
        return self.batch(index)


@dataclass(frozen=True, eq=False)
class MadeBatches(BatchSequence[Batch]):
    """`length` batches; `make(index)` is one of them."""

    length: int
    make: Callable[[int], Batch]

    def __len__(self) -> int:
        return self.length

    def batch(self, index: int) -> Batch:
        return self.make(index)


def in_batches(
    order: np.ndarray, size: int, make: Callable[[np.ndarray], Batch]
) -> MadeBatches[Batch]:
    """Batches of `size` of the numbers in this order, of which the last may have fewer."""
    count = -(-len(order) // size)
    return MadeBatches(count, lambda index: make(order[index * size : (index + 1) * size]))


class EpochData(Protocol):
    """Data as a sequence of batches for each epoch, made from the epoch's number alone."""

    def epoch(self, number: int) -> Sequence[Any]:
        """The batches of epoch `number`, from 0."""

    def identity(self) -> dict[str, Any]:
        """What the order of the batches depends on; values for JSON."""


class EpochSampler:
    """Batch after batch, epoch after epoch, of data such as `Buckets` or `ParallelStreams`.

    A position is the epoch, the number of the next batch in it, and the data's `identity`. To
    restore one, only the order of that epoch is computed: no batch is made, and nothing is read or
    encoded again.

    data: gives the batches of each epoch
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
        """Batches in the current epoch; epochs differ by a few where sequences differ in length."""
        return len(self._batches)

    def position(self) -> dict[str, Any]:
        """Where the next batch is; a dict for JSON."""
        return {"epoch": self.epoch, "batch": self._next, **self.data.identity()}

    def restore(self, position: dict[str, Any]) -> None:
        """Continue at a position that `position()` returned.

        Raises:
            CheckpointError: it belongs to other data or to another order of the batches.
        """
        for name, present in self.data.identity().items():
            if position.get(name) != present:
                raise CheckpointError(
                    f"The saved position in the data has {name} = {position.get(name)!r}, but here "
                    f"it is {present!r}. Resume with the same data and options, or start a new run."
                )
        self._start(position["epoch"], position["batch"])
        if not 0 <= self._next <= self.batches_per_epoch:
            raise CheckpointError(
                f"The saved position is batch {self._next} of epoch {self.epoch}, "
                f"which has {self.batches_per_epoch}. Start a new run."
            )

    def _start(self, epoch: int, batch: int) -> None:
        self.epoch = epoch  # of the batch that was returned last
        self._batches = self.data.epoch(epoch)
        self._next = batch


def permutation(count: int, seed: int, *parts: int) -> np.ndarray:
    """The numbers 0 to count - 1, (count,), in an order that depends on `seed` and `parts` alone.

    It sorts the raw numbers of a PCG64, whose stream is fixed; numpy's own `permutation` may change
    from one release to the next, and with it a resumed run.

    Raises:
        ConfigError: `seed` is below 0.
    """
    if seed < 0:
        raise ConfigError(f"`seed` must be 0 or more, but is {seed}.")
    return np.argsort(np.random.PCG64([seed, *parts]).random_raw(count), kind="stable")
