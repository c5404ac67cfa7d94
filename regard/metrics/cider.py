"""CIDEr-D: how much a caption agrees with several references (Vedantam et al. 2015).

Of each n-gram, n from 1 to 4, the weight in a text is its count times log(N / df), where df of the
N images have it in a reference. A caption and a reference are compared by

    sum of min(h, r) r over the n-grams / (|h| |r|)   times   exp(-(l_h - l_r)^2 / (2 sigma^2))

with weights h and r, lengths l in pairs of words, and sigma = 6 (section 4, "CIDEr-D"). The mean
over the references and the four n, times 10, is the score of a caption; that of a corpus is the
mean of its captions. It is usually printed times 100, as here.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

from regard.errors import RegardError
from regard.metrics.score import Score, check_any, check_equal, references_of

LONGEST, SIGMA = 4, 6.0
_WORD = re.compile(r"\w+(?:['’-]\w+)*")

Ngram = tuple[str, ...]
Counts = list[Counter[Ngram]]  # of n from 1 to 4


class CIDEr:
    """CIDEr-D of captions, 0 to 1,000; of one image alone it is 0, since every n-gram is in all.

    Words are lowercase runs of letters and digits, also with apostrophes and hyphens inside, and
    are not stemmed. The weights depend on all references, so all n-grams are kept until the end.
    """

    def __init__(self) -> None:
        self._captions: list[Counts] = []
        self._references: list[list[Counts]] = []

    def add(self, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> None:
        """Captions and, of each, the references of its image: a list of them, or one.

        Raises:
            RegardError: not as many references as captions, or one that is no string, or none.
                Then no caption of the batch is counted.
        """
        check_equal(predictions, references, "predictions", "references")
        pairs = list(zip(predictions, map(references_of, references), strict=True))
        for number, (caption, texts) in enumerate(pairs, len(self._captions)):
            if not texts:
                raise RegardError(f"Caption {number} has no reference.")
            for text in (caption, *texts):
                if not isinstance(text, str):
                    raise RegardError(f"Caption {number} must be a string, but is {text!r}.")
        for caption, texts in pairs:
            self._captions.append(ngrams(caption))
            self._references.append([ngrams(text) for text in texts])

    def result(self) -> Score:
        """The score of all that was added.

        Raises:
            RegardError: nothing was added.
        """
        check_any(len(self._captions), "CIDEr")
        images: Counter[Ngram] = Counter()
        for references in self._references:
            images.update({gram for counts in references for grams in counts for gram in grams})
        scores = [
            sum(
                similarity(caption, reference, images, len(self._captions))
                for reference in references
            )
            / len(references)
            for caption, references in zip(self._captions, self._references, strict=True)
        ]
        count = len(scores)
        signature = f"count:{count}|version:D|n:{LONGEST}|sigma:{SIGMA:g}|tok:words|stem:no"
        return Score("CIDEr-D", 100 * math.fsum(scores) / count, signature, count)


def ngrams(text: str) -> Counts:
    """The n-grams of a text, n from 1 to 4."""
    words = _WORD.findall(text.lower())
    return [
        Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
        for n in range(1, LONGEST + 1)
    ]


def similarity(caption: Counts, reference: Counts, images: Counter[Ngram], count: int) -> float:
    """10 times the mean over n, as above; `images` says in how many of `count` an n-gram is."""
    total = 0.0
    for of_caption, of_reference in zip(caption, reference, strict=True):
        h, r = (_weights(counts, images, count) for counts in (of_caption, of_reference))
        norm = math.hypot(*h.values()) * math.hypot(*r.values())
        if norm:
            total += math.fsum(min(h[gram], r[gram]) * r[gram] for gram in h.keys() & r) / norm
    difference = caption[1].total() - reference[1].total()
    return 10 * total / LONGEST * math.exp(-(difference**2) / (2 * SIGMA**2))


def _weights(counts: Counter[Ngram], images: Counter[Ngram], count: int) -> dict[Ngram, float]:
    return {
        gram: number * (math.log(count) - math.log(max(1, images[gram])))
        for gram, number in counts.items()
    }
