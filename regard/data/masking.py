"""Masked texts for BERT's pre-training (Devlin et al. 2019, section 3.1 and appendix A.1).

    text     my dog is hairy
    input    [CLS] my dog is [MASK] [SEP]        the label of [MASK] is hairy, other labels IGNORE

Of each text 15 % of the tokens are chosen; a chosen one is replaced by [MASK] (80 %), a random
token (10 %) or itself (10 %).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from regard.data.batches import IGNORE, Sequences, moved
from regard.data.document_windows import DocumentWindows
from regard.data.sampler import BatchSequence, MadeBatches, in_batches, permutation
from regard.data.sentence_pairs import SentencePairs
from regard.errors import ConfigError
from regard.text import Tokenizer
from regard.text.templates import Template

BYTE_BREAKS = tuple(chr(256 + byte) for byte in b"\t\n\v\f\r")  # as byte-level tokens have them
# kind of tokenizer -> how a token begins that begins a word, or that continues one
WORD_STARTS = {"byte-bpe": ("Ġ", *BYTE_BREAKS), "unigram": ("▁",), "sentencepiece": ("▁",)}
CONTINUATIONS = {"wordpiece": "##"}
REPLACED, RANDOM = 0.8, 0.1  # shares of the chosen tokens: [MASK], a random token


@dataclass(frozen=True)
class Masking:
    """Which tokens are chosen.

    share: of the tokens of a text; at least one is.
    cycle: in how many epochs a text has different masks before they repeat; None: in all of them.
    """

    share: float = 0.15
    cycle: int | None = None


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
class MaskedBatch:
    """Texts with masks, and their labels (B, T).

    follows: (B,) int64 of pairs, 0 where the second text follows the first and 1 where it does not.
    """

    texts: Sequences
    labels: Tensor
    follows: Tensor | None = None

    @property
    def count(self) -> int:
        """Chosen tokens."""
        return int((self.labels != IGNORE).sum())

    def __len__(self) -> int:
        """The number of texts, B."""
        return len(self.texts)

    def select(self, rows: Tensor) -> MaskedBatch:
        """The texts of these indices."""
        follows = None if self.follows is None else self.follows[rows]
        return replace(
            self, texts=self.texts.select(rows), labels=self.labels[rows], follows=follows
        )

    def to(self, device: torch.device | str) -> MaskedBatch:
        """The same batch on another device."""
        follows = None if self.follows is None else moved(self.follows, device)
        return replace(
            self, texts=self.texts.to(device), labels=moved(self.labels, device), follows=follows
        )


class Row(NamedTuple):
    """A text or a pair, (ids,) or (ids, ids); its number; and whether a second text follows."""

    texts: tuple[np.ndarray, ...]
    number: int
    follows: bool | None = None


class TextRows(Protocol):
    """Texts without masks, in batches."""

    def order(self, epoch: int, cycle: int) -> Sequence[Sequence[Row]]:
        """The batches of an epoch, with the texts of cycle number `cycle`."""
        ...

    def identity(self) -> dict[str, Any]:
        """What the order depends on."""
        ...


@dataclass(frozen=True, eq=False)
class WindowRows:
    """The windows of documents, each a text."""

    windows: DocumentWindows

    def order(self, epoch: int, cycle: int) -> Sequence[Sequence[Row]]:
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

    def order(self, epoch: int, cycle: int) -> Sequence[Sequence[Row]]:
        drawn, ids = self.pairs.draw_pairs(cycle), self.pairs.corpus.tokens.ids

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

    pad: the id that fills up shorter rows.
    """

    rows: TextRows
    template: Template
    vocabulary: MaskVocabulary
    masking: Masking
    pad: int | None
    seed: int

    def epoch(self, number: int) -> BatchSequence[MaskedBatch]:
        """The batches of epoch `number`, in order."""
        cycle = number if self.masking.cycle is None else number % self.masking.cycle
        rows = self.rows.order(number, cycle)
        return MadeBatches(len(rows), lambda index: self.batch(rows[index], cycle))

    def identity(self) -> dict[str, Any]:
        """What the batches depend on. Checkpoints hold these names."""
        whole = self.vocabulary.words is not None
        facts = {"whole_words": whole, "masks_seed": self.seed}
        return {**self.rows.identity(), **vars(self.masking), **facts}

    def batch(self, rows: Sequence[Row], cycle: int) -> MaskedBatch:
        """Rows with special tokens and masks."""
        inputs = [self.template.apply([*map(np.ndarray.tolist, row.texts)]) for row in rows]
        examples: list[Masked] = []
        for row, item in zip(rows, inputs, strict=True):
            maskable = np.zeros(len(item), dtype=bool)
            for start, count in zip(item.starts, item.counts, strict=True):
                maskable[start : start + count] = True
            random = np.random.Generator(np.random.PCG64([self.seed, row.number, cycle]))
            ids = np.array(item.ids)
            examples.append(masked(ids, maskable, self.vocabulary, self.masking.share, random))
        texts = Sequences.of([example.ids.tolist() for example in examples], self.pad)
        if self.template.segment_count > 1:
            segments = Sequences.of([item.segments for item in inputs], 0).ids
            texts = replace(texts, segments=segments)
        labels = Sequences.of([example.labels.tolist() for example in examples], IGNORE).ids
        follows = None
        if rows[0].follows is not None:
            follows = torch.tensor([int(not row.follows) for row in rows])
        return MaskedBatch(texts, labels, follows)
