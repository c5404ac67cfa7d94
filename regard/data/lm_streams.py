"""One long text for language models: parallel streams, blocks, or windows that overlap.

Models with a state read streams; models without one learn from blocks, which stand for themselves,
and are measured over windows. All predict every token of the text once, except the first, which
nothing precedes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from regard.data.batches import IGNORE, StreamBatch
from regard.data.sampler import permutation
from regard.data.token_arrays import TokenArray
from regard.errors import ConfigError


class ParallelStreams(Sequence[Any]):
    """A text read in `rows` places at once, `steps` tokens at a time, for models with a state.

    The text is cut into `rows` streams of nearly equal length, and these into windows: row b of a
    window continues row b of the window before, and the first window is `fresh`. The last may be
    shorter than `steps`. Where the length does not divide, the first streams are one token longer,
    and in the last column the targets of the others are IGNORE.

    It is the sequence of windows of one pass, to evaluate; a `Cursor` over it passes without end.
    """

    def __init__(self, text: TokenArray, *, rows: int, steps: int):
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

    def epoch(self, number: int) -> ParallelStreams:
        """The windows of any epoch: the order of a text is its own."""
        return self

    def identity(self) -> dict[str, Any]:
        """What the order depends on."""
        return {"data": f"{self.text.checksum:08x}", "rows": self.rows, "steps": self.steps}


class WarmedStreams(Sequence[Any]):
    """A text read in `rows` places at once, each of them begun `lead` tokens early.

    A model with a state that forgets what stood so many tokens ago then knows at each place what it
    would know had it read the whole text up to there. Row b predicts part b of what follows the
    first `lead` tokens, in parts of one length, the last one shorter; before that it reads the
    `lead` tokens that precede. Those that precede the first row are the beginning of the text, and
    are predicted too: so every token is, once.

    It is a sequence of windows of `steps` tokens at most; the first is `fresh`, and the first
    `leading` of them are those before the parts.
    """

    def __init__(self, text: TokenArray, *, rows: int, steps: int, lead: int):
        self.text, self.rows, self.steps, self.lead = text, rows, steps, lead
        _check(text, rows, steps)
        self.predicted = len(text.ids) - 1
        self.length = -(-(self.predicted - lead) // rows)  # of a part
        if lead < 1 or (rows - 1) * self.length >= self.predicted - lead:
            raise ConfigError(
                f"`rows` and `lead` must leave each row a part of the {self.predicted} tokens, but "
                f"are {rows} and {lead}."
            )
        self._starts = np.arange(rows) * self.length  # where the rows begin to read
        self.leading = -(-lead // steps)

    def __len__(self) -> int:
        """The number of windows."""
        return self.leading + -(-self.length // self.steps)

    def __getitem__(self, index: Any) -> Any:
        """Window number `index`: tokens and targets (B, T)."""
        if not 0 <= index < len(self):
            raise IndexError(f"window must be from 0 to {len(self) - 1}, but is {index}")
        early = index < self.leading
        first = index * self.steps if early else self.lead + (index - self.leading) * self.steps
        end = min(first + self.steps, self.lead if early else self.lead + self.length)
        starts = self._starts + first
        lengths = np.clip(self.predicted - starts, 0, end - first)
        batch = _window(self.text, starts, lengths, fresh=index == 0)
        if early:
            batch.targets[1:] = IGNORE
        return batch


class ShuffledBlocks:
    """A text in blocks of `steps` tokens, shuffled, `rows` at a time, for models without a state.

    Every batch is `fresh`. Blocks begin at multiples of `steps` in the first epoch; in each later
    one they are moved by another number of tokens, so that a token is not always seen with the
    same context. The text's first and last blocks may be shorter: they are filled up with targets
    of IGNORE. An epoch's last batch may have fewer rows. The order depends on `seed` and the
    epoch's number alone. To be read through a `Cursor`.
    """

    def __init__(self, text: TokenArray, *, rows: int, steps: int, seed: int):
        self.text, self.rows, self.steps, self.seed = text, rows, steps, seed
        _check(text, rows, steps)
        self.predicted = len(text.ids) - 1

    def epoch(self, number: int) -> _BlockEpoch:
        """The batches of this epoch, in order."""
        moved = int(permutation(self.steps, self.seed, number, 1)[0]) if number else 0
        starts = np.arange(moved, self.predicted, self.steps)
        starts = np.concatenate([[0], starts]) if moved else starts
        lengths = np.diff(starts, append=self.predicted)
        order = permutation(len(starts), self.seed, number)
        return _BlockEpoch(self, starts[order], lengths[order])

    def identity(self) -> dict[str, Any]:
        """What the order depends on."""
        data = f"{self.text.checksum:08x}"
        return {"data": data, "rows": self.rows, "steps": self.steps, "seed": self.seed}


class _BlockEpoch(Sequence[Any]):
    def __init__(self, blocks: ShuffledBlocks, starts: np.ndarray, lengths: np.ndarray):
        self._blocks, self._starts, self._lengths = blocks, starts, lengths

    def __len__(self) -> int:
        return -(-len(self._starts) // self._blocks.rows)

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(f"batch must be from 0 to {len(self) - 1}, but is {index}")
        rows = slice(index * self._blocks.rows, (index + 1) * self._blocks.rows)
        return _window(self._blocks.text, self._starts[rows], self._lengths[rows], fresh=True)


class SlidingWindows(Sequence[Any]):
    """A text in windows of `window` tokens, `stride` apart, `rows` at a time, to measure it.

    The first window predicts all its tokens; each other one those that no window before it has
    reached, with at least `window - stride` tokens before them. The last may be shorter.
    """

    def __init__(self, text: TokenArray, *, window: int, stride: int | None = None, rows: int = 1):
        self.text, self.window, self.rows = text, window, rows
        self.stride = window if stride is None else stride
        _check(text, rows, window)
        if not 1 <= self.stride <= window:
            raise ConfigError(f"`stride` must be between 1 and {window}, but is {self.stride}.")
        self.predicted = len(text.ids) - 1
        further = max(0, self.predicted - window)
        self._starts = np.arange(0, further + self.stride, self.stride)
        self._ends = np.minimum(self._starts + window, self.predicted)

    def __len__(self) -> int:
        """The number of batches."""
        return -(-len(self._starts) // self.rows)

    def __getitem__(self, index: Any) -> Any:
        """Batch number `index`: tokens and targets (B, T); targets reached before are IGNORE."""
        if not 0 <= index < len(self):
            raise IndexError(f"batch must be from 0 to {len(self) - 1}, but is {index}")
        rows = slice(index * self.rows, (index + 1) * self.rows)
        starts, ends = self._starts[rows], self._ends[rows]
        batch = _window(self.text, starts, ends - starts, fresh=True)
        reached = np.concatenate([[0], self._ends[:-1]])[rows] - starts  # (B,)
        places = np.arange(batch.targets.size(1))
        batch.targets[torch.from_numpy(places < reached[:, None])] = IGNORE
        return batch


def _window(text: TokenArray, starts: np.ndarray, lengths: np.ndarray, fresh: bool) -> StreamBatch:
    """Row b: the `lengths[b]` tokens from `starts[b]` on, and the tokens that follow each."""
    steps = np.arange(lengths.max())
    places = np.minimum(starts[:, None] + steps, len(text.ids) - 2)  # (B, T)
    tokens = text.ids[places].astype(np.int64)
    targets = text.ids[places + 1].astype(np.int64)
    targets[steps >= lengths[:, None]] = IGNORE
    return StreamBatch(torch.from_numpy(tokens), torch.from_numpy(targets), fresh)


def _check(text: TokenArray, rows: int, steps: int) -> None:
    for name, value in (("rows", rows), ("steps", steps)):
        if value < 1:
            raise ConfigError(f"`{name}` must be at least 1, but is {value}.")
    if len(text.ids) < 2:
        raise ConfigError(f"the text must have at least 2 tokens, but has {len(text.ids)}.")
