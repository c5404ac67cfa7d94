"""Scores of texts against references: BLEU, chrF, ROUGE and CIDEr-D.

BLEU and chrF are functions of counts that add up over sentences (Papineni et al. 2002; Popović
2015), so that only the sums are kept, and the result is sacreBLEU's to the last bit. The package is
imported when a metric is made: a model that answers scores nothing.

ROUGE-1 and ROUGE-2 (Lin 2004) count the words and pairs of words that a summary shares with its
reference, ROUGE-L the longest common subsequence. Each gives precision, recall and their harmonic
mean F1 of a text; the score of a corpus is the mean of F1. Words are lowercase runs of a-z and 0-9,
not stemmed, as in the package `rouge-score`.

CIDEr-D says how much a caption agrees with several references (Vedantam et al. 2015). Of each
n-gram, n from 1 to 4, the weight in a text is its count times log(N / df), where df of the N images
have it in a reference. A caption and a reference are compared by

    sum of min(h, r) r over the n-grams / (|h| |r|)   times   exp(-(l_h - l_r)^2 / (2 sigma^2))

with weights h and r, lengths l in pairs of words, and sigma = 6 (section 4, "CIDEr-D"). The mean
over the references and the four n, times 10, is the score of a caption; that of a corpus is the
mean of its captions. It is usually printed times 100, as here.
"""

import math
import re
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

from regard.errors import RegardError, check_choice, warn
from regard.metrics.score import Score, check_any, check_equal

# One reference, or several, for each sentence.
References = Sequence[str] | Sequence[Sequence[str]]


def paired(predictions: Sequence[str], references: References) -> list[tuple[str, list[str]]]:
    """Each text with its references.

    Raises:
        RegardError: not as many references as predictions; a text has no reference.
    """
    check_equal(predictions, references, "predictions", "references")
    pairs = [
        (prediction, [right] if isinstance(right, str) else list(right))
        for prediction, right in zip(predictions, references, strict=True)
    ]
    for number, (_, several) in enumerate(pairs):
        if not several:
            raise RegardError(f"Text {number} has no reference.")
    return pairs


class _CorpusScore:
    """Sums what sacreBLEU counts in each sentence."""

    def __init__(self, scorer: Any):
        self.scorer = scorer
        self.count = 0
        self._sums: list[int] = []
        self._reference_counts: set[int] = set()

    def add(self, predictions: Sequence[str], references: References) -> None:
        """Detokenized sentences and, for each, its reference or references; see `paired`."""
        for prediction, several in paired(predictions, references):
            columns = [[reference] for reference in several]
            (counts,) = self.scorer._extract_corpus_statistics([prediction], columns)
            sums = self._sums or [0] * len(counts)
            self._sums = [a + b for a, b in zip(sums, counts, strict=True)]
            self._reference_counts.add(len(several))
            self.count += 1

    def result(self) -> Score:
        """The score of all that was added, as `corpus_score` of sacreBLEU gives it.

        Raises:
            RegardError: nothing was added.
        """
        check_any(self.count, type(self).__name__)
        counts = self._reference_counts
        self.scorer.num_refs = next(iter(counts)) if len(counts) == 1 else -1
        score = self.scorer._compute_score_from_stats(list(self._sums))
        return Score(score.name, score.score, str(self.scorer.get_signature()), self.count)


class BLEU(_CorpusScore):
    """sacreBLEU: geometric mean of 1- to 4-gram precisions, times the brevity penalty; 0 to 100.

    tokenize: "13a" (mteval's, the usual one), "none" for text that is already tokenized, "intl",
    "char", "zh".  lowercase: compare without case.  smooth: "exp" (the usual one), "floor" or
    "none", for n-grams without a match.
    """

    def __init__(self, tokenize: str = "13a", lowercase: bool = False, smooth: str = "exp"):
        from sacrebleu.metrics.bleu import BLEU as SacreBLEU

        check_choice("tokenize", tokenize, SacreBLEU.TOKENIZERS)
        super().__init__(
            SacreBLEU(tokenize=tokenize, lowercase=lowercase, smooth_method=smooth, force=True)
        )


class CHRF(_CorpusScore):
    """chrF: F-score of character n-grams (to 6), recall weighing twice; 0 to 100.

    words: also word n-grams up to this length; 2 is chrF++.
    """

    def __init__(self, words: int = 0):
        from sacrebleu.metrics.chrf import CHRF as SacreCHRF

        super().__init__(SacreCHRF(word_order=words))


KINDS = ("rouge1", "rouge2", "rougeL")
ROUGE_WORD = re.compile(r"[a-z0-9]+")


class ROUGE:
    """The mean F1 of texts against their references; 0 to 100.

    kind: "rouge1", "rouge2" or "rougeL".
    """

    def __init__(self, kind: str = "rougeL"):
        check_choice("kind", kind, KINDS)
        self.kind, self.sum, self.count = kind, 0.0, 0

    def add(self, predictions: Sequence[str], references: Sequence[str]) -> None:
        """Texts and, for each, its reference; see `paired`."""
        for prediction, (reference, *_) in paired(predictions, references):
            for text in (prediction, reference):
                if not ROUGE_WORD.search(text.lower()) and any(map(str.isalpha, text)):
                    warn(
                        "ROUGE counts words of a-z and 0-9 alone, as the package rouge-score does, "
                        f"and {text!r:.60} has none. Choose chrF for such texts.",
                    )
            words = (ROUGE_WORD.findall(text.lower()) for text in (prediction, reference))
            self.sum += self._f1(*words)
            self.count += 1

    def result(self) -> Score:
        """The mean of all that was added.

        Raises:
            RegardError: nothing was added.
        """
        check_any(self.count, "ROUGE")
        name = f"ROUGE-{self.kind.removeprefix('rouge')}"
        signature = f"count:{self.count}|score:f1|tok:a-z0-9|stem:no"
        return Score(name, 100 * self.sum / self.count, signature, self.count)

    def _f1(self, hypothesis: list[str], reference: list[str]) -> float:
        if self.kind == "rougeL":
            return _harmonic_mean(
                longest_common(hypothesis, reference), len(hypothesis), len(reference)
            )
        size = int(self.kind[-1])
        counts = [_ngrams(words, size) for words in (hypothesis, reference)]
        return _harmonic_mean((counts[0] & counts[1]).total(), counts[0].total(), counts[1].total())


def longest_common(first: Sequence[Hashable], second: Sequence[Hashable]) -> int:
    """The length of the longest common subsequence (Hyyrö 2004): a bit for each of `first`."""
    positions: dict[Hashable, int] = {}
    for i, item in enumerate(first):
        positions[item] = positions.get(item, 0) | 1 << i
    ones = (1 << len(first)) - 1
    row = ones
    for item in second:
        matches = row & positions.get(item, 0)
        row = (row + matches | row - matches) & ones
    return len(first) - row.bit_count()


def _ngrams(words: Sequence[str], size: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(words[i:] for i in range(size)), strict=False))


def _harmonic_mean(common: int, hypothesis: int, reference: int) -> float:
    """2 P R / (P + R), P = common / hypothesis, R = common / reference."""
    return 2 * common / (hypothesis + reference) if common else 0.0


LONGEST, SIGMA = 4, 6.0
CIDER_WORD = re.compile(r"\w+(?:['’-]\w+)*")

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
        """Captions and, of each, the references of its image; see `paired`."""
        for caption, texts in paired(predictions, references):
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
    words = CIDER_WORD.findall(text.lower())
    return [_ngrams(words, n) for n in range(1, LONGEST + 1)]


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
