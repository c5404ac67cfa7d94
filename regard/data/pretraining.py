"""What models are pre-trained to restore: masks, pairs of sentences, spans.

Pairs of texts for BERT's next-sentence prediction (Devlin et al. 2019, appendix A.2).

    A   sentences of a document, one after the other
    B   the sentences that follow them (half of the pairs), or sentences of another document

Together a pair has as many tokens as the model reads; one in ten is shorter, of a random length.

Masked texts for BERT's pre-training (Devlin et al. 2019, section 3.1 and appendix A.1).

    text     my dog is hairy
    input    [CLS] my dog is [MASK] [SEP]        the label of [MASK] is hairy, other labels IGNORE

Of each text 15 % of the tokens are chosen; a chosen one is replaced by [MASK] (80 %), a random
token (10 %) or itself (10 %).

Span corruption: T5's pre-training pairs (Raffel et al. 2020, section 3.1.4).

    text     Thank you for inviting me to your party last week .
    source   Thank you <X> me to your party <Y> week .
    target   <X> for inviting <Y> last <Z>

Spans of tokens are dropped. In the source a sentinel stands for each span; the target holds the
spans, each behind its sentinel. The lengths of the spans and of what is between them are random
partitions, all of them equally probable, as in the published program.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from random import Random
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from regard.data.batches import IGNORE, PairBatch, RowBatch, Sequences
from regard.data.corpus import Corpus
from regard.data.encoder_inputs import bert_truncation
from regard.data.lm_streams import DocumentWindows, WindowBatch
from regard.data.sampler import BatchSequence, MadeBatches, in_batches, permutation
from regard.errors import ConfigError, check_at_least
from regard.text import Tokenizer
from regard.text.templates import Template

SHORT = 0.1  # the share of shorter pairs
FOLLOWS = 0.5  # the share of pairs whose second text follows the first

Pair = tuple[int, int, int, int, bool]  # where A begins and ends, B too; whether it follows


class SentencePairs:
    """The pairs of a corpus with structure.

    All sentences of a document but a single last one are in the first text of a pair or follow it,
    or are left for the next pair where another document's text stands behind. A document of one
    sentence gives no first text.

    length: tokens of a pair, without special tokens.
    single: how many documents have one sentence.

    Raises:
        ConfigError: there is one document, none has two sentences, or `length` is below 2.
    """

    def __init__(self, corpus: Corpus, *, length: int, seed: int):
        if corpus.sentences is None:
            raise ConfigError("Pairs of sentences need a corpus with structure = True.")
        check_at_least(2, length=length)
        self.corpus, self.length, self.seed = corpus, length, seed
        self.sentences = corpus.sentences.tolist()  # where each begins, and the end of the last
        starts = np.searchsorted(corpus.sentences, corpus.tokens.offsets)
        self.documents = [  # the numbers of their sentences
            (first, end) for first, end in zip(starts, starts[1:], strict=False) if end > first
        ]
        self.single = sum(end - first == 1 for first, end in self.documents)
        if len(self.documents) < 2 or self.single == len(self.documents):
            raise ConfigError(
                "Pairs of sentences need two documents, and one of several sentences: the second "
                "text of half of the pairs is of another document. Separate documents by blank "
                "lines, or leave out `sentence_pairs`."
            )

    def identity(self) -> dict[str, Any]:
        """What the pairs depend on. Checkpoints hold these names."""
        data = f"{self.corpus.tokens.checksum:08x}"
        return {"data": data, "pair_length": self.length, "seed": self.seed}

    def draw_pairs(self, epoch: int) -> np.ndarray:
        """The pairs of an epoch, (N, 5) int64: see `Pair`."""
        draw = Random(f"{self.seed} {epoch}")
        pairs = (
            pair for number in range(len(self.documents)) for pair in self._pairs_of(number, draw)
        )
        return np.array(list(pairs), dtype=np.int64)

    def _pairs_of(self, number: int, draw: Random) -> Iterator[Pair]:
        """The pairs whose first text is of document `number`."""
        at, end = self.documents[number]
        starts = self.sentences
        while end - at > 1:
            length = draw.randint(2, self.length) if draw.random() < SHORT else self.length
            last = at + 2  # two sentences at least, and as many as fill the pair
            while last < end and starts[last] - starts[at] < length:
                last += 1
            middle = draw.randint(at + 1, last - 1)
            if follows := draw.random() < FOLLOWS:
                second, behind = (starts[middle], starts[last]), last
            else:
                least = max(1, length - (starts[middle] - starts[at]))
                second, behind = self._from_another_document(number, least, draw), middle
            yield (*self._truncated((starts[at], starts[middle]), second, length, draw), follows)
            at = behind

    def _from_another_document(self, number: int, least: int, draw: Random) -> tuple[int, int]:
        """Sentences of another document, at least so many tokens where it has them."""
        other = draw.randrange(len(self.documents) - 1)
        first, end = self.documents[other + (other >= number)]
        at = draw.randrange(first, end)
        last = at + 1
        while last < end and self.sentences[last] - self.sentences[at] < least:
            last += 1
        return self.sentences[at], self.sentences[last]

    @staticmethod
    def _truncated(
        first: tuple[int, int], second: tuple[int, int], length: int, draw: Random
    ) -> tuple[int, int, int, int]:
        """Both texts within `length` tokens; the longer one loses tokens at both of its ends."""
        sizes = first[1] - first[0], second[1] - second[0]
        lengths = bert_truncation(sizes[0], sizes[1], length) if sum(sizes) > length else sizes
        bounds: list[int] = []
        for (start, _), size, left in zip((first, second), sizes, lengths, strict=True):
            front = sum(draw.random() < 0.5 for _ in range(min(size - left, 1000)))
            bounds += [start + front, start + front + left]
        return bounds[0], bounds[1], bounds[2], bounds[3]


# -------------------------------------------------------------------------------------------- masks


BYTE_BREAKS = tuple(chr(256 + byte) for byte in b"\t\n\v\f\r")  # as byte-level tokens have them
# kind of tokenizer -> how a token begins that begins a word, or that continues one
WORD_STARTS = {"byte-bpe": ("Ġ", *BYTE_BREAKS), "unigram": ("▁",), "sentencepiece": ("▁",)}
CONTINUATIONS = {"wordpiece": "##"}
REPLACED, RANDOM = 0.8, 0.1  # shares of the chosen tokens: [MASK], a random token


@dataclass(frozen=True, eq=False)
class MaskVocabulary:
    """mask: the id of [MASK].  drawn: ids of random tokens, all but special ones, (N,).

    words: where words begin; None: subwords are chosen singly.
    """

    mask: int
    drawn: np.ndarray
    words: WordStarts | None = None

    @classmethod
    def of(cls, tokenizer: Tokenizer, whole_words: bool) -> MaskVocabulary:
        """That of a tokenizer.

        Raises:
            ConfigError: it has no mask, or its tokens do not show where words begin.
        """
        (mask,) = tokenizer.required_ids("mask")
        ids = np.arange(tokenizer.vocab_size)
        drawn = ids[~np.isin(ids, list(tokenizer.special_ids))]
        return cls(mask, drawn, WordStarts.of(tokenizer) if whole_words else None)


@dataclass(frozen=True, eq=False)
class WordStarts:
    """Where words begin among tokens.

    continues: (V,) bool, whether a token continues a word.
    breaks: (V,) bool, whether the next token begins a word in any case: line breaks and tabs of
        byte-level vocabularies, where a space alone belongs to the word behind it.
    """

    continues: np.ndarray
    breaks: np.ndarray

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> WordStarts:
        """Those of a tokenizer's tokens.

        Raises:
            ConfigError: the tokens do not show where words begin.
        """
        tokens = [tokenizer.token(i) for i in range(tokenizer.vocab_size)]
        if tokenizer.kind in CONTINUATIONS:
            continues = [token.startswith(CONTINUATIONS[tokenizer.kind]) for token in tokens]
        elif tokenizer.kind in WORD_STARTS:
            continues = [not token.startswith(WORD_STARTS[tokenizer.kind]) for token in tokens]
        elif tokenizer.kind == "words":
            continues = [False] * len(tokens)
        else:
            kinds = ", ".join([*CONTINUATIONS, *WORD_STARTS, "words"])
            raise ConfigError(
                f"[data] `whole_words` needs tokens that show where words begin: a tokenizer of "
                f"kind {kinds}, but this one is of kind {tokenizer.kind}."
            )
        bytewise = tokenizer.kind == "byte-bpe"
        breaks = [bytewise and token.endswith(BYTE_BREAKS) for token in tokens]
        return cls(np.array(continues), np.array(breaks))

    def among(self, ids: np.ndarray) -> np.ndarray:
        """Whether each of the ids (T,) begins a word, (T,) bool."""
        begins = ~self.continues[ids]
        begins[:1] = True
        begins[1:] |= self.breaks[ids[:-1]]
        return begins


class Masked(NamedTuple):
    """Tokens with masks, and what stood at the chosen ones, elsewhere `IGNORE`; (T,) each."""

    ids: np.ndarray
    labels: np.ndarray


def masked(
    ids: np.ndarray,
    maskable: np.ndarray,
    vocabulary: MaskVocabulary,
    share: float,
    random: np.random.Generator,
) -> Masked:
    """Choose tokens of a text and replace them.

    Args:
        ids: (T,) with special tokens.
        maskable: (T,) bool, which of them may be chosen.
    """
    positions = np.flatnonzero(maskable)
    count = max(1, round(share * len(positions))) if len(positions) else 0
    chosen = _chosen(ids, positions, count, vocabulary.words, random)
    labels = np.full(len(ids), IGNORE)
    labels[chosen] = ids[chosen]
    drawn, corrupted = random.random(len(chosen)), ids.copy()
    corrupted[chosen[drawn < REPLACED]] = vocabulary.mask
    others = chosen[(drawn >= REPLACED) & (drawn < REPLACED + RANDOM)]
    corrupted[others] = random.choice(vocabulary.drawn, len(others))
    return Masked(corrupted, labels)


def _chosen(
    ids: np.ndarray,
    positions: np.ndarray,
    count: int,
    starts: WordStarts | None,
    random: np.random.Generator,
) -> np.ndarray:
    """`count` of the positions at random. With whole words: all positions of random words that
    have at most `count` positions together; the first word may have more.

    After a special token every token begins a word.
    """
    if starts is None or not count:
        return random.choice(positions, count, replace=False)
    begins = starts.among(ids)[positions] | (np.diff(positions, prepend=-2) > 1)
    words = np.split(positions, np.flatnonzero(begins)[1:])
    chosen: list[np.ndarray] = []
    for number in random.permutation(len(words)):
        if not chosen or len(words[number]) <= count:
            chosen.append(words[number])
            count -= len(words[number])
        if count <= 0:
            break
    return np.concatenate(chosen)


# ------------------------------------------------------------------------------- batches


@dataclass(frozen=True, eq=False)
class MaskedBatch(RowBatch):
    """Texts with masks, and their labels (B, T).

    follows: (B,) int64 of pairs, 0 where the second text follows the first and 1 where it does not.
    """

    texts: Sequences
    labels: Tensor
    follows: Tensor | None = None

    @cached_property
    def count(self) -> int:
        """Chosen tokens."""
        return int((self.labels != IGNORE).sum())

    def __len__(self) -> int:
        """The number of texts, B."""
        return len(self.texts)


class Row(NamedTuple):
    """A text or a pair, (ids,) or (ids, ids); its number; and whether a second text follows."""

    texts: tuple[np.ndarray, ...]
    number: int
    follows: bool | None = None


class TextRows(Protocol):
    """Texts without masks, in batches."""

    def order(self, epoch: int) -> Sequence[Sequence[Row]]:
        """The batches of an epoch."""
        ...

    def identity(self) -> dict[str, Any]:
        """What the order depends on."""
        ...


@dataclass(frozen=True, eq=False)
class WindowRows:
    """The windows of documents, each a text."""

    windows: DocumentWindows

    def order(self, epoch: int) -> Sequence[Sequence[Row]]:
        def make(numbers: np.ndarray) -> list[Row]:
            texts = self.windows.batch(numbers).sequences
            ids, lengths = texts.ids.numpy(), texts.lengths.tolist()
            rows = zip(ids, lengths, numbers.tolist(), strict=True)
            return [Row((row[:length],), number) for row, length, number in rows]

        return in_batches(self.windows.order(epoch), self.windows.batch_size, make)

    def identity(self) -> dict[str, Any]:
        return self.windows.identity()


@dataclass(frozen=True, eq=False)
class PairRows:
    """Pairs of texts, half of which follow one another."""

    pairs: SentencePairs
    batch_size: int

    def order(self, epoch: int) -> Sequence[Sequence[Row]]:
        drawn, ids = self.pairs.draw_pairs(epoch), self.pairs.corpus.tokens.ids

        def make(numbers: np.ndarray) -> list[Row]:
            pairs = zip(numbers.tolist(), drawn[numbers].tolist(), strict=True)
            return [
                Row((ids[a:b].astype(np.int64), ids[c:d].astype(np.int64)), number, bool(follows))
                for number, (a, b, c, d, follows) in pairs
            ]

        numbers = permutation(len(drawn), self.pairs.seed, epoch)
        return in_batches(numbers, self.batch_size, make)

    def identity(self) -> dict[str, Any]:
        return {**self.pairs.identity(), "rows": self.batch_size}


@dataclass(frozen=True, eq=False)
class MaskedTexts:
    """Texts with masks, for an `EpochSampler`.

    The masks of a text depend on the seed, the text's number and the epoch alone.

    share: of the tokens of a text that are chosen; at least one is.
    pad: the id that fills up shorter rows.
    """

    rows: TextRows
    template: Template
    vocabulary: MaskVocabulary
    share: float
    pad: int | None
    seed: int

    def epoch(self, number: int) -> BatchSequence[MaskedBatch]:
        """The batches of epoch `number`, in order."""
        rows = self.rows.order(number)
        return MadeBatches(len(rows), lambda index: self.batch(rows[index], number))

    def identity(self) -> dict[str, Any]:
        """What the batches depend on. Checkpoints hold these names."""
        whole = self.vocabulary.words is not None
        # Positions of earlier releases have a cycle.
        facts = {"cycle": None, "whole_words": whole, "masks_seed": self.seed}
        return {**self.rows.identity(), "share": self.share, **facts}

    def batch(self, rows: Sequence[Row], epoch: int) -> MaskedBatch:
        """Rows with special tokens and masks."""
        inputs = [self.template.apply([*map(np.ndarray.tolist, row.texts)]) for row in rows]
        examples: list[Masked] = []
        for row, item in zip(rows, inputs, strict=True):
            maskable = np.zeros(len(item), dtype=bool)
            for start, count in zip(item.starts, item.counts, strict=True):
                maskable[start : start + count] = True
            random = np.random.Generator(np.random.PCG64([self.seed, row.number, epoch]))
            ids = np.array(item.ids)
            examples.append(masked(ids, maskable, self.vocabulary, self.share, random))
        texts = Sequences.of([example.ids.tolist() for example in examples], self.pad)
        if self.template.segment_count > 1:
            segments = Sequences.of([item.segments for item in inputs], 0).ids
            texts = replace(texts, segments=segments)
        labels = Sequences.of([example.labels.tolist() for example in examples], IGNORE).ids
        follows = None
        if rows[0].follows is not None:
            follows = torch.tensor([int(not row.follows) for row in rows])
        return MaskedBatch(texts, labels, follows)


# -------------------------------------------------------------------------------------------- spans


@dataclass(frozen=True)
class Noise:
    """How much is dropped.

    density: the share of the tokens that are.
    mean_length: of a span, on average.
    """

    density: float = 0.15
    mean_length: float = 3.0

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
