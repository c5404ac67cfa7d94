"""BLEU and chrF, computed by sacreBLEU from sums over the corpus.

Both are functions of counts that add up over sentences (Papineni et al. 2002; Popović 2015), so
that only the sums are kept, and the result is sacreBLEU's to the last bit. The package is imported
when a metric is made: a model that answers scores nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from regard.errors import RegardError
from regard.metrics.score import Score, check_any, check_equal, references_of

# One reference, or several, for each sentence.
References = Sequence[str] | Sequence[Sequence[str]]


class _CorpusScore:
    """Sums what sacreBLEU counts in each sentence."""

    def __init__(self, scorer: Any):
        self.scorer = scorer
        self.count = 0
        self._sums: list[int] = []
        self._reference_counts: set[int] = set()

    def add(self, predictions: Sequence[str], references: References) -> None:
        """Detokenized sentences and, for each, its reference or references.

        Raises:
            RegardError: not as many references as predictions; a sentence that is no string or
                has no reference. Then no sentence of the batch is counted.
        """
        check_equal(predictions, references, "predictions", "references")
        pairs = list(zip(predictions, map(references_of, references), strict=True))
        for number, pair in enumerate(pairs, self.count):
            _check(number, *pair)
        for pair in pairs:
            self._add(*pair)

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

    def _add(self, hypothesis: str, references: list[str]) -> None:
        columns = [[reference] for reference in references]
        (counts,) = self.scorer._extract_corpus_statistics([hypothesis], columns)
        sums = self._sums or [0] * len(counts)
        self._sums = [a + b for a, b in zip(sums, counts, strict=True)]
        self._reference_counts.add(len(references))
        self.count += 1


def _check(number: int, hypothesis: Any, references: list[Any]) -> None:
    if not references:
        raise RegardError(f"Sentence {number} has no reference.")
    for text in (hypothesis, *references):
        if not isinstance(text, str):
            raise RegardError(f"Sentence {number} must be a string, but is {text!r}.")


class BLEU(_CorpusScore):
    """sacreBLEU: geometric mean of 1- to 4-gram precisions, times the brevity penalty; 0 to 100.

    tokenize: "13a" (mteval's, the usual one), "none" for text that is already tokenized, "intl",
    "char", "zh".  lowercase: compare without case.  smooth: "exp" (the usual one), "floor" or
    "none", for n-grams without a match.
    """

    def __init__(self, tokenize: str = "13a", lowercase: bool = False, smooth: str = "exp"):
        from sacrebleu.metrics.bleu import BLEU as SacreBLEU

        rules = ("exp", "floor", "none")
        if smooth not in rules:
            raise RegardError(f"`smooth` must be one of {', '.join(rules)}, but is {smooth!r}.")
        if tokenize not in SacreBLEU.TOKENIZERS:
            names = ", ".join(SacreBLEU.TOKENIZERS)
            raise RegardError(f"`tokenize` must be one of {names}, but is {tokenize!r}.")
        super().__init__(
            SacreBLEU(tokenize=tokenize, lowercase=lowercase, smooth_method=smooth, force=True)
        )


class CHRF(_CorpusScore):
    """chrF: F-score of character n-grams (to 6), recall weighing `beta` times; 0 to 100.

    words: also word n-grams up to this length; 2 is chrF++.
    """

    def __init__(self, words: int = 0, lowercase: bool = False, beta: int = 2):
        from sacrebleu.metrics.chrf import CHRF as SacreCHRF

        super().__init__(SacreCHRF(word_order=words, lowercase=lowercase, beta=beta))


def bleu(predictions: Sequence[str], references: References, **options: Any) -> Score:
    """BLEU of a corpus that fits into memory."""
    return _score(BLEU(**options), predictions, references)


def chrf(predictions: Sequence[str], references: References, **options: Any) -> Score:
    """chrF of a corpus that fits into memory."""
    return _score(CHRF(**options), predictions, references)


def _score(metric: _CorpusScore, hypotheses: Sequence[str], references: References) -> Score:
    metric.add(hypotheses, references)
    return metric.result()
