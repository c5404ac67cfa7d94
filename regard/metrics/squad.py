"""Exact match and F1 of answers in words, as SQuAD's official scripts compute them; 0 to 100.

Answers are compared in lower case, without punctuation (ASCII's), articles and surplus spaces
(Rajpurkar et al. 2016); a question's score is the best over its answers. In version 2.0
(Rajpurkar et al. 2018) a question may have no answer, which is to be told by the empty string.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from regard.errors import RegardError
from regard.metrics.score import Score, check_any, check_equal

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")

Answers = Sequence[Sequence[str]]


def normalize(text: str) -> str:
    """What of an answer is compared: `The  U.S.` is `us`."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def overlap(prediction: str, answer: str) -> float:
    """F1 of the words two normalized answers share, each as often as in both; 0 to 1."""
    words, answer_words = prediction.split(), answer.split()
    shared = (Counter(words) & Counter(answer_words)).total()
    return 2 * shared / (len(words) + len(answer_words)) if shared else 0.0


@dataclass(frozen=True, kw_only=True)
class SquadScore(Score):
    """`value` is F1 and `exact` the exact match, in percent; `details` are all numbers that the
    official script prints, under its names."""

    exact: float
    details: dict[str, float]

    def __str__(self) -> str:
        return f"{self.name} = {self.value:.2f}, EM = {self.exact:.2f} {self.signature}"


@dataclass
class _Sums:
    """Over some of the questions."""

    exact: float = 0.0
    f1: float = 0.0
    total: int = 0

    def add(self, exact: float, f1: float) -> None:
        self.exact += exact
        self.f1 += f1
        self.total += 1

    def percent(self) -> tuple[float, float]:
        return 100 * self.exact / self.total, 100 * self.f1 / self.total


class SQuAD:
    """Version 1.1: every question has an answer."""

    def __init__(self) -> None:
        self._sums = _Sums()

    def add(self, predictions: Sequence[str], references: Answers) -> None:
        """The predicted answers, and for each question its right ones.

        Raises:
            RegardError: not as many predictions as questions; a question without an answer.
        """
        check_equal(predictions, references, "predictions", "questions")
        if not all(references):
            raise RegardError("A question has no answer: SQuAD2 scores such data, version 2.0.")
        for prediction, right in zip(predictions, references, strict=True):
            self._sums.add(*_raw(prediction, right))

    def result(self) -> SquadScore:
        """F1 and exact match, 0 to 100.

        Raises:
            RegardError: nothing was added.
        """
        check_any(self._sums.total, "SQuAD")
        exact, f1 = self._sums.percent()
        signature, details = (
            f"version:1.1|count:{self._sums.total}",
            {"exact_match": exact, "f1": f1},
        )
        return SquadScore("SQuAD F1", f1, signature, self._sums.total, exact=exact, details=details)


class SQuAD2:
    """Version 2.0: a question without an answer is right when nothing is predicted.

    threshold: where scores for "no answer" are given, an answer whose score lies above it counts
    as not given. The official script's 1 never applies to probabilities; differences of logits,
    as BERT's, need one that was chosen on other data, such as another run's best.
    """

    def __init__(self, threshold: float = 1.0):
        self.threshold = threshold
        self._has, self._none = _Sums(), _Sums()
        # For the best thresholds, where scores are given: (score, has answers, answered, EM, F1).
        # They are known only at the end, so this grows with the questions; the rest does not.
        self._scored: list[tuple[float, bool, bool, float, float]] = []

    def add(
        self,
        predictions: Sequence[str],
        references: Answers,
        no_answer: Sequence[float] | None = None,
    ) -> None:
        """The predicted answers, for each question its right ones or none, and for each, where
        thresholds shall be tried, how likely it has none; the larger, the likelier. Of equal scores
        the best threshold depends on the order of the questions.

        Raises:
            RegardError: columns of unequal length.
        """
        check_equal(predictions, references, "predictions", "questions")
        if no_answer is not None:
            check_equal(no_answer, references, "scores for no answer", "questions")
        scores = [None] * len(predictions) if no_answer is None else list(map(float, no_answer))
        for prediction, right, score in zip(predictions, references, scores, strict=True):
            self._add(prediction, right, score)

    def result(self) -> SquadScore:
        """F1 and exact match, 0 to 100, also of the questions with and without an answer, and with
        the best thresholds where scores for "no answer" were given.

        Raises:
            RegardError: nothing was added.
        """
        total = self._has.total + self._none.total
        check_any(total, "SQuAD")
        overall = _Sums(self._has.exact + self._none.exact, self._has.f1 + self._none.f1, total)
        exact, f1 = overall.percent()
        details: dict[str, float] = {"exact": exact, "f1": f1, "total": total}
        for name, sums in (("HasAns", self._has), ("NoAns", self._none)):
            if sums.total:
                details[f"{name}_exact"], details[f"{name}_f1"] = sums.percent()
                details[f"{name}_total"] = sums.total
        parts = ["version:2.0"]
        if self._scored:
            details |= self._best(total)
            parts.append(f"threshold:{self.threshold:g}")
        parts.append(f"count:{total}")
        counts = {"has": self._has.total, "none": self._none.total}
        signature = "|".join([*parts, *(f"{name}:{n}" for name, n in counts.items() if n)])
        return SquadScore("SQuAD F1", f1, signature, total, exact=exact, details=details)

    def _add(self, prediction: str, right: Sequence[str], score: float | None) -> None:
        # An answer of articles and punctuation alone cannot be told from none.
        exact, f1 = _raw(prediction, [text for text in right if normalize(text)] or [""])
        f1 = max(exact, f1)  # nothing equals nothing; version 1.1 sees no shared word there
        if score is not None:
            self._scored.append((score, len(right) > 0, bool(prediction), exact, f1))
            if score > self.threshold:
                exact = f1 = float(not len(right))
        (self._has if len(right) else self._none).add(exact, f1)

    def _best(self, total: int) -> dict[str, float]:
        """The best values, and the largest scores for "no answer" that still mean an answer.

        From nothing answered on, questions are answered in the order of their scores.
        """
        ordered = sorted(self._scored, key=lambda question: question[0])
        best = {}
        for name, column in (("exact", 3), ("f1", 4)):
            value: float = self._none.total
            best[name], best[f"{name}_thresh"] = value, 0.0
            for question in ordered:
                score, has, answered = question[:3]
                value += question[column] if has else -answered
                if value > best[name]:
                    best[name], best[f"{name}_thresh"] = value, score
            best[name] *= 100 / total
        return {f"best_{name}": value for name, value in best.items()}


def _raw(prediction: str, answers: Sequence[str]) -> tuple[float, float]:
    """Exact match and F1 with the answer that suits each best."""
    predicted, right = normalize(prediction), [normalize(answer) for answer in answers]
    exact = float(predicted in right)
    return exact, max(overlap(predicted, answer) for answer in right)
