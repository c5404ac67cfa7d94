"""Endless batches, epoch after epoch, that can stop after any batch and resume exactly.

`Buckets` makes batches within a token budget, of similar lengths or in random order. A batch of B
examples costs B times the longest sequence of any of its columns, special tokens included: the size
of its largest padded array. A batch takes as many examples as cost at most `max_tokens`, and never
more than `batch_size`. An example that alone costs more is a batch of its own; `Buckets.oversized`
counts those.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Protocol, TypeVar

import numpy as np

from regard.data.batches import PairBatch
from regard.data.token_arrays import TokenArray
from regard.errors import CheckpointError, ConfigError, check_at_least

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


# ------------------------------------------------------------------------------------------ buckets


Make = Callable[..., Any]  # a batch from one Sequences for each column


@dataclass(frozen=True, eq=False)
class PaddedBatches(BatchSequence[Any]):
    """Batches of padded sequences: batch i holds the examples `indices[i]`, in order.

    columns: the sequences of all examples, an array for each column
    pads: the padding id of each column; None: 0
    make: makes a batch of one `Sequences` for each column
    """

    columns: Sequence[TokenArray]
    pads: Sequence[int | None]
    make: Make
    indices: Sequence[np.ndarray]

    def __len__(self) -> int:
        return len(self.indices)

    def batch(self, index: int) -> Any:
        examples = self.indices[index]
        columns = zip(self.columns, self.pads, strict=True)
        return self.make(*(column.padded(examples, pad) for column, pad in columns))


@dataclass(frozen=True, eq=False)
class Buckets:
    """Shuffled batches of padded sequences, each example once an epoch, for an `EpochSampler`.

    An epoch shuffles all examples, cuts them into pools, sorts each pool by length, cuts it into
    batches, and shuffles all batches. The order depends on `seed` and the epoch's number alone.

    columns: the sequences of all examples, an array for each column
    pads: the padding id of each column; None: 0
    max_tokens: what a batch may cost (see this module)
    batch_size: the most examples of a batch
    pool: examples of a pool. A larger one needs less padding, a smaller one shuffles better. None:
        batches are cut from the shuffled examples, so that lengths do not decide which ones meet
    make: makes a batch of one `Sequences` for each column

    Raises:
        ConfigError: a number is below 1, or the columns differ in their number of examples.
    """

    columns: Sequence[TokenArray]
    pads: Sequence[int | None]
    _: KW_ONLY
    max_tokens: int
    seed: int
    batch_size: int = sys.maxsize
    pool: int | None = 1 << 14
    make: Make = PairBatch
    lengths: np.ndarray = field(init=False, repr=False)  # (columns, examples)

    def __post_init__(self) -> None:
        check_at_least(1, pool=self.pool, batch_size=self.batch_size)
        object.__setattr__(self, "lengths", _lengths(self.columns, self.max_tokens))

    @property
    def oversized(self) -> int:
        """The number of examples that alone cost more than `max_tokens`."""
        return int((self.lengths.max(0) > self.max_tokens).sum())

    def epoch(self, number: int) -> PaddedBatches:
        """The batches of epoch `number`, in order."""
        shuffled = permutation(self.lengths.shape[1], self.seed, number, 0)
        batches: list[np.ndarray] = []
        for pool in self._pools(shuffled):
            batches += cut(pool, self.lengths[:, pool], self.max_tokens, self.batch_size)
        ordered = [batches[i] for i in permutation(len(batches), self.seed, number, 1)]
        return PaddedBatches(self.columns, self.pads, self.make, ordered)

    def _pools(self, shuffled: np.ndarray) -> Iterator[np.ndarray]:
        if self.pool is None:
            yield shuffled
            return
        for pool in np.split(shuffled, range(self.pool, len(shuffled), self.pool)):
            yield pool[_by_length(self.lengths[:, pool])]

    def identity(self) -> dict[str, Any]:
        """What the order depends on. Checkpoints hold these names."""
        return {
            "data": "-".join(f"{column.checksum:08x}" for column in self.columns),
            "rows": self.lengths.shape[1],
            "budget": self.max_tokens,
            "rows of a batch": self.batch_size,
            "pool": self.pool,
            "seed": self.seed,
        }


class BucketSampler(EpochSampler):
    """An `EpochSampler` for training that chooses the size of the pools by device.

    A saved position is resumed with the pools that it was saved with, even if this device, or this
    version of the library, would choose others.
    """

    data: Buckets

    def restore(self, position: dict[str, Any]) -> None:
        pool = position.get("pool", self.data.pool)
        if pool is None or (type(pool) is int and pool >= 1):
            self.data = replace(self.data, pool=pool)
        super().restore(position)


def sorted_batches(
    columns: Sequence[TokenArray],
    pads: Sequence[int | None],
    *,
    max_tokens: int,
    make: Make = PairBatch,
) -> PaddedBatches:
    """All examples once, longest first, for evaluation. The arguments are those of `Buckets`.

    `zip(batches.indices, batches)` gives each batch with the indices of its examples, by which
    results are put back in order.
    """
    lengths = _lengths(columns, max_tokens)
    order = _by_length(lengths)
    return PaddedBatches(columns, pads, make, cut(order, lengths[:, order], max_tokens)[::-1])


def _lengths(columns: Sequence[TokenArray], max_tokens: int) -> np.ndarray:
    """(columns, examples) the length of every sequence in every column."""
    check_at_least(1, max_tokens=max_tokens)
    counts = {len(column) for column in columns}
    if len(counts) != 1 or counts == {0}:
        raise ConfigError(f"columns must have the same number of rows, not 0, but have {counts}.")
    return np.stack([column.lengths for column in columns])


def _by_length(lengths: np.ndarray) -> np.ndarray:
    """An order in which neighbours have similar lengths in every column.

    By the longest column first, which decides what an example costs; then by how much longer the
    first column is than the last, ascending and descending in turn, so that one length leads to the
    next.
    """
    longest, difference = lengths.max(0), lengths[0] - lengths[-1]
    return np.lexsort((np.where(longest % 2, -difference, difference), longest))


def cut(
    examples: np.ndarray, lengths: np.ndarray, max_tokens: int, batch_size: int = sys.maxsize
) -> list[np.ndarray]:
    """The examples, in their order, cut into batches within both limits (or of one example)."""
    longest, cuts, start = lengths.max(0), [], 0
    while start < len(examples):
        count = min(batch_size, max(1, max_tokens // max(1, longest[start])))
        nearby = longest[start : start + count]
        costs = np.maximum.accumulate(nearby) * np.arange(1, len(nearby) + 1)
        start += max(1, int(np.searchsorted(costs, max_tokens, side="right")))
        cuts.append(start)
    return np.split(examples, cuts[:-1])
