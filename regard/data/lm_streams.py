"""One long text for language models: parallel streams, shuffled blocks, or sliding windows.

Models with a state read streams. Models without one are trained on blocks, each with a context of
its own, and evaluated over windows. In all of them every token of the text but the first, which
nothing precedes, is a target once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from regard.data.batches import IGNORE, StreamBatch
from regard.data.sampler import BatchSequence, MadeBatches, in_batches, permutation
from regard.data.token_arrays import TokenArray
from regard.errors import ConfigError, check_at_least


class ParallelStreams(BatchSequence[StreamBatch]):
    """A text as `batch_size` streams, read in parallel, for models with a state.

    The text is cut into streams of nearly equal length, and these into batches of
    `sequence_length` tokens: row b of a batch continues row b of the batch before, and the first
    batch is `fresh`. The last may be shorter. If the length does not divide, the first streams are
    one token longer, and in the last column the targets of the others are IGNORE.

    These are the batches of one pass, for evaluation; an `EpochSampler` repeats them endlessly.

    Raises:
        ConfigError: a number is below 1, or the text has fewer tokens than streams.
    """

    def __init__(self, text: TokenArray, *, batch_size: int, sequence_length: int):
        self.text, self.batch_size, self.sequence_length = text, batch_size, sequence_length
        self.predicted = _check(text, batch_size, sequence_length)
        if batch_size > self.predicted:
            raise ConfigError(
                f"`batch_size` must be at most {self.predicted}, the number of tokens to predict, "
                f"but is {batch_size}."
            )
        short, longer = divmod(self.predicted, batch_size)
        self._lengths = np.where(np.arange(batch_size) < longer, short + 1, short)  # (B,)
        self._starts = np.cumsum(self._lengths) - self._lengths  # (B,)

    def __len__(self) -> int:
        return -(-self.length // self.sequence_length)

    def batch(self, index: int) -> StreamBatch:
        first = index * self.sequence_length
        return self.window(first, first + self.sequence_length)

    def window(self, first: int, end: int) -> StreamBatch:
        """Tokens `first` to `end` of every stream, as far as it goes."""
        ends = np.minimum(self._lengths, end)
        return _batch(self.text, self._starts + first, ends - first, fresh=first == 0)

    @property
    def length(self) -> int:
        """Tokens of the longest stream."""
        return int(self._lengths[0])

    def epoch(self, number: int) -> ParallelStreams:
        """The batches of any epoch: a text is read in its own order."""
        return self

    def identity(self) -> dict[str, Any]:
        """What the order depends on. Checkpoints hold these names."""
        return _identity(self.text, self.batch_size, self.sequence_length)


FULL_SHARE, DEVIATION, SHORTEST = 0.95, 5.0, 5  # Merity et al. 2018, section 4.1


class VariableStreams:
    """`ParallelStreams` whose batches differ in length (Merity et al. 2018, section 4.1).

    A batch has a length from the normal distribution around `sequence_length` (in 95 of 100) or
    half of it, with the standard deviation 5, and at least 5; so no token is the first of its batch
    in every epoch. The lengths depend on `seed` and the epoch's number alone. For an
    `EpochSampler`.

    Raises:
        ConfigError: as of `ParallelStreams`.
    """

    def __init__(self, text: TokenArray, *, batch_size: int, sequence_length: int, seed: int):
        self.streams = ParallelStreams(text, batch_size=batch_size, sequence_length=sequence_length)
        self.seed = seed

    def epoch(self, number: int) -> BatchSequence[StreamBatch]:
        """The batches of epoch `number`, in order."""
        total, base = self.streams.length, self.streams.sequence_length
        ends = np.cumsum(_drawn_lengths(base, -(-total // SHORTEST), self.seed, number))
        bounds = [0, *ends[ends < total].tolist(), total]
        return MadeBatches(
            len(bounds) - 1, lambda index: self.streams.window(bounds[index], bounds[index + 1])
        )

    def identity(self) -> dict[str, Any]:
        """What the order depends on. Checkpoints hold these names."""
        return {**self.streams.identity(), "variable": True, "seed": self.seed}


def _drawn_lengths(base: int, count: int, *seeds: int) -> np.ndarray:
    """Lengths of batches, (count,); by raw numbers of a PCG64, as `permutation`."""
    raw = np.random.PCG64([*seeds]).random_raw(3 * count).reshape(3, count)
    share, radius, angle = ((raw >> np.uint64(11)) + 1.0) * 2.0**-53  # in (0, 1]
    normal = np.sqrt(-2 * np.log(radius)) * np.cos(2 * np.pi * angle)  # Box & Muller 1958
    mean = np.where(share <= FULL_SHARE, base, base / 2)
    return np.maximum(SHORTEST, (mean + DEVIATION * normal).astype(np.int64))


class WarmedStreams(BatchSequence[StreamBatch]):
    """A text as `batch_size` streams, each of which starts `warmup` tokens before its targets.

    A model whose state converges within `warmup` tokens then predicts as if it had read the whole
    text before. Row b predicts part b of what follows the first `warmup` tokens, in parts of equal
    length, the last one shorter; before that it reads the `warmup` tokens that precede the part.
    Those that precede part 0 are the beginning of the text and are targets, too, so that every
    token is a target once.

    The first batch is `fresh`, and the first `leading` batches are those before the parts.

    Raises:
        ConfigError: a number is below 1, or a row has nothing to predict.
    """

    def __init__(self, text: TokenArray, *, batch_size: int, sequence_length: int, warmup: int):
        self.text, self.batch_size, self.sequence_length = text, batch_size, sequence_length
        self.warmup, self.predicted = warmup, _check(text, batch_size, sequence_length)
        self.length = -(-(self.predicted - warmup) // batch_size)  # of a part
        if warmup < 1 or (batch_size - 1) * self.length >= self.predicted - warmup:
            raise ConfigError(
                f"`batch_size` and `warmup` must leave each row a part of the {self.predicted} "
                f"tokens, but are {batch_size} and {warmup}."
            )
        self._starts = np.arange(batch_size) * self.length
        self.leading = -(-warmup // sequence_length)

    def __len__(self) -> int:
        return self.leading + -(-self.length // self.sequence_length)

    def batch(self, index: int) -> StreamBatch:
        early = index < self.leading
        base, count = (0, index) if early else (self.warmup, index - self.leading)
        first = base + count * self.sequence_length
        end = min(first + self.sequence_length, self.warmup + (0 if early else self.length))
        starts = self._starts + first
        lengths = np.clip(self.predicted - starts, 0, end - first)
        batch = _batch(self.text, starts, lengths, fresh=index == 0)
        if early:
            batch.targets[1:] = IGNORE
        return batch


class ShuffledBlocks:
    """A text in shuffled blocks of `sequence_length` tokens, for training models without a state.

    Every batch is `fresh`. Blocks start at multiples of `sequence_length` in the first epoch; in
    each later one they are shifted by a random number of tokens, so that a token does not always
    have the same context. The first and the last block of the text may be shorter: they are filled
    up with targets of IGNORE. An epoch's last batch may have fewer blocks. The order depends on
    `seed` and the epoch's number alone. For an `EpochSampler`.

    Raises:
        ConfigError: a number is below 1, or the text has fewer than 2 tokens.
    """

    def __init__(self, text: TokenArray, *, batch_size: int, sequence_length: int, seed: int):
        self.text, self.batch_size, self.sequence_length = text, batch_size, sequence_length
        self.seed, self.predicted = seed, _check(text, batch_size, sequence_length)

    def epoch(self, number: int) -> BatchSequence[StreamBatch]:
        """The batches of epoch `number`, in order."""
        length = self.sequence_length
        shift = int(permutation(length, self.seed, number, 1)[0]) if number else 0
        cut = -shift % length  # tokens cut from the first block
        count = -(-(self.predicted + cut) // length)

        def make(blocks: np.ndarray) -> StreamBatch:
            ends = np.minimum(blocks * length - cut + length, self.predicted)
            starts = np.maximum(blocks * length - cut, 0)
            return _batch(self.text, starts, ends - starts, fresh=True)

        return in_batches(permutation(count, self.seed, number), self.batch_size, make)

    def identity(self) -> dict[str, Any]:
        """What the order depends on. Checkpoints hold these names."""
        return {**_identity(self.text, self.batch_size, self.sequence_length), "seed": self.seed}


class SlidingWindows(BatchSequence[StreamBatch]):
    """A text in windows of `window` tokens, one every `stride`, to evaluate models without a state.

    The first window predicts all its tokens; each other one predicts those after the end of the
    window before, with at least `window - stride` tokens of context. The last may be shorter.

    Raises:
        ConfigError: a number is below 1, or the stride is larger than the window.
    """

    def __init__(
        self, text: TokenArray, *, window: int, stride: int | None = None, batch_size: int = 1
    ):
        self.text, self.window, self.batch_size = text, window, batch_size
        self.stride = window if stride is None else stride
        self.predicted = _check(text, batch_size, window)
        if not 1 <= self.stride <= window:
            raise ConfigError(f"`stride` must be between 1 and {window}, but is {self.stride}.")
        last = max(0, self.predicted - window)
        self._starts = np.arange(0, last + self.stride, self.stride)
        self._ends = np.minimum(self._starts + window, self.predicted)

    def __len__(self) -> int:
        return -(-len(self._starts) // self.batch_size)

    def batch(self, index: int) -> StreamBatch:
        """Batch number `index`. Targets that another window predicts are IGNORE."""
        windows = slice(index * self.batch_size, (index + 1) * self.batch_size)
        starts, ends = self._starts[windows], self._ends[windows]
        batch = _batch(self.text, starts, ends - starts, fresh=True)
        predicted = np.concatenate([[0], self._ends[:-1]])[windows] - starts  # (B,)
        positions = np.arange(batch.targets.size(1))
        batch.targets[torch.from_numpy(positions < predicted[:, None])] = IGNORE
        return batch


def _batch(text: TokenArray, starts: np.ndarray, lengths: np.ndarray, fresh: bool) -> StreamBatch:
    """Row b: the `lengths[b]` tokens from `starts[b]` on, and the token that follows each."""
    steps = np.arange(lengths.max())
    positions = np.minimum(starts[:, None] + steps, len(text.ids) - 2)  # (B, T)
    tokens = text.ids[positions].astype(np.int64)
    targets = text.ids[positions + 1].astype(np.int64)
    targets[steps >= lengths[:, None]] = IGNORE
    return StreamBatch(torch.from_numpy(tokens), torch.from_numpy(targets), fresh)


def _check(text: TokenArray, batch_size: int, sequence_length: int) -> int:
    """The number of tokens to predict, after checking the arguments."""
    check_at_least(1, batch_size=batch_size, sequence_length=sequence_length)
    if len(text.ids) < 2:
        raise ConfigError(f"the text must have at least 2 tokens, but has {len(text.ids)}.")
    return len(text.ids) - 1


def _identity(text: TokenArray, batch_size: int, sequence_length: int) -> dict[str, Any]:
    return {"data": f"{text.checksum:08x}", "rows": batch_size, "steps": sequence_length}
