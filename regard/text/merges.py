"""What every trainer of merges needs: words as symbols, and symbols with "</w>" or "##".

`SymbolCounts` counts symbols and pairs in a list of words, for the trainers of this library.
`SymbolCodes` and `learn_merges` are for the trainer of the `tokenizers` library. It numbers symbols
of several characters ("e</w>" ends a word, "##e" continues one) in the order of a hash table that
differs from process to process, and breaks ties by these numbers: the same texts give another
vocabulary each time. So each such symbol is replaced by one private-use character, the library
trains on those as on any other character, and the learned symbols are decoded afterwards.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from regard.text.special_tokens import too_small

Pair = tuple[str, str]

PRIVATE = 0xF0000  # planes 15 and 16 are for private use: 131,072 code points


class SymbolCounts:
    """Words, the symbols they are made of, and how often each symbol and each pair occurs.

    words: (symbols, count) of each different word, in reading order
    """

    def __init__(self, words: Iterable[tuple[Sequence[str], int]]):
        self.words: list[list[str]] = []
        self.counts: list[int] = []
        self.symbols: Counter[str] = Counter()
        self.pairs: Counter[Pair] = Counter()
        self.where: defaultdict[Pair, set[int]] = defaultdict(set)  # pair -> words that have it
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

    def merge(self, pair: Pair, merged: str) -> set[Pair]:
        """Replace each occurrence of the pair by `merged`; returns all pairs of changed words."""
        touched: set[Pair] = set()
        for index in sorted(self.where[pair]):
            for word in (self.words[index], join(self.words[index], pair, merged)):
                touched.update(zip(word, word[1:], strict=False))
            self._remove(index, self.counts[index])
            self.words[index] = word
            self._add(index, self.counts[index])
        for gone in [p for p in touched if not self.pairs[p]]:
            del self.pairs[gone], self.where[gone]
        return touched

    def first_seen(self, pairs: Iterable[Pair]) -> Pair:
        """Of several pairs, the one that occurs first when the words are read in order."""

        def position(pair: Pair) -> tuple[int, int]:
            index = min(self.where[pair])
            word = self.words[index]
            return index, list(zip(word, word[1:], strict=False)).index(pair)

        return min(pairs, key=position)


def join(word: Sequence[str], pair: Pair, merged: str) -> list[str]:
    """The word with `merged` for each occurrence of the pair, from left to right."""
    left, right = pair
    joined: list[str] = []
    position, last = 0, len(word) - 1
    while position <= last:
        if word[position] == left and position < last and word[position + 1] == right:
            joined.append(merged)
            position += 2
        else:
            joined.append(word[position])
            position += 1
    return joined


class SymbolCodes:
    """A bijection between symbols, affixed or plain, and single characters.

    prefix: in front of a symbol whose first character is affixed: "##" in WordPiece
    suffix: behind a symbol whose last character is affixed: "</w>" in BPE
    """

    def __init__(self, prefix: str = "", suffix: str = ""):
        self.prefix, self.suffix = prefix, suffix
        self.codes: dict[tuple[str, bool], str] = {}
        self.symbols: dict[str, tuple[str, bool]] = {}

    def code(self, char: str, affixed: bool) -> str:
        """The character that stands for this symbol, the same one each time."""
        if not affixed and ord(char) < PRIVATE:
            return char
        code = self.codes.get((char, affixed))
        if code is None:
            code = chr(PRIVATE + len(self.codes))
            self.codes[char, affixed] = code
            self.symbols[code] = (char, affixed)
        return code

    def decode(self, coded: str) -> str:
        """A learned symbol as the vocabulary writes it."""
        symbols = [self.symbols.get(char, (char, False)) for char in coded]
        text = "".join(char for char, _ in symbols)
        return self.prefix * symbols[0][1] + text + self.suffix * symbols[-1][1]


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
    vocab_size: int,
    special_tokens: list[str],
    min_frequency: int,
    alphabet_limit: int | None = None,
) -> tuple[list[str], list[Pair]]:
    """Run the library's trainer over lists of words.

    Every character gets both its codes, affixed and plain, so that a word of known characters is
    never unknown.

    min_frequency: a pair seen less often is not merged
    alphabet_limit: keep only so many symbols of one character, the most frequent ones

    Returns:
        The coded symbols by id, after the special tokens, and the coded merges in order.

    Raises:
        ConfigError: the vocabulary cannot hold the alphabet.
    """
    alphabet: set[str] = set()
    # Words repeat, so a bounded cache answers nearly always.
    coded = lru_cache(1 << 16)(lambda word: code_word(codes, word))

    def stream() -> Iterator[str]:
        for text_words in words:
            alphabet.update(*text_words)
            yield " ".join(map(coded, text_words))
        # Words of one symbol: they add to the alphabet and to no pair.
        characters = sorted(alphabet)
        yield " ".join(
            codes.code(char, affixed) for char in characters for affixed in (False, True)
        )

    fast = Tokenizer(models.BPE())
    fast.pre_tokenizer = pre_tokenizers.CharDelimiterSplit(" ")
    trainer = bpe_trainer(vocab_size, special_tokens, min_frequency)
    if alphabet_limit is not None:
        trainer.limit_alphabet = alphabet_limit
    fast.train_from_iterator(stream(), trainer)
    model = json.loads(fast.to_str())["model"]
    symbols = sorted(model["vocab"], key=model["vocab"].__getitem__)[len(special_tokens) :]
    if len(special_tokens) + len(symbols) > vocab_size:
        hint = "Or keep only the most frequent symbols: alphabet_limit=…"
        raise too_small(vocab_size, len(special_tokens), len(symbols), hint)
    return symbols, [(left, right) for left, right in model["merges"]]


def bpe_trainer(
    vocab_size: int, special_tokens: list[str], min_frequency: int, alphabet: Sequence[str] = ()
) -> trainers.BpeTrainer:
    """The library's trainer, without a progress bar."""
    return trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special_tokens,
        min_frequency=min_frequency,
        initial_alphabet=alphabet,
        show_progress=False,
    )
