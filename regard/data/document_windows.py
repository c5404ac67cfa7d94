"""Windows of a corpus, inside documents, in an order that depends on seed and epoch alone."""

from typing import Any, NamedTuple

import numpy as np
import torch

from regard.data.batches import Sequences
from regard.data.sampler import BatchSequence, in_batches, permutation
from regard.data.token_arrays import TokenArray
from regard.errors import ConfigError, check_at_least


class WindowBatch(NamedTuple):
    """Windows of a corpus: their ids, (B, T) padded, and where in all ids each starts, (B,)."""

    sequences: Sequences
    starts: np.ndarray


class DocumentWindows:
    """Each document in windows of `length` tokens, shuffled; for an `EpochSampler`.

    The last window of a document has its rest. With `tokens.joined()` windows run across documents.
    The memory that this takes is 8 bytes a document, and 16 bytes a window for the order.

    tokens: a sequence for each document
    smallest: windows with fewer tokens are left out
    pad: the id that fills up shorter windows

    Raises:
        ConfigError: a number is below 1, `smallest` is above `length`, or no window is left.
    """

    def __init__(
        self,
        tokens: TokenArray,
        *,
        length: int,
        batch_size: int,
        seed: int,
        smallest: int = 1,
        pad: int | None = None,
    ):
        check_at_least(1, length=length, batch_size=batch_size, smallest=smallest)
        if smallest > length:
            raise ConfigError(f"`smallest` must be at most {length}, but is {smallest}.")
        self.tokens, self.length, self.batch_size = tokens, length, batch_size
        self.seed, self.smallest, self.pad = seed, smallest, pad
        sizes = np.diff(tokens.offsets)  # (documents,)
        sizes += length - smallest
        sizes //= length  # the number of windows of each
        self._ends = np.cumsum(sizes, out=sizes)  # the number of windows up to each
        self.count = int(self._ends[-1]) if len(sizes) else 0
        if not self.count:
            raise ConfigError(
                f"no document has as many tokens as a window needs, {smallest}. Give longer "
                "documents, or a tokenizer that keeps their characters."
            )

    def epoch(self, number: int) -> BatchSequence[WindowBatch]:
        """The batches of epoch `number`, in order."""
        return in_batches(self.order(number), self.batch_size, self.batch)

    def order(self, number: int) -> np.ndarray:
        """The numbers of all windows in the order of epoch `number`."""
        return permutation(self.count, self.seed, number)

    def identity(self) -> dict[str, Any]:
        """What the order depends on. Checkpoints hold these names."""
        data = f"{self.tokens.checksum:08x}"
        sizes = {"rows": self.batch_size, "steps": self.length, "smallest": self.smallest}
        return {"data": data, **sizes, "seed": self.seed}

    def batch(self, numbers: np.ndarray) -> WindowBatch:
        """The windows of these numbers, (B,), counted from the beginning of the corpus."""
        documents = np.searchsorted(self._ends, numbers, side="right")  # (B,)
        before = np.where(documents > 0, self._ends[documents - 1], 0)
        offsets = self.tokens.offsets
        starts = offsets[documents] + (numbers - before) * self.length
        lengths = np.minimum(offsets[documents + 1] - starts, self.length)
        positions = np.arange(lengths.max())
        inside = positions < lengths[:, None]  # (B, T)
        ids = np.full(inside.shape, self.pad or 0, np.int64)
        ids[inside] = self.tokens.ids[(starts[:, None] + positions)[inside]]
        sequences = Sequences(torch.from_numpy(ids), torch.from_numpy(lengths))
        return WindowBatch(sequences, starts)
