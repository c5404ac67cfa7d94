"""Pairs of texts for BERT's next-sentence prediction (Devlin et al. 2019, appendix A.2).

    A   sentences of a document, one after the other
    B   the sentences that follow them (half of the pairs), or sentences of another document

Together a pair has as many tokens as the model reads; one in ten is shorter, of a random length.
"""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np

from regard.data.corpus import Corpus
from regard.data.encoder_inputs import bert_truncation
from regard.errors import ConfigError, check_at_least

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

    def draw_pairs(self, cycle: int) -> np.ndarray:
        """The pairs of one draw, (N, 5) int64: see `Pair`."""
        draw = random.Random(f"{self.seed} {cycle}")
        pairs = (
            pair for number in range(len(self.documents)) for pair in self._pairs_of(number, draw)
        )
        return np.array(list(pairs), dtype=np.int64)

    def _pairs_of(self, number: int, draw: random.Random) -> Iterator[Pair]:
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

    def _from_another_document(
        self, number: int, least: int, draw: random.Random
    ) -> tuple[int, int]:
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
        first: tuple[int, int], second: tuple[int, int], length: int, draw: random.Random
    ) -> tuple[int, int, int, int]:
        """Both texts within `length` tokens; the longer one loses tokens at both of its ends."""
        sizes = first[1] - first[0], second[1] - second[0]
        lengths = bert_truncation(sizes[0], sizes[1], length) if sum(sizes) > length else sizes
        bounds: list[int] = []
        for (start, _), size, left in zip((first, second), sizes, lengths, strict=True):
            front = sum(draw.random() < 0.5 for _ in range(min(size - left, 1000)))
            bounds += [start + front, start + front + left]
        return bounds[0], bounds[1], bounds[2], bounds[3]
