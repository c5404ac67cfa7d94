"""What every trainer of merges needs: the words as symbols, and symbols with "</w>" or "##".

`Corpus` counts symbols and pairs in a list of words, for the trainers of this library.
`SymbolCodes` and `learn_merges` are for the trainer of the `tokenizers` library. It numbers symbols
of several characters ("e</w>" ends a word, "##e" continues one) in the order of a hash table that
differs from process to process, and breaks ties by these numbers: the same texts give another
vocabulary each time. So each such symbol is replaced by one private-use character, the library
trains on those as on any other character, and the learned subwords are decoded afterwards.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

Pair = tuple[str, str]

PRIVATE = 0xF0000  # planes 15 and 16 are for private use: 131,072 code points


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


class SymbolCodes:
    """A bijection between symbols, marked or plain, and single characters.

    before, after: a piece whose first symbol is marked is written with `before` in front, one
    whose last symbol is marked with `after` behind
    """

    def __init__(self, before: str = "", after: str = ""):
        self.before, self.after = before, after
        self.coded: dict[tuple[str, bool], str] = {}
        self.symbols: dict[str, tuple[str, bool]] = {}

    def code(self, char: str, marked: bool) -> str:
        """The character that stands for this symbol, the same one each time."""
        if not marked and ord(char) < PRIVATE:
            return char
        known = self.coded.get((char, marked))
        if known is None:
            known = chr(PRIVATE + len(self.coded))
            self.coded[char, marked] = known
            self.symbols[known] = (char, marked)
        return known

    def spell(self, coded: str) -> str:
        """A learned piece as the vocabulary writes it."""
        symbols = [self.symbols.get(char, (char, False)) for char in coded]
        text = "".join(char for char, _ in symbols)
        return self.before * symbols[0][1] + text + self.after * symbols[-1][1]


def code_with_suffix(codes: SymbolCodes, word: str) -> str:
    """low -> l o w</w>, each symbol as one character."""
    body = word[:-1] if word.isascii() else "".join(codes.code(c, False) for c in word[:-1])
    return body + codes.code(word[-1], True)


def code_with_prefix(codes: SymbolCodes, word: str) -> str:
    """low -> l ##o ##w, each symbol as one character."""
    return codes.code(word[0], False) + "".join(codes.code(c, True) for c in word[1:])


def learn_merges(
    words: Iterable[list[str]],
    codes: SymbolCodes,
    code_word: Callable[[SymbolCodes, str], str],
    trainer: trainers.BpeTrainer,
) -> tuple[list[str], list[tuple[str, str]]]:
    """Run the library's trainer over lists of words: pieces by id, and coded merges in order.

    Every character seen gets both its forms, marked and plain, so that no word made of known
    characters is ever unknown.
    """
    alphabet: set[str] = set()
    # Words repeat, so a bounded cache answers nearly always.
    coded = lru_cache(1 << 16)(lambda word: code_word(codes, word))

    def stream() -> Iterator[str]:
        for some in words:
            alphabet.update(*some)
            yield " ".join(map(coded, some))
        # One-symbol words: they add to the alphabet and to no pair.
        known = sorted(alphabet)
        yield " ".join(codes.code(char, marked) for char in known for marked in (False, True))

    fast = Tokenizer(models.BPE())
    fast.pre_tokenizer = pre_tokenizers.CharDelimiterSplit(" ")
    fast.train_from_iterator(stream(), trainer)
    model = json.loads(fast.to_str())["model"]
    pieces = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return pieces, [(left, right) for left, right in model["merges"]]
