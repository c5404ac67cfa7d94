"""Span corruption: T5's pre-training pairs (Raffel et al. 2020, section 3.1.4).

    text     Thank you for inviting me to your party last week .
    source   Thank you <X> me to your party <Y> week .
    target   <X> for inviting <Y> last <Z>

Spans of tokens are dropped. In the source a sentinel stands for each span; the target holds the
spans, each behind its sentinel. The lengths of the spans and of what is between them are random
partitions, all of them equally probable, as in the published program.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from regard.data.batches import PairBatch, Sequences
from regard.data.document_windows import DocumentWindows, WindowBatch
from regard.data.sampler import BatchSequence, MadeBatches
from regard.errors import ConfigError


@dataclass(frozen=True)
class Noise:
    """How much is dropped.

    density: the share of the tokens that are.
    mean_length: of a span, on average.

    Raises:
        ConfigError: the density is not between 0 and 1, or a span is shorter than a token.
    """

    density: float = 0.15
    mean_length: float = 3.0

    def __post_init__(self) -> None:
        if not 0 < self.density < 1:
            raise ConfigError(f"`density` must be above 0 and below 1, but is {self.density}.")
        if not self.mean_length >= 1:
            raise ConfigError(f"`mean_length` must be at least 1, but is {self.mean_length}.")

    def counts(self, length: int) -> tuple[int, int]:
        """How many of so many tokens are dropped, and in how many spans; at least two are there.

        n = round(density * length), s = round(n / mean_length): at least one token is dropped and
        one is kept, and there are not more spans than tokens of either kind.
        """
        dropped = min(max(round(length * self.density), 1), length - 1)
        spans = max(round(dropped / self.mean_length), 1)
        return dropped, min(spans, dropped, length - dropped)

    def lengths(self, length: int) -> tuple[int, int]:
        """Of the source and of the target of so many tokens, `</s>` included."""
        dropped, spans = self.counts(length)
        return length - dropped + spans + 1, dropped + spans + 1

    def window(self, source: int) -> int:
        """The most tokens whose source has at most `source` tokens: 568 for 512.

        Raises:
            ConfigError: no source is so short.
        """
        if source < self.lengths(2)[0]:
            least = self.lengths(2)[0]
            raise ConfigError(f"a source must have at least {least} tokens, but has {source}.")
        window = 2
        while self.lengths(window + 1)[0] <= source:
            window += 1
        return window


def random_partition(items: int, parts: int, random: np.random.Generator) -> np.ndarray:
    """The sizes of `parts` consecutive parts of so many items, none empty: (parts,).

    All ways of cutting are equally probable.
    """
    cuts = np.sort(random.choice(items - 1, parts - 1, replace=False)) + 1
    return np.diff(cuts, prepend=0, append=items)


def random_spans(length: int, noise: Noise, random: np.random.Generator) -> np.ndarray:
    """Which of so many tokens are dropped, (length,) bool: kept and dropped spans in turn, the
    first of them kept and the last one dropped.
    """
    dropped, spans = noise.counts(length)
    kept_sizes = random_partition(length - dropped, spans, random)
    dropped_sizes = random_partition(dropped, spans, random)
    sizes = np.stack([kept_sizes, dropped_sizes], 1).ravel()  # (2 spans,)
    return np.repeat(np.arange(2 * spans) % 2 == 1, sizes)


def corrupted(
    ids: np.ndarray, dropped: np.ndarray, sentinels: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """The source and the target of a text, without what ends them.

    A further sentinel ends the target where the text goes on behind the last span.

    Args:
        ids, dropped: (T,); the first token is kept.
        sentinels: for the first span, the second, ...

    Raises:
        ValueError: the first token is dropped.
        ConfigError: there are more spans than sentinels.
    """
    if len(dropped) and dropped[0]:
        raise ValueError("The first token of a text must be kept.")
    first = np.flatnonzero(dropped & ~np.roll(dropped, 1))  # tokens of the spans
    goes_on = bool(len(dropped)) and not dropped[-1]
    if len(first) + goes_on > len(sentinels):
        raise ConfigError(
            f"{len(first)} spans need {len(first) + goes_on} sentinels, but the tokenizer has "
            f"{len(sentinels)}. Use shorter windows or longer spans, or another tokenizer."
        )
    marked = np.insert(ids, first, sentinels[: len(first)])
    is_mark = np.insert(np.zeros(len(ids), bool), first, True)
    is_dropped = np.insert(dropped, first, False)
    source, target = marked[is_mark | ~is_dropped], marked[is_mark | is_dropped]
    return source, np.append(target, sentinels[len(first)]) if goes_on else target


@dataclass(frozen=True, eq=False)
class CorruptedWindows:
    """Windows of a corpus as pairs of source and target, for an `EpochSampler`.

    The spans of a window depend on the seed, the epoch and the number of the batch alone.

    sentinels: for the first span, the second, ...
    end: the id that ends source and target.
    start: the id with which the decoder starts.
    pad: the id that fills up shorter rows.
    """

    windows: DocumentWindows
    sentinels: Sequence[int] = field(repr=False)
    end: int
    start: int
    pad: int
    noise: Noise = Noise()
    seed: int = 1

    def epoch(self, number: int) -> BatchSequence[PairBatch]:
        """The batches of epoch `number`, in order."""
        windows = self.windows.epoch(number)

        def make(index: int) -> PairBatch:
            random = np.random.Generator(np.random.PCG64([self.seed, number, index]))
            return self.batch(windows[index], random)

        return MadeBatches(len(windows), make)

    def identity(self) -> dict[str, Any]:
        """What the order and the spans depend on. Checkpoints hold these names."""
        noise = {"density": self.noise.density, "mean_length": self.noise.mean_length}
        return {**self.windows.identity(), **noise, "spans_seed": self.seed}

    def batch(self, windows: WindowBatch, random: np.random.Generator) -> PairBatch:
        """The pairs of windows, each of which has at least two tokens."""
        ids, lengths = windows.sequences.ids.numpy(), windows.sequences.lengths.tolist()
        sources, targets = [], []
        for row, length in zip(ids, lengths, strict=True):
            dropped = random_spans(length, self.noise, random)
            source, target = corrupted(row[:length], dropped, self.sentinels)
            sources.append([*source.tolist(), self.end])
            targets.append([self.start, *target.tolist(), self.end])
        return PairBatch(Sequences.of(sources, self.pad), Sequences.of(targets, self.pad))
