"""Trains the unigram language model over subwords: expectation maximization and pruning.

Kudo 2018, "Subword Regularization", section 3.2, with the constants of SentencePiece. Training
starts with a large vocabulary of frequent substrings and repeats two steps until it is small
enough: (1) expectation maximization fits the probabilities of the subwords to the words; (2) the
subwords whose removal lowers the likelihood least are removed. Single characters are never removed.

All words are processed together, as arrays of the edges of their lattices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from unicodedata import category, name

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from regard.errors import ConfigError, shown
from regard.text.special_tokens import TrainerInput
from regard.text.unigram import SPACE

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]

SEED_SIZE = 1_000_000  # the most substrings at the start
EM_STEPS = 2  # of expectation maximization before each pruning
MIN_COUNT = 0.5  # a subword with a smaller expected count is removed
SHRINKING_FACTOR = 0.75  # the share of the subwords that one pruning keeps
# pruning ends at so many times the wanted size; then the least probable subwords are removed
SURPLUS = 1.1


def train(
    inputs: TrainerInput,
    *,
    max_subword_length: int = 16,
    character_coverage: float = 0.9995,
    split_by_unicode_script: bool = True,
) -> Tokenizer:
    """Train a unigram tokenizer. A word includes the space before it, as the character "▁".

    max_subword_length: in characters
    character_coverage: the share of the characters of the texts that the vocabulary covers; rarer
        characters are unknown
    split_by_unicode_script: no subword has characters of two scripts, or letters together with
        digits or punctuation

    Raises:
        ConfigError: an option is out of range, or `vocab_size` cannot hold the characters.
    """
    inputs.preprocessing.check_split("whitespace")
    if not isinstance(character_coverage, int | float) or not 0 < character_coverage <= 1:
        raise ConfigError(
            "`character_coverage` must be a number above 0 and at most 1, but is "
            f"{shown(character_coverage)}."
        )
    unknown = inputs.special_tokens.index(inputs.unknown())
    words = Counter([SPACE])  # which is in every vocabulary
    words.update(SPACE + word for line in inputs.words() for word in line)
    size = inputs.vocab_size - len(inputs.special_tokens)
    characters = covered_characters(words, character_coverage)
    if len(characters) > size:
        raise inputs.too_small(len(characters), "Or lower `character_coverage`.")
    parts = split_at_others(words, characters)
    scores = learn(parts, size, max_subword_length, split_by_unicode_script)
    special = [(name, 0.0) for name in inputs.special_tokens]
    learned = [item for item in scores.items() if item[0] not in inputs.special_tokens]
    fast = Tokenizer(models.Unigram([*special, *learned], unknown))
    if (normalizer := inputs.preprocessing.normalizer()) is not None:
        fast.normalizer = normalizer
    metaspace = pre_tokenizers.Metaspace(SPACE, prepend_scheme="always")
    fast.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace])
    fast.decoder = decoders.Metaspace(SPACE, prepend_scheme="always")
    return fast


def covered_characters(words: Mapping[str, int], coverage: float) -> list[str]:
    """The space, and the most frequent characters that together are this share of the text."""
    counts = Counter({SPACE: 0})
    for word, count in words.items():
        for char in word:
            counts[char] += count
    total, covered, characters = sum(counts.values()), 0, [SPACE]
    for char, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if covered >= coverage * total:
            break
        covered += count
        characters += [char] if char != SPACE else []
    return characters


def split_at_others(words: Mapping[str, int], characters: Iterable[str]) -> dict[str, int]:
    """The parts of words between characters that are not in the list -> their counts."""
    covered, parts = set(characters), Counter[str]()
    for word, count in words.items():
        spaced = "".join(char if char in covered else " " for char in word)
        for part in spaced.split(" "):
            if part:
                parts[part] += count
    return dict(parts)


def learn(
    words: Mapping[str, int], size: int, max_length: int = 16, by_script: bool = True
) -> dict[str, float]:
    """The subwords of the words with their logarithmic probabilities, the most probable first.

    words: word -> count.
    size: the greatest number of subwords.
    max_length: the length of the longest subword, in characters.
    by_script: whether all characters of a subword must have one script.
    """
    subwords, scores = _seeds(words, max_length, by_script)
    counts = np.array(list(words.values()), dtype=np.float64)
    lattices = Lattices.of(list(words), subwords)
    while True:
        for _ in range(EM_STEPS):
            expected = lattices.expected_counts(scores, counts)
            keep = (expected >= MIN_COUNT) | lattices.is_character
            lattices, expected = lattices.with_subwords(keep), expected[keep]
            # A Dirichlet process prior, which favours few subwords (Liang and Klein 2007).
            floored = np.maximum(expected, MIN_COUNT)
            scores = _digamma(floored) - _digamma(floored.sum(keepdims=True))
        if len(lattices.subwords) <= max(int(size * SURPLUS), lattices.is_character.sum()):
            break
        target = max(int(size * SURPLUS), int(SHRINKING_FACTOR * len(lattices.subwords)))
        keep = _subwords_to_keep(lattices, scores, counts, target)
        lattices, scores = lattices.with_subwords(keep), scores[keep]
    return _final_vocabulary(lattices, scores, size)


def _final_vocabulary(lattices: Lattices, scores: Floats, size: int) -> dict[str, float]:
    """All characters and the most probable subwords, `size` together, with their scores."""
    order = np.lexsort((np.arange(len(scores)), -scores, ~lattices.is_character))[:size]
    chosen = order[np.lexsort((order, -scores[order]))]
    return {lattices.subwords[i]: float(f"{scores[i]:.9g}") for i in chosen.tolist()}


def _seeds(words: Mapping[str, int], max_length: int, by_script: bool) -> tuple[list[str], Floats]:
    """The initial subwords and their logarithmic probabilities.

    They are all characters, and the substrings with the largest count x length. A substring is
    frequent only if its parts are, so longer substrings are counted only where both parts that are
    one character shorter are frequent.
    """
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for char in word:
            counts[char] += count
    candidates, shorter = dict(counts), dict(counts)
    for length in range(2, max_length + 1):
        if not shorter:
            break
        longer: Counter[str] = Counter()
        for word, count in words.items():
            for start in range(len(word) - length + 1):
                subword = word[start : start + length]
                if subword[:-1] in shorter and subword[1:] in shorter:
                    longer[subword] += count
        # A longer subword consists of pairs that were checked.
        checked = length > 2 or not by_script
        shorter = {s: n for s, n in longer.items() if n >= 2 and (checked or _same_script(*s))}
        candidates |= shorter
    ranked = sorted(candidates, key=lambda s: (len(s) > 1, -candidates[s] * len(s), s))[:SEED_SIZE]
    weights = np.array(
        [candidates[s] * (len(s) if len(s) > 1 else 1) for s in ranked], dtype=np.float64
    )
    return ranked, np.log(weights) - np.log(weights.sum())


def _same_script(left: str, right: str) -> bool:
    return left == SPACE or script(left) == script(right)


@cache
def script(char: str) -> str:
    """The script of a character; "common" for digits, punctuation and symbols.

    Chinese characters and both Japanese syllabaries are one, as in SentencePiece.
    """
    if category(char)[0] not in "LM":
        return "common"
    first = name(char, "unknown").split(" ", 1)[0]
    return "CJK" if first in ("HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA") else first


def _subwords_to_keep(lattices: Lattices, scores: Floats, counts: Floats, target: int) -> Booleans:
    """True for the `target` subwords to keep: characters, and those whose removal costs most.

    Without a subword, words use the best segmentation of the subword into others instead. The cost
    is the decrease of the likelihood. A subword that is less probable than that segmentation is
    removed.
    """
    used = lattices.best_counts(scores, counts)
    total = used.sum()
    parts = Lattices.of(lattices.subwords, lattices.subwords, whole=False)
    log_used = np.log(np.maximum(used, 1e-300))
    best, pieces = parts.best_paths(scores)
    extra = np.zeros(len(used))
    length = np.zeros(len(used))
    for subword, piece in pieces:
        extra[subword] += np.log(np.maximum(used[piece] + used[subword], 1e-300))
        length[subword] += 1
    lost = log_used - np.log(total) - (extra - length * np.log(total + used * (length - 1)))
    loss = np.where(used > 0, used / total * lost, 0.0)
    keep = lattices.is_character.copy()
    candidates = np.flatnonzero(~keep & (scores >= best) & (used > 0))
    order = candidates[np.lexsort((candidates, -loss[candidates]))]
    keep[order[: max(0, target - int(keep.sum()))]] = True
    return keep


def _digamma(x: Floats) -> Floats:
    """The derivative of log Gamma, for x > 0: recurrence, then the asymptotic series."""
    x, shift = x.astype(np.float64), np.zeros_like(x)
    while (small := x < 7).any():
        shift -= np.where(small, 1 / x, 0.0)
        x = np.where(small, x + 1, x)
    y = 1 / (x * x)
    series = y * (1 / 12 - y * (1 / 120 - y * (1 / 252 - y * (1 / 240 - y / 132))))
    return shift + np.log(x) - 0.5 / x - series


@dataclass(frozen=True)
class Lattices:
    """The lattices of W words with E edges together.

    Node `first[w] + i` is before character i of word w; `last[w]` is the node after its end. Edge e
    of word `word[e]` goes from node `start[e]` to node `end[e]` with the subword
    `subwords[subword[e]]`.

    first, last: (W,).  word, start, end, subword: (E,).
    """

    subwords: list[str]
    first: Integers
    last: Integers
    word: Integers
    start: Integers
    end: Integers
    subword: Integers

    @classmethod
    def of(cls, words: list[str], subwords: list[str], whole: bool = True) -> Lattices:
        """The lattices of words. whole: whether a subword that is a whole word is an edge."""
        ids = {subword: number for number, subword in enumerate(subwords)}
        longest = max(map(len, subwords))
        edges: list[tuple[int, int, int, int]] = []
        for number, word in enumerate(words):
            for start in range(len(word)):
                for end in range(start + 1, min(start + longest, len(word)) + 1):
                    index = ids.get(word[start:end])
                    if index is not None and (whole or end - start < len(word)):
                        edges.append((number, start, end, index))
        lengths = np.array([len(word) + 1 for word in words])
        first = np.cumsum(lengths) - lengths
        table = np.array(edges, dtype=np.int64).reshape(-1, 4)
        of_word, starts, ends, of_edge = (table[:, column] for column in range(4))
        nodes = first[of_word] + starts, first[of_word] + ends
        return cls(subwords, first, first + lengths - 1, of_word, *nodes, of_edge)

    @property
    def is_character(self) -> Booleans:
        """(S,), true for subwords of one character."""
        return np.array([len(subword) == 1 for subword in self.subwords])

    def with_subwords(self, kept: Booleans) -> Lattices:
        """The lattices without the subwords that are not kept, (S,), and their edges."""
        subwords = [name for name, keep in zip(self.subwords, kept.tolist(), strict=True) if keep]
        ids, edges = np.cumsum(kept) - 1, kept[self.subword]
        parts = (self.word[edges], self.start[edges], self.end[edges], ids[self.subword[edges]])
        return Lattices(subwords, self.first, self.last, *parts)

    def expected_counts(self, scores: Floats, counts: Floats) -> Floats:
        """The expected count (S,) of each subword over all segmentations of all words: the E-step.

        scores: (S,), logarithmic probabilities.  counts: (W,), of the words.
        """
        score = scores[self.subword]
        forward = self._sums(self.start, self.end, score, self.first)
        backward = self._sums(self.end, self.start, score, self.last)
        whole = forward[self.last][self.word]
        share = np.exp(forward[self.start] + score + backward[self.end] - whole)
        expected = np.zeros(len(self.subwords))
        np.add.at(expected, self.subword, share * counts[self.word])
        return expected

    def _sums(self, source: Integers, target: Integers, score: Floats, begin: Integers) -> Floats:
        """For each node the log-sum-exp of the scores of all paths to it from `begin`, (W,)."""
        sums: Floats = np.full(int(self.last[-1]) + 1, -np.inf)
        sums[begin] = 0.0
        for edges, groups in _by_distance(target, np.abs(target - begin[self.word])):
            values: Floats = sums[source[edges]] + score[edges]
            highest = np.maximum.reduceat(values, groups)
            sizes = np.diff(groups, append=len(values))
            total = np.add.reduceat(np.exp(values - np.repeat(highest, sizes)), groups)
            sums[target[edges[groups]]] = highest + np.log(total)
        return sums

    def best_counts(self, scores: Floats, counts: Floats) -> Floats:
        """The count (S,) of each subword in the best segmentations of all words."""
        used = np.zeros(len(self.subwords))
        for word, subword in self.best_paths(scores)[1]:
            np.add.at(used, subword, counts[word])
        return used

    def best_paths(self, scores: Floats) -> tuple[Floats, list[tuple[Integers, Integers]]]:
        """The best segmentation of each word: its score (W,), and its subwords from last to first.

        Each item of the list holds the indices of words and of one subword of each of them.
        Words without a segmentation have the score -inf.
        """
        best = np.full(int(self.last[-1]) + 1, -np.inf)
        best[self.first] = 0.0
        chosen = np.full(len(best), -1)
        for edges, groups in _by_distance(self.end, self.end - self.first[self.word]):
            values = best[self.start[edges]] + scores[self.subword[edges]]
            highest = np.maximum.reduceat(values, groups)
            sizes = np.diff(groups, append=len(values))
            is_best = values == np.repeat(highest, sizes)
            order = np.where(is_best, np.arange(len(values)), len(values))
            chosen[self.end[edges[groups]]] = edges[np.minimum.reduceat(order, groups)]
            best[self.end[edges[groups]]] = highest
        steps = []
        word = np.flatnonzero(best[self.last] > -np.inf)
        node = self.last[word]
        while len(word):
            edge = chosen[node]
            steps.append((word, self.subword[edge]))
            node = self.start[edge]
            unfinished = node > self.first[word]
            word, node = word[unfinished], node[unfinished]
        return best[self.last], steps


def _by_distance(target: Integers, distance: Integers) -> Iterable[tuple[Integers, Integers]]:
    """The edges by the distance of their target, one distance at a time: their indices, sorted by
    target, and the positions where the edges of each target begin.
    """
    order = np.lexsort((target, distance))
    for edges in np.split(order, np.flatnonzero(np.diff(distance[order])) + 1):
        if len(edges):
            changes = np.flatnonzero(np.diff(target[edges])) + 1
            yield edges, np.concatenate(([0], changes))
