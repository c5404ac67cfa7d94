"""Byte-pair encoding (Sennrich, Haddow and Birch 2016): step by step, and as kinds of tokenizer.

Start from characters, merge the most frequent pair, repeat. `learn` does so, slow enough to be
read, and is the reference for the trainer of the `tokenizers` library. Of pairs with equal counts,
the one that occurs first when the words are read in order is merged. (This is what
`max(pairs, key=pairs.get)` of the paper's own listing does.)

bpe       words are characters, the last one with </w>: low -> l o w</w> (Sennrich et al. 2016; GPT)
byte-bpe  words are bytes, the space before a word belongs to it (GPT-2): nothing is ever unknown
          and decode(encode(text)) == text

`SymbolCounts` counts symbols and pairs in a list of words, for the trainers of this library.
`SymbolCodes` and `learn_merges` are for the trainer of the `tokenizers` library. It numbers symbols
of several characters ("e</w>" ends a word, "##e" continues one) in the order of a hash table that
differs from process to process, and breaks ties by these numbers: the same texts give another
vocabulary each time. So each such symbol is replaced by one private-use character, the library
trains on those as on any other character, and the learned symbols are decoded afterwards.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from regard.errors import ConfigError
from regard.text.preprocessing import Preprocessing, TrainerInput, too_small

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
) -> tuple[list[str], list[Pair]]:
    """Run the library's trainer over lists of words.

    Every character gets both its codes, affixed and plain, so that a word of known characters is
    never unknown.

    min_frequency: a pair seen less often is not merged

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
    fast.train_from_iterator(stream(), trainer)
    model = json.loads(fast.to_str())["model"]
    symbols = sorted(model["vocab"], key=model["vocab"].__getitem__)[len(special_tokens) :]
    if len(special_tokens) + len(symbols) > vocab_size:
        hint = "Or take byte-bpe, whose alphabet has 256 symbols."
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


# ------------------------------------------------------------------------------- byte-pair encoding


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
) -> Iterator[Merge]:
    """Merges in the order in which they are learned.

    words: word -> count, in reading order
    symbols_of: how a word becomes symbols
    choose: takes one of the pairs with the highest count
    """
    corpus = SymbolCounts((symbols_of(word), count) for word, count in words.items())
    while corpus.pairs:
        best = max(corpus.pairs.values())
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


# ------------------------------------------------------------------------------- kinds of tokenizer


def train(inputs: TrainerInput, *, min_frequency: int = 2) -> Tokenizer:
    """Subwords of characters, with </w> at the end of a word. Decoding joins words by one space.

    min_frequency: a pair seen less often is not merged
    """
    inputs.preprocessing.check_split("whitespace", "punctuation")
    unknown, codes = inputs.unknown(), SymbolCodes(suffix=END)
    limits = inputs.vocab_size, inputs.special_tokens, min_frequency
    coded, merges = learn_merges(inputs.words(), codes, code_with_suffix, *limits)
    vocab, decoded = _decode(coded, merges, codes, inputs.special_tokens)
    model = models.BPE(vocab, decoded, unk_token=unknown, end_of_word_suffix=END)
    return assemble(model, inputs.preprocessing, decoders.BPEDecoder(suffix=END))


def train_bytes(inputs: TrainerInput, *, min_frequency: int = 2) -> Tokenizer:
    """Subwords of bytes; words by GPT-2's rule. min_frequency: a rarer pair is not merged."""
    inputs.preprocessing.check_split("gpt2", "gpt2-prefix")
    if inputs.vocab_size < 256 + len(inputs.special_tokens):
        raise inputs.too_small(256, "An alphabet of bytes cannot be smaller.")
    fast = assemble(models.BPE(), inputs.preprocessing, decoders.ByteLevel())
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = bpe_trainer(inputs.vocab_size, inputs.special_tokens, min_frequency, alphabet)
    fast.train_from_iterator(inputs.texts, trainer)
    for left, right in json.loads(fast.to_str())["model"]["merges"]:
        if left + right in inputs.special_tokens:
            raise ConfigError(
                f"the special token {left + right!r} is also a frequent subword of the texts. "
                "Choose a name that does not occur in them."
            )
    return fast


def assemble(
    model: models.Model, preprocessing: Preprocessing, decoder: decoders.Decoder | None = None
) -> Tokenizer:
    """A tokenizer of these parts; without a decoder, decoding joins tokens by one space."""
    fast = Tokenizer(model)
    normalizer = preprocessing.normalizer()
    if normalizer is not None:
        fast.normalizer = normalizer
    fast.pre_tokenizer = preprocessing.pre_tokenizer()
    if decoder is not None:
        fast.decoder = decoder
    return fast


def _decode(
    coded: list[str], merges: list[Pair], codes: SymbolCodes, special_tokens: list[str]
) -> tuple[dict[str, int], list[Pair]]:
    """Coded symbols and merges as the vocabulary writes them.

    If a text contains the four characters </w>, or the name of a special token, two symbols would
    be written alike. The later one is left out, and all that is merged from it.
    """
    vocab = {name: i for i, name in enumerate(special_tokens)}
    symbols = {symbol for symbol in coded if len(symbol) == 1}
    for symbol in coded:
        if symbol in symbols:
            vocab[codes.decode(symbol)] = len(vocab)
    decoded = []
    for left, right in merges:
        name = codes.decode(left + right)
        if left in symbols and right in symbols and name not in vocab:
            symbols.add(left + right)
            vocab[name] = len(vocab)
            decoded.append((codes.decode(left), codes.decode(right)))
    return vocab, decoded
