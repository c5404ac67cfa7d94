"""Long texts for language models: parallel streams, shuffled blocks, sliding windows.

Models with a state read streams. Models without one are trained on blocks, each with a context of
its own, and evaluated over windows. In all of them every token of the text but the first, which
nothing precedes, is a target once.

`BidirectionalStreams` has sentences for two models at once: one reads forward, the other backward.

    forward     <S> w1 w2 ... wn      is to predict      w1 w2 ... wn </S>
    backward    </S> wn ... w2 w1     is to predict      wn ... w2 w1 <S>

Either direction reads a sentence of n words in n + 1 steps, so that both are at the same sentences
all the time. As in the authors' program sentences keep their order in both directions.

`DocumentWindows` are windows of a corpus, inside documents.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from regard.data.batches import IGNORE, RowBatch, Sequences, StreamBatch
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
        self._lengths, self._starts = _streams(self.predicted, batch_size)

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


def _streams(count: int, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    """The lengths and the starts of streams of nearly equal length, (B,) both.

    Raises:
        ConfigError: there are more streams than tokens to predict.
    """
    if batch_size > count:
        raise ConfigError(
            f"`batch_size` must be at most {count}, the number of tokens to predict, but is "
            f"{batch_size}."
        )
    short, longer = divmod(count, batch_size)
    lengths = np.where(np.arange(batch_size) < longer, short + 1, short)
    return lengths, np.cumsum(lengths) - lengths


def _check(text: TokenArray, batch_size: int, sequence_length: int) -> int:
    """The number of tokens to predict, after checking the arguments."""
    check_at_least(1, batch_size=batch_size, sequence_length=sequence_length)
    if len(text.ids) < 2:
        raise ConfigError(f"the text must have at least 2 tokens, but has {len(text.ids)}.")
    return len(text.ids) - 1


def _identity(text: TokenArray, batch_size: int, sequence_length: int) -> dict[str, Any]:
    return {"data": f"{text.checksum:08x}", "rows": batch_size, "steps": sequence_length}


# ---------------------------------------------------------------------------------- both directions


@dataclass(frozen=True, eq=False)
class BidirectionalBatch(RowBatch):
    """B texts, read in both directions.

    tokens: 2B sequences, first those of the forward direction.
    targets: (2B, T), what follows each token in its direction; `IGNORE` behind the end of a row.
    fresh: whether a state carried from the batch before must be dropped.
    restarts: (B,) bool, the texts whose carried state alone starts from zeros again; None: none.
    """

    tokens: Sequences
    targets: Tensor
    fresh: bool
    restarts: Tensor | None = None

    @cached_property
    def count(self) -> int:
        """Predicted tokens of one direction."""
        return int(self.tokens.lengths.sum()) // 2

    def __len__(self) -> int:
        """The number of texts, B."""
        return len(self.tokens) // 2

    def select(self, rows: Tensor) -> Self:
        """The texts of these indices, in both directions."""
        both = torch.cat([rows, rows + len(self)])
        restarts = None if self.restarts is None else self.restarts[rows]
        tokens, targets = self.tokens.select(both), self.targets[both]
        return replace(self, tokens=tokens, targets=targets, restarts=restarts)


@dataclass(frozen=True, eq=False)
class BidirectionalText:
    """Sentences end to end.

    read: of each sentence bos, its words and eos.
    predicted: the same ids as targets, (N,): a word outside of the vocabulary is the unknown token.
    """

    read: TokenArray
    predicted: np.ndarray

    @classmethod
    def of(
        cls, sentences: Iterable[Sequence[int]], bos: int, eos: int, vocab_size: int, unknown: int
    ) -> BidirectionalText:
        """Of sentences as ids, those of `vocab_size` and above of unknown words; empty ones are
        left out.
        """
        read = TokenArray.of([bos, *ids, eos] for ids in sentences if len(ids))
        return cls(read, np.where(read.ids < vocab_size, read.ids, unknown))

    @cached_property
    def ends(self) -> np.ndarray:
        """(sentences + 1,): the number of predictions of all sentences before each one."""
        return self.read.offsets - np.arange(len(self.read.offsets))

    @property
    def count(self) -> int:
        """The predictions of one direction."""
        return int(self.ends[-1])

    def batch(self, starts: np.ndarray, lengths: np.ndarray, fresh: bool) -> BidirectionalBatch:
        """Row b: the `lengths[b]` predictions from number `starts[b]` on, (B,) both."""
        steps = np.arange(lengths.max(initial=0))
        numbers = np.minimum(starts[:, None] + steps, self.count - 1)  # (B, T)
        sentence = np.searchsorted(self.ends, numbers, "right") - 1
        inside = numbers - self.ends[sentence]
        first, last = self.read.offsets[sentence] + inside, self.read.offsets[sentence + 1] - 1
        back = last - inside
        tokens = self.read.ids[np.concatenate([first, back])].astype(np.int64)
        targets = self.predicted[np.concatenate([first + 1, back - 1])].astype(np.int64)
        both = np.concatenate([lengths, lengths])
        targets[steps >= both[:, None]] = IGNORE
        rows = Sequences(torch.from_numpy(tokens), torch.from_numpy(both))
        return BidirectionalBatch(rows, torch.from_numpy(targets), fresh)


class BidirectionalStreams(BatchSequence[BidirectionalBatch]):
    """A text as `batch_size` streams of nearly equal length, `sequence_length` predictions a batch.

    Row b of a batch continues row b of the batch before, and the first batch is `fresh`. The first
    streams are one prediction longer where the number does not divide. For an `EpochSampler`.

    restart_every: batches after which the state of a stream starts from zeros again, one stream
        after the other; 0: never.

    Raises:
        ConfigError: a number is out of range, or the text has fewer predictions than streams.
    """

    def __init__(
        self,
        text: BidirectionalText,
        *,
        batch_size: int,
        sequence_length: int,
        restart_every: int = 0,
    ):
        check_at_least(1, batch_size=batch_size, sequence_length=sequence_length)
        check_at_least(0, restart_every=restart_every)
        self.restart_every = restart_every
        self.text, self.batch_size, self.sequence_length = text, batch_size, sequence_length
        self._lengths, self._starts = _streams(text.count, batch_size)

    def __len__(self) -> int:
        return -(-int(self._lengths[0]) // self.sequence_length)

    def batch(self, index: int) -> BidirectionalBatch:
        first = index * self.sequence_length
        ends = np.minimum(self._lengths, first + self.sequence_length)
        batch = self.text.batch(self._starts + first, ends - first, fresh=index == 0)
        if not self.restart_every:
            return batch
        turns = index + torch.arange(self.batch_size)
        return replace(batch, restarts=turns % self.restart_every == 0)

    def epoch(self, number: int) -> BidirectionalStreams:
        """The batches of any epoch: a text is read in its own order."""
        return self

    def identity(self) -> dict[str, Any]:
        """What the order depends on. Checkpoints hold these names."""
        names = {"rows": self.batch_size, "steps": self.sequence_length}
        names["restart_every"] = self.restart_every
        return {"data": f"{self.text.read.checksum:08x}", **names}


class SeparateSentences(BatchSequence[BidirectionalBatch]):
    """Each sentence alone, the longest first, in batches of at most `max_tokens`, padding included.

    Every batch is `fresh`. `rows` are the numbers of the sentences of each batch.
    """

    def __init__(self, text: BidirectionalText, *, max_tokens: int):
        self.text = text
        lengths = np.diff(text.ends)
        order = np.argsort(-lengths, kind="stable")
        self.rows: list[np.ndarray] = []
        while len(order):
            count = max(1, max_tokens // int(lengths[order[0]]))
            self.rows.append(order[:count])
            order = order[count:]

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, index: int) -> BidirectionalBatch:
        rows = self.rows[index]
        lengths = np.diff(self.text.ends)[rows]
        return self.text.batch(self.text.ends[rows], lengths, fresh=True)


# ---------------------------------------------------------------------------------------- documents


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
