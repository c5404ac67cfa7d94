"""One long text for language models: parallel streams, or blocks that stand for themselves.

Both predict every token of the text once an epoch, except the first, which nothing precedes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from regard.data.batches import IGNORE, StreamBatch
from regard.data.cursor import permutation
from regard.data.store import Tokens
from regard.errors import ConfigError


class Streams(Sequence[Any]):
    """A text read in `rows` places at once, `steps` tokens at a time, for models with a state.

    The text is cut into `rows` streams of nearly equal length, and these into windows: row b of a
    window continues row b of the window before, and the first window is `fresh`. The last may be
    shorter than `steps`. Where the length does not divide, the first streams are one token longer,
    and in the last column the targets of the others are IGNORE.

    It is the sequence of windows of one pass, to evaluate; a `Cursor` over it passes without end.
    """

    def __init__(self, text: Tokens, *, rows: int, steps: int):
        self.text, self.rows, self.steps = text, rows, steps
        _check(text, rows, steps)
        self.predicted = len(text.ids) - 1
        if rows > self.predicted:
            raise ConfigError(
                f"`rows` must be at most {self.predicted}, the tokens to predict, but is {rows}."
            )
        short, longer = divmod(self.predicted, rows)
        self._lengths = np.where(np.arange(rows) < longer, short + 1, short)  # (B,)
        self._starts = np.cumsum(self._lengths) - self._lengths  # (B,)

    def __len__(self) -> int:
        """The number of windows."""
        return -(-int(self._lengths[0]) // self.steps)

    def __getitem__(self, index: Any) -> Any:
        """Window number `index`: tokens and targets (B, T), T the steps or what is left."""
        if not 0 <= index < len(self):
            raise IndexError(f"window must be from 0 to {len(self) - 1}, but is {index}")
        first = index * self.steps
        ends = np.minimum(self._lengths, first + self.steps)
        return _window(self.text, self._starts + first, ends - first, fresh=index == 0)

    def epoch(self, number: int) -> Streams:
        """The windows of any epoch: the order of a text is its own."""
        return self

    def identity(self) -> dict[str, Any]:
        """What the order depends on."""
        return {"data": f"{self.text.checksum:08x}", "rows": self.rows, "steps": self.steps}


class Blocks:
    """A text in blocks of `steps` tokens, shuffled, `rows` at a time, for models without a state.

    Every batch is `fresh`. The text's last block may be shorter: it is filled up with targets of
    IGNORE. An epoch's last batch may have fewer rows. The order depends on `seed` and the epoch's
    number alone. To be read through a `Cursor`.
    """

    def __init__(self, text: Tokens, *, rows: int, steps: int, seed: int):
        self.text, self.rows, self.steps, self.seed = text, rows, steps, seed
        _check(text, rows, steps)
        self.predicted = len(text.ids) - 1

    def epoch(self, number: int) -> _ShuffledBlocks:
        """The batches of this epoch, in order."""
        blocks = -(-self.predicted // self.steps)
        return _ShuffledBlocks(self, permutation(blocks, self.seed, number) * self.steps)

    def identity(self) -> dict[str, Any]:
        """What the order depends on."""
        data = f"{self.text.checksum:08x}"
        return {"data": data, "rows": self.rows, "steps": self.steps, "seed": self.seed}


class _ShuffledBlocks(Sequence[Any]):
    def __init__(self, blocks: Blocks, starts: np.ndarray):
        self._blocks, self._starts = blocks, starts

    def __len__(self) -> int:
        return -(-len(self._starts) // self._blocks.rows)

    def __getitem__(self, index: Any) -> Any:
        blocks = self._blocks
        starts = self._starts[index * blocks.rows : (index + 1) * blocks.rows]
        if not len(starts):
            raise IndexError(f"batch must be from 0 to {len(self) - 1}, but is {index}")
        lengths = np.minimum(blocks.steps, blocks.predicted - starts)
        return _window(blocks.text, starts, lengths, fresh=True)


def _window(text: Tokens, starts: np.ndarray, lengths: np.ndarray, fresh: bool) -> StreamBatch:
    """Row b: the `lengths[b]` tokens from `starts[b]` on, and the tokens that follow each."""
    steps = np.arange(lengths.max())
    places = np.minimum(starts[:, None] + steps, len(text.ids) - 2)  # (B, T)
    tokens = text.ids[places].astype(np.int64)
    targets = text.ids[places + 1].astype(np.int64)
    targets[steps >= lengths[:, None]] = IGNORE
    return StreamBatch(torch.from_numpy(tokens), torch.from_numpy(targets), fresh)


def _check(text: Tokens, rows: int, steps: int) -> None:
    for name, value in (("rows", rows), ("steps", steps)):
        if value < 1:
            raise ConfigError(f"`{name}` must be at least 1, but is {value}.")
    if len(text.ids) < 2:
        raise ConfigError(f"the text must have at least 2 tokens, but has {len(text.ids)}.")
