"""Batches by token budget, with rows of similar lengths together or in random order.

What is counted: a batch of R rows costs R times the longest row of any of its columns, special
tokens included; that is the size of its largest padded array. A batch takes as many rows as cost at
most `budget`, and never more than `rows`. A row that alone costs more is a batch of its own;
`oversized` says how many are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from regard.data.batches import PairBatch
from regard.data.sampler import EpochSampler, permutation
from regard.data.token_arrays import TokenArray
from regard.errors import ConfigError

Make = Callable[..., Any]  # a batch from one Sequences for each column


@dataclass(frozen=True, eq=False)
class PaddedBatches(Sequence[Any]):
    """Batches of padded rows, made when asked for: batch i holds the rows `rows[i]`, in order."""

    columns: Sequence[TokenArray]
    pads: Sequence[int | None]
    make: Make
    rows: Sequence[np.ndarray]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        rows = self.rows[index]
        columns = zip(self.columns, self.pads, strict=True)
        return self.make(*(column.padded(rows, pad) for column, pad in columns))

    @property
    def padding(self) -> float:
        """The part, from 0 to 1, of the places in all arrays that holds no token."""
        tokens = sum(len(column.ids) for column in self.columns)
        longest = (column.lengths[rows].max() * len(rows) for column, rows in self._parts())
        return 1 - tokens / int(sum(longest))

    def _parts(self) -> list[tuple[TokenArray, np.ndarray]]:
        return [(column, rows) for column in self.columns for rows in self.rows]


class Buckets:
    """Shuffled batches of padded rows, each row once an epoch; to be read through a `EpochSampler`.

    An epoch shuffles all rows, cuts them into pools of `pool` rows, sorts each pool by length, cuts
    it into batches within the budget, and shuffles all batches. The order depends on `seed` and the
    epoch's number alone. `pads` has one id for each column. A larger pool needs less padding, a
    smaller one mixes better; without pools (None) batches are cut from the shuffled rows as they
    come, so that which rows meet in a batch does not depend on their lengths.
    """

    def __init__(
        self,
        columns: Sequence[TokenArray],
        pads: Sequence[int | None],
        *,
        budget: int,
        seed: int,
        rows: int = sys.maxsize,
        pool: int | None = 1 << 14,
        make: Make = PairBatch,
    ):
        for name, count in (("pool", pool), ("rows", rows)):
            if count is not None and count < 1:
                raise ConfigError(f"`{name}` must be at least 1 row, but is {count}.")
        self.columns, self.pads, self.make = tuple(columns), tuple(pads), make
        self.budget, self.seed, self.pool, self.rows = budget, seed, pool, rows
        self.lengths = _lengths(columns, budget)

    @property
    def oversized(self) -> int:
        """Rows that alone cost more than the budget: each is a batch of its own."""
        return int((self.lengths.max(0) > self.budget).sum())

    def epoch(self, number: int) -> PaddedBatches:
        """The batches of this epoch, in order."""
        shuffled = permutation(self.lengths.shape[1], self.seed, number, 0)
        parts: list[np.ndarray] = []
        for rows in self._pools(shuffled):
            parts += _cut(rows, self.lengths[:, rows], self.budget, self.rows)
        ordered = [parts[i] for i in permutation(len(parts), self.seed, number, 1)]
        return PaddedBatches(self.columns, self.pads, self.make, ordered)

    def _pools(self, shuffled: np.ndarray) -> Iterator[np.ndarray]:
        """The parts from which batches are cut, each sorted by length; all rows as they are."""
        if self.pool is None:
            yield shuffled
            return
        for pool in np.split(shuffled, range(self.pool, len(shuffled), self.pool)):
            yield pool[_by_length(self.lengths[:, pool])]

    def pooled_as(self, pool: int | None) -> Buckets:
        """The same rows and limits in the order that other pools give."""
        return Buckets(
            self.columns,
            self.pads,
            budget=self.budget,
            seed=self.seed,
            rows=self.rows,
            pool=pool,
            make=self.make,
        )

    def identity(self) -> dict[str, Any]:
        """What the order depends on."""
        return {
            "data": "-".join(f"{column.checksum:08x}" for column in self.columns),
            "rows": self.lengths.shape[1],
            "budget": self.budget,
            "rows of a batch": self.rows,
            "pool": self.pool,
            "seed": self.seed,
        }


class BucketSampler(EpochSampler):
    """A cursor for trainings that choose the size of pools by device.

    A saved position is gone on from in the order it was saved in, even where this device, or this
    version of the library, would choose other pools.
    """

    data: Buckets

    def restore(self, position: dict[str, Any]) -> None:
        """Go where `position()` said; raises an error for a position over other data."""
        pool = position.get("pool", self.data.pool)
        if pool is None or (type(pool) is int and pool >= 1):
            self.data = self.data.pooled_as(pool)
        super().restore(position)


def sorted_batches(
    columns: Sequence[TokenArray],
    pads: Sequence[int | None],
    *,
    budget: int,
    make: Make = PairBatch,
) -> PaddedBatches:
    """All rows once, longest first, not shuffled: for evaluation.

    `zip(batches.rows, batches)` gives each batch with the numbers of its rows, by which results are
    put back in order.
    """
    lengths = _lengths(columns, budget)
    order = _by_length(lengths)
    parts = _cut(order, lengths[:, order], budget)
    return PaddedBatches(tuple(columns), tuple(pads), make, parts[::-1])


def _lengths(columns: Sequence[TokenArray], budget: int) -> np.ndarray:
    """(columns, rows) the length of every row in every column."""
    if budget < 1:
        raise ConfigError(f"`budget` must be at least 1 token, but is {budget}.")
    counts = {len(column) for column in columns}
    if len(counts) != 1 or counts == {0}:
        raise ConfigError(f"columns must have the same number of rows, not 0, but have {counts}.")
    return np.stack([column.lengths for column in columns])


def _by_length(lengths: np.ndarray) -> np.ndarray:
    """An order of the rows in which neighbours are alike in every column.

    By the longest field first, which decides what a row costs; then by how much longer the first
    field is than the last, upwards and downwards in turn, so that one length leads to the next.
    """
    longest, difference = lengths.max(0), lengths[0] - lengths[-1]
    return np.lexsort((np.where(longest % 2, -difference, difference), longest))


def _cut(
    rows: np.ndarray, lengths: np.ndarray, budget: int, most: int = sys.maxsize
) -> list[np.ndarray]:
    """Rows, as they are ordered, in runs of at most `most` rows that cost at most the budget (or
    one row).
    """
    longest, cuts, start = lengths.max(0), [], 0
    while start < len(rows):
        few = longest[start : start + min(most, max(1, budget // max(1, longest[start])))]
        costs = np.maximum.accumulate(few) * np.arange(1, len(few) + 1)
        fit = np.searchsorted(costs, budget, side="right")
        start += max(1, int(fit))
        cuts.append(start)
    return np.split(rows, cuts[:-1])
