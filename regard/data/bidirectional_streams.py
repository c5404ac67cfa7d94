"""Sentences for two language models at once: one reads forward, the other backward.

    forward     <S> w1 w2 ... wn      is to predict      w1 w2 ... wn </S>
    backward    </S> wn ... w2 w1     is to predict      wn ... w2 w1 <S>

Either direction reads a sentence of n words in n + 1 steps, so that both are at the same sentences
all the time. As in the authors' program sentences keep their order in both directions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.data.batches import IGNORE, Sequences, moved
from regard.data.sampler import BatchSequence
from regard.data.token_arrays import TokenArray
from regard.errors import ConfigError, check_at_least


@dataclass(frozen=True, eq=False)
class BidirectionalBatch:
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

    def select(self, rows: Tensor) -> BidirectionalBatch:
        """The texts of these indices, in both directions."""
        both = torch.cat([rows, rows + len(self)])
        restarts = None if self.restarts is None else self.restarts[rows]
        tokens, targets = self.tokens.select(both), self.targets[both]
        return BidirectionalBatch(tokens, targets, self.fresh, restarts)

    def to(self, device: torch.device | str) -> BidirectionalBatch:
        """The same on another device."""
        restarts = None if self.restarts is None else moved(self.restarts, device)
        targets = moved(self.targets, device)
        return BidirectionalBatch(self.tokens.to(device), targets, self.fresh, restarts)


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
        if batch_size > text.count:
            raise ConfigError(
                f"`batch_size` must be at most {text.count}, the number of tokens to predict, but "
                f"is {batch_size}."
            )
        self.text, self.batch_size, self.sequence_length = text, batch_size, sequence_length
        short, longer = divmod(text.count, batch_size)
        self._lengths = np.where(np.arange(batch_size) < longer, short + 1, short)  # (B,)
        self._starts = np.cumsum(self._lengths) - self._lengths  # (B,)

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
