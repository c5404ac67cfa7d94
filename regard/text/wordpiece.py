"""WordPiece: the longest known piece first, ## before what continues a word.

wordpiece             pieces chosen by frequency, as BPE does (what the `tokenizers` library calls
                      training WordPiece)
wordpiece-likelihood  pieces chosen by score(ab) = count(ab) / (count(a) * count(b)), by our own
                      trainer: the pair whose joining raises the likelihood of the corpus most
                      per occurrence (Schuster and Nakajima 2012, in the form the lectures use)

Both encode alike: see `longest_match`.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from tokenizers import Tokenizer, decoders, models

from regard.text.bpe_fast import allow_splits, assemble, bpe_trainer
from regard.text.merges import Corpus, Pair, SymbolCodes, code_with_prefix, learn_merges
from regard.text.normalize import Handling
from regard.text.special_tokens import need_unknown, too_small

PREFIX = "##"
SPLITS = ["punctuation", "whitespace"]


@dataclass(frozen=True)
class ScoredMerge:
    """One merge by likelihood: score = count / (count_left * count_right)."""

    left: str
    right: str
    count: int
    count_left: int
    count_right: int

    @property
    def score(self) -> float:
        return self.count / (self.count_left * self.count_right)

    @property
    def symbol(self) -> str:
        return self.left + self.right.removeprefix(PREFIX)


@dataclass(frozen=True)
class Match:
    """One step of the longest match: what was tried from `start` on, and the piece found."""

    start: int
    tried: tuple[str, ...]
    found: str | None


def train(
    texts: Iterable[str],
    vocab_size: int,
    special_tokens: list[str],
    handling: Handling,
    *,
    min_frequency: int = 2,
    alphabet_limit: int | None = None,
    max_word_length: int = 100,
) -> Tokenizer:
    """Pieces by frequency.

    min_frequency: a pair seen less often is not merged
    alphabet_limit: keep only so many symbols, the most frequent ones; each character counts
        twice, with and without ##
    max_word_length: a longer word is unknown as a whole (BERT: 100 characters)
    """
    allow_splits(handling, SPLITS)
    unknown = need_unknown("wordpiece", special_tokens)
    trainer = bpe_trainer(vocab_size, special_tokens, min_frequency, alphabet_limit)
    codes = SymbolCodes(before=PREFIX)
    words = map(handling.splitter(), texts)
    coded, _ = learn_merges(words, codes, code_with_prefix, trainer)
    if len(coded) > vocab_size:
        hint = "Or keep only the most frequent symbols: alphabet_limit=…"
        raise too_small(vocab_size, len(special_tokens), len(coded) - len(special_tokens), hint)
    pieces = [*special_tokens, *map(codes.spell, coded[len(special_tokens) :])]
    return longest_match_tokenizer(pieces, handling, unknown, max_word_length)


def train_likelihood(
    texts: Iterable[str],
    vocab_size: int,
    special_tokens: list[str],
    handling: Handling,
    *,
    min_frequency: int = 2,
    max_word_length: int = 100,
) -> Tokenizer:
    """Pieces by likelihood; min_frequency and max_word_length as in `train`.

    The score favours pairs that are nearly always together, however rare: raise min_frequency
    on a large corpus, or the vocabulary fills with rare words.
    """
    allow_splits(handling, SPLITS)
    unknown = need_unknown("wordpiece-likelihood", special_tokens)
    words: Counter[str] = Counter()
    for text in map(handling.splitter(), texts):
        words.update(text)
    characters = sorted(set().union(*words))
    pieces = dict.fromkeys([*special_tokens, *characters, *(PREFIX + c for c in characters)])
    if len(pieces) > vocab_size:
        hint = "Or clean the texts of rare characters."
        raise too_small(vocab_size, len(special_tokens), 2 * len(characters), hint)
    merges = learn_by_likelihood(words, min_frequency)
    while len(pieces) < vocab_size and (merge := next(merges, None)):
        pieces[merge.symbol] = None
    return longest_match_tokenizer(pieces, handling, unknown, max_word_length)


def learn_by_likelihood(words: Mapping[str, int], min_count: int = 1) -> Iterator[ScoredMerge]:
    """Merges with the highest count(ab) / (count(a) * count(b)), best first.

    words: word -> count. Ties: the more frequent pair, then the alphabetically first.
    """
    corpus = Corpus((symbols(word), count) for word, count in words.items())
    holding: defaultdict[str, set[Pair]] = defaultdict(set)  # symbol -> pairs that it is part of
    heap: list[tuple[float, int, Pair]] = []

    def entry(pair: Pair) -> tuple[float, int, Pair]:
        count = corpus.pairs[pair]
        return -count / (corpus.symbols[pair[0]] * corpus.symbols[pair[1]]), -count, pair

    def push(pairs: Iterable[Pair]) -> None:
        for pair in pairs:
            if corpus.pairs.get(pair, 0) >= min_count:
                holding[pair[0]].add(pair)
                holding[pair[1]].add(pair)
                heapq.heappush(heap, entry(pair))

    push(corpus.pairs)
    while heap:
        top = heapq.heappop(heap)
        left, right = pair = top[2]
        # An entry is stale when a merge has changed its counts since: a fresh one lies deeper.
        if corpus.pairs.get(pair, 0) < min_count or top != entry(pair):
            continue
        counts = corpus.pairs[pair], corpus.symbols[left], corpus.symbols[right]
        merge = ScoredMerge(left, right, *counts)
        yield merge
        touched = corpus.merge(pair, merge.symbol)
        # Fewer lefts and rights remain, which raises the score of every pair they are part of.
        push(touched | holding[left] | holding[right])


def symbols(word: str) -> list[str]:
    """low -> l ##o ##w."""
    return [word[0], *(PREFIX + char for char in word[1:])]


def longest_match(word: str, pieces: Collection[str]) -> Iterator[Match]:
    """The steps of WordPiece: from `start` on, try the longest rest first, then ever shorter.

    The last step has `found` None when nothing fits: the whole word is then unknown.
    """
    start = 0
    while start < len(word):
        prefix = PREFIX if start else ""
        tried: list[str] = []
        for end in range(len(word), start, -1):
            tried.append(prefix + word[start:end])
            if tried[-1] in pieces:
                break
        found = tried[-1] if tried[-1] in pieces else None
        yield Match(start, tuple(tried), found)
        if found is None:
            return
        start = end


def longest_match_tokenizer(
    pieces: Iterable[str], handling: Handling, unknown: str, max_word_length: int = 100
) -> Tokenizer:
    """A WordPiece tokenizer of these pieces, ids in their order; a repeated piece counts once."""
    vocab = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
    model = models.WordPiece(vocab, unk_token=unknown, max_input_chars_per_word=max_word_length)
    return assemble(model, handling, decoders.WordPiece(prefix=PREFIX, cleanup=True))
