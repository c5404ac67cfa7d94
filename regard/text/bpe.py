"""Byte-pair encoding, small and slow enough to be read: the reference for the library's trainer.

Sennrich, Haddow and Birch 2016, "Neural Machine Translation of Rare Words with Subword Units":
start from characters, merge the most frequent pair, repeat.

Ties: of pairs with equal counts, the one that occurs first when the words are read in order is
merged. (This is what `max(pairs, key=pairs.get)` of the paper's own listing does.)
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from regard.text.merges import Pair, SymbolCounts, join

END = "</w>"


@dataclass(frozen=True)
class Merge:
    """One learned merge. `tied`: all pairs that had the highest count, the chosen one included."""

    left: str
    right: str
    count: int
    tied: tuple[Pair, ...]

    @property
    def symbol(self) -> str:
        """The merged symbol."""
        return self.left + self.right


@dataclass(frozen=True)
class AppliedMerge:
    """One step in encoding a word: merge number `rank` (from 0) gave these symbols."""

    rank: int
    left: str
    right: str
    symbols: tuple[str, ...]


def separate_end(word: str) -> list[str]:
    """low -> l o w </w>: the end of the word is a symbol of its own (the paper, the lectures)."""
    return [*word, END]


def attached_end(word: str) -> list[str]:
    """low -> l o w</w>: it is part of the last character (GPT, subword-nmt, `tokenizers`)."""
    return [*word[:-1], word[-1] + END]


def learn(
    words: Mapping[str, int],
    symbols_of: Callable[[str], Sequence[str]] = separate_end,
    choose: Callable[[SymbolCounts, Iterable[Pair]], Pair] = SymbolCounts.first_seen,
    min_count: int = 1,
) -> Iterator[Merge]:
    """Merges in the order in which they are learned, as long as a pair is frequent enough.

    words: word -> count, in reading order
    symbols_of: how a word becomes symbols
    choose: takes one of the pairs with the highest count
    min_count: a pair seen less often is not merged
    """
    corpus = SymbolCounts((symbols_of(word), count) for word, count in words.items())
    while corpus.pairs:
        best = max(corpus.pairs.values())
        if best < min_count:
            return
        tied = [pair for pair, count in corpus.pairs.items() if count == best]
        pair = choose(corpus, tied) if len(tied) > 1 else tied[0]
        corpus.merge(pair, "".join(pair))
        yield Merge(*pair, best, tuple(sorted(tied)))


def apply(symbols: Sequence[str], ranks: Mapping[Pair, int]) -> Iterator[AppliedMerge]:
    """The merges that encode a word, in order: always the earliest learned one that applies."""
    word = list(symbols)
    while rule := _earliest(word, ranks):
        rank, pair = rule
        word = join(word, pair, "".join(pair))
        yield AppliedMerge(rank, *pair, tuple(word))


def _earliest(word: Sequence[str], ranks: Mapping[Pair, int]) -> tuple[int, Pair] | None:
    applicable = [(ranks[p], p) for p in zip(word, word[1:], strict=False) if p in ranks]
    return min(applicable, default=None)


def rebuild_merges(vocab: Mapping[str, int], unlearned: Iterable[str] = ()) -> list[Pair]:
    """The merges behind a vocabulary whose ids follow the order of learning.

    A subword was merged from the two symbols that the earlier merges make of its characters. (For
    the vocabularies of GPT and GPT-2 this gives their published merges, all of them, in order.)

    vocab: subword -> id
    unlearned: entries that were not learned, such as special tokens

    Raises:
        ValueError: the earlier merges do not make two symbols of a subword.
    """
    ranks: dict[Pair, int] = {}
    skipped = set(unlearned)
    for subword in sorted(vocab, key=vocab.__getitem__):
        if subword in skipped:
            continue
        ends = subword.endswith(END) and subword != END
        parts = attached_end(subword.removesuffix(END)) if ends else list(subword)
        if len(parts) > 1:
            while rule := _earliest(parts, ranks):
                parts = join(parts, rule[1], "".join(rule[1]))
            if len(parts) != 2:
                raise ValueError(f"{subword!r} is made of {len(parts)} earlier subwords, not 2")
            ranks[parts[0], parts[1]] = len(ranks)
    return list(ranks)
