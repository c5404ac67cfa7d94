"""Words as lists of symbols with their counts: what every merging trainer keeps."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

Pair = tuple[str, str]


class Corpus:
    """Words, the symbols they are made of, and how often each symbol and each pair occurs.

    words: (symbols, count) of each different word, in reading order
    """

    def __init__(self, words: Iterable[tuple[Sequence[str], int]]):
        self.words: list[list[str]] = []
        self.counts: list[int] = []
        self.symbols: Counter[str] = Counter()
        self.pairs: Counter[Pair] = Counter()
        self.where: defaultdict[Pair, set[int]] = defaultdict(set)
        for symbols, count in words:
            self.words.append(list(symbols))
            self.counts.append(count)
            self._add(len(self.words) - 1, count)

    def _add(self, index: int, count: int) -> None:
        word = self.words[index]
        for symbol in word:
            self.symbols[symbol] += count
        for pair in zip(word, word[1:], strict=False):
            self.pairs[pair] += count
            self.where[pair].add(index)

    def _remove(self, index: int, count: int) -> None:
        word = self.words[index]
        for symbol in word:
            self.symbols[symbol] -= count
        for pair in zip(word, word[1:], strict=False):
            self.pairs[pair] -= count
            self.where[pair].discard(index)

    def merge(self, pair: Pair, piece: str) -> set[Pair]:
        """Write `piece` for every occurrence of the pair; returns the pairs of touched words."""
        touched: set[Pair] = set()
        for index in sorted(self.where[pair]):
            for word in (self.words[index], join(self.words[index], pair, piece)):
                touched.update(zip(word, word[1:], strict=False))
            self._remove(index, self.counts[index])
            self.words[index] = word
            self._add(index, self.counts[index])
        for gone in [p for p in touched if not self.pairs[p]]:
            del self.pairs[gone], self.where[gone]
        return touched

    def first_seen(self, pairs: Iterable[Pair]) -> Pair:
        """Of several pairs, the one that a reader of the words meets first."""

        def place(pair: Pair) -> tuple[int, int]:
            index = min(self.where[pair])
            word = self.words[index]
            return index, list(zip(word, word[1:], strict=False)).index(pair)

        return min(pairs, key=place)


def join(word: Sequence[str], pair: Pair, piece: str) -> list[str]:
    """The word with `piece` for each occurrence of the pair, from left to right."""
    left, right = pair
    joined: list[str] = []
    position, last = 0, len(word) - 1
    while position <= last:
        if word[position] == left and position < last and word[position + 1] == right:
            joined.append(piece)
            position += 2
        else:
            joined.append(word[position])
            position += 1
    return joined
