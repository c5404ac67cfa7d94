"""WordPiece: a word is encoded by the longest known subword first, ## before what continues it.

wordpiece             subwords chosen by frequency, as BPE does (what the `tokenizers` library calls
                      training WordPiece)
wordpiece-likelihood  subwords chosen by score(ab) = count(ab) / (count(a) * count(b)), by a trainer
                      of this library: the pair whose merge raises the likelihood of the corpus most
                      per occurrence (Schuster and Nakajima 2012, in the form the lectures use)

Both encode alike: see `longest_match`.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from tokenizers import Tokenizer, decoders, models

from regard.text import bpe
from regard.text.preprocessing import Preprocessing, TrainerInput

PREFIX = "##"
LONGEST_WORD = 100  # characters; a longer word is unknown as a whole, as of BERT


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
        """The merged symbol."""
        return self.left + self.right.removeprefix(PREFIX)


@dataclass(frozen=True)
class Match:
    """One step of the longest match: what was tried from character `start` on, and what is known;
    None: nothing."""

    start: int
    tried: tuple[str, ...]
    found: str | None


def train(inputs: TrainerInput, *, min_frequency: int = 2) -> Tokenizer:
    """Subwords by frequency. min_frequency: a pair seen less often is not merged."""
    inputs.preprocessing.check_split("punctuation", "whitespace")
    unknown, codes = inputs.unknown(), bpe.SymbolCodes(prefix=PREFIX)
    limits = inputs.vocab_size, inputs.special_tokens, min_frequency
    coded, _ = bpe.learn_merges(inputs.words(), codes, bpe.code_with_prefix, *limits)
    subwords = [*inputs.special_tokens, *map(codes.decode, coded)]
    return longest_match_tokenizer(subwords, inputs.preprocessing, unknown)


def train_likelihood(inputs: TrainerInput, *, min_frequency: int = 2) -> Tokenizer:
    """Subwords by likelihood; min_frequency as in `train`.

    The score favours pairs that nearly always occur together, however rare: raise min_frequency on
    a large corpus, or the vocabulary fills with rare words.
    """
    inputs.preprocessing.check_split("punctuation", "whitespace")
    unknown, words = inputs.unknown(), Counter[str]()
    for split in inputs.words():
        words.update(split)
    characters = sorted(set().union(*words))
    alphabet = [*characters, *(PREFIX + c for c in characters)]
    subwords = dict.fromkeys([*inputs.special_tokens, *alphabet])
    if len(subwords) > inputs.vocab_size:
        raise inputs.too_small(len(alphabet), "Or clean the texts of rare characters.")
    merges = learn_by_likelihood(words, min_frequency)
    while len(subwords) < inputs.vocab_size and (merge := next(merges, None)):
        subwords[merge.symbol] = None
    return longest_match_tokenizer(subwords, inputs.preprocessing, unknown)


def learn_by_likelihood(words: Mapping[str, int], min_count: int = 1) -> Iterator[ScoredMerge]:
    """Merges with the highest count(ab) / (count(a) * count(b)), best first.

    words: word -> count. Ties: the more frequent pair, then the alphabetically first.
    """
    corpus = bpe.SymbolCounts((symbols(word), count) for word, count in words.items())
    least = max(min_count, 1)  # a pair that does not occur has no score
    holding: defaultdict[str, set[bpe.Pair]] = defaultdict(
        set
    )  # symbol -> pairs that it is part of
    heap: list[tuple[float, int, bpe.Pair]] = []

    def entry(pair: bpe.Pair) -> tuple[float, int, bpe.Pair]:
        count = corpus.pairs[pair]
        return -count / (corpus.symbols[pair[0]] * corpus.symbols[pair[1]]), -count, pair

    def push(pairs: Iterable[bpe.Pair]) -> None:
        for pair in pairs:
            if corpus.pairs.get(pair, 0) >= least:
                holding[pair[0]].add(pair)
                holding[pair[1]].add(pair)
                heapq.heappush(heap, entry(pair))

    push(corpus.pairs)
    while heap:
        top = heapq.heappop(heap)
        left, right = pair = top[2]
        # An entry is stale if a merge has changed its counts since: another one has the new score.
        if corpus.pairs.get(pair, 0) < least or top != entry(pair):
            continue
        counts = corpus.pairs[pair], corpus.symbols[left], corpus.symbols[right]
        merge = ScoredMerge(left, right, *counts)
        yield merge
        touched = corpus.merge(pair, merge.symbol)
        # Both symbols are now rarer, which raises the score of every pair that has one.
        push(touched | holding[left] | holding[right])


def symbols(word: str) -> list[str]:
    """low -> l ##o ##w."""
    return [word[0], *(PREFIX + char for char in word[1:])]


def longest_match(word: str, subwords: Collection[str]) -> Iterator[Match]:
    """The steps of WordPiece: from `start` on, try the longest remainder, then ever shorter ones.

    If nothing is known, `found` is None, and the whole word is unknown.
    """
    start = 0
    while start < len(word):
        prefix = PREFIX if start else ""
        tried: list[str] = []
        for end in range(len(word), start, -1):
            tried.append(prefix + word[start:end])
            if tried[-1] in subwords:
                break
        subword = tried[-1] if tried[-1] in subwords else None
        yield Match(start, tuple(tried), subword)
        if subword is None:
            return
        start = end


def longest_match_tokenizer(
    subwords: Iterable[str], preprocessing: Preprocessing, unknown: str
) -> Tokenizer:
    """A WordPiece tokenizer of these subwords, ids in their order; a repeated one counts once."""
    vocab = {subword: i for i, subword in enumerate(dict.fromkeys(subwords))}
    model = models.WordPiece(vocab, unk_token=unknown, max_input_chars_per_word=LONGEST_WORD)
    return bpe.assemble(model, preprocessing, decoders.WordPiece(prefix=PREFIX, cleanup=True))
