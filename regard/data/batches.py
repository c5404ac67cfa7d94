"""What a model is given: token ids and lengths, side by side, as values that never change.

Every batch is a frozen dataclass of int64 tensors. Rows are padded on the right; the lengths, not
the padding id, say where a row ends, so that a padding id inside a text can do no harm.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from regard.errors import RegardError

IGNORE = -100  # a target with this value is not predicted: no loss, no count


def moved(tensor: Tensor, device: torch.device | str) -> Tensor:
    """On another device. From pinned memory a GPU fetches it while the processor goes on."""
    if tensor.device.type == "cpu" and torch.device(device).type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


@dataclass(frozen=True, eq=False)
class Sequences:
    """Rows of token ids, padded on the right: `ids` (B, T) int64, `lengths` (B,) int64.

    `segments` (B, T) int64 says which of several texts each token belongs to, for encoders that
    want to know (BERT's token types); None: all tokens belong to the first.
    """

    ids: Tensor
    lengths: Tensor
    segments: Tensor | None = None

    @classmethod
    def of(cls, rows: Iterable[Sequence[int]], pad: int | None) -> Sequences:
        """Rows of any lengths (empty ones too), padded with the id `pad` to the longest.

        Where no piece is there for padding (None, as in GPT-2), 0 stands there; nobody reads it.
        """
        rows = list(rows)
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        ids = np.full((len(rows), int(lengths.max(initial=0))), pad or 0, np.int64)
        for row, values in zip(ids, rows, strict=True):
            row[: len(values)] = values
        return cls(torch.from_numpy(ids), torch.from_numpy(lengths))

    @classmethod
    def masked(cls, ids: Tensor, mask: Tensor, segments: Tensor | None = None) -> Sequences:
        """Rows as other libraries hold them: (B, T) ids and a mask, 1 for tokens, 0 for padding.

        The padding may stand on either side; here it comes to stand on the right.

        Raises:
            RegardError: the shapes differ, or a row has padding between its tokens.
        """
        if not ids.shape == mask.shape == (ids if segments is None else segments).shape:
            raise RegardError("`ids`, `mask` and `segments` must have one shape (B, T).")
        keep, places = mask.bool(), torch.arange(ids.size(1), device=ids.device)
        lengths = keep.sum(1)
        first = torch.where(lengths > 0, keep.int().argmax(1), 0)
        inside = (places >= first[:, None]) & (places < (first + lengths)[:, None])
        if not torch.equal(keep, inside):
            raise RegardError("`mask` must leave the tokens of a row side by side, without holes.")
        shifted = (places + first[:, None]) % max(1, ids.size(1))  # (B, T)
        moved = None if segments is None else segments.gather(1, shifted)
        return cls(ids.gather(1, shifted), lengths, moved)

    @classmethod
    def alike(cls, rows: int, words: int) -> Sequences:
        """Rows of one length that say nothing: for estimates of what passing them costs."""
        return cls(torch.ones(rows, words, dtype=torch.long), torch.full((rows,), words))

    @property
    def keep(self) -> Tensor:
        """(B, T) bool, True where there is a token and False where there is padding."""
        positions = torch.arange(self.ids.shape[1], device=self.ids.device)
        return positions < self.lengths[:, None]

    def __len__(self) -> int:
        """The number of rows, B."""
        return self.ids.shape[0]

    def select(self, rows: Tensor) -> Sequences:
        """The rows of these indices: repeated, dropped or in another order; the width stays."""
        segments = None if self.segments is None else self.segments[rows]
        return Sequences(self.ids[rows], self.lengths[rows], segments)

    def to(self, device: torch.device | str) -> Sequences:
        """The same rows on another device."""
        segments = None if self.segments is None else moved(self.segments, device)
        return Sequences(moved(self.ids, device), moved(self.lengths, device), segments)


@dataclass(frozen=True, eq=False)
class PairBatch:
    """Sentences and their translations, row by row.

    A target row is `bos … eos`: the decoder reads `target.ids[:, :-1]` and is to predict
    `target.ids[:, 1:]`.
    """

    source: Sequences
    target: Sequences

    @cached_property
    def count(self) -> int:
        """Predicted tokens: the sum over rows of the target's length minus one."""
        return int(self.target.lengths.sum()) - len(self.target)

    def __len__(self) -> int:
        """The number of pairs, B."""
        return len(self.target)

    def to(self, device: torch.device | str) -> PairBatch:
        """The same pairs on another device; the count goes along, so that nobody waits for it."""
        return _with_count(PairBatch(self.source.to(device), self.target.to(device)), self.count)


@dataclass(frozen=True, eq=False)
class StreamBatch:
    """A window over B texts read in parallel: `tokens` (B, T) and `targets` (B, T), the next ones.

    `fresh` says that the streams start (again): a state carried from the batch before must be
    dropped. Otherwise row b continues row b of the batch before. Targets of `IGNORE` do not count;
    they occur in the last column of a pass, where some streams are one token shorter.
    """

    tokens: Tensor
    targets: Tensor
    fresh: bool

    @cached_property
    def count(self) -> int:
        """Predicted tokens: B * T, less the targets to ignore."""
        return int((self.targets != IGNORE).sum())

    def __len__(self) -> int:
        """The number of streams, B."""
        return self.tokens.shape[0]

    def to(self, device: torch.device | str) -> StreamBatch:
        """The same window on another device; the count goes along, so that nobody waits for it."""
        tokens, targets = moved(self.tokens, device), moved(self.targets, device)
        return _with_count(StreamBatch(tokens, targets, self.fresh), self.count)


class Batches(Protocol):
    """Batches without end, epoch after epoch, that can stop anywhere and go on from there.

    The order depends on the seed alone. `restore(position())` on a source made with the same
    arguments gives exactly the batches that would have come, without computing those before.
    """

    @property
    def epoch(self) -> int: ...  # that of the batch that came last, from 0
    @property
    def batches_per_epoch(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __next__(self) -> Any: ...
    def position(self) -> dict[str, Any]: ...
    def restore(self, position: dict[str, Any]) -> None: ...


def _with_count(batch: Any, count: int) -> Any:
    vars(batch)["count"] = count
    return batch
