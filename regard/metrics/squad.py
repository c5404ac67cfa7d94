"""Exact match and F1 of answers in words, as SQuAD's official scripts compute them; 0 to 100.

Answers are compared in lower case, without punctuation (ASCII's), articles and surplus spaces
(Rajpurkar et al. 2016); a question's score is the best over its answers. In version 2.0
(Rajpurkar et al. 2018) a question may have no answer, which is to be told by the empty string.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from regard.errors import RegardError, shown
from regard.metrics.score import Score, check_any, check_equal, has_length

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
        self.missing = self.extra = 0

    def add(self, predictions: Sequence[str], references: Answers) -> None:
        """The predicted answers, and for each question its right ones.

        Raises:
            RegardError: not as many predictions as questions; a prediction that is no string; a
                question without an answer. Then no question of the batch is counted.
        """
        check_equal(predictions, references, "predictions", "questions")
        pairs = list(zip(predictions, references, strict=True))
        for at, (prediction, right) in enumerate(pairs):
            _check(at, prediction, right)
            if not len(right):
                raise RegardError(
                    f"Question {at} has no answer: questions without one are version 2.0's, "
                    "which SQuAD2 scores."
                )
        for prediction, right in pairs:
            self._sums.add(*_raw(prediction, right))

    def add_by_id(
        self, predictions: Mapping[str, str], references: Mapping[str, Sequence[str]]
    ) -> None:
        """All questions of a file. As the official script has it, one without a prediction scores
        0, and a prediction without a question is left out; the signature tells how many.

        Raises:
            RegardError: as `add`.
        """
        answered = [name for name in references if name in predictions]
        self.add([predictions[name] for name in answered], [references[name] for name in answered])
        for _ in range(len(references) - len(answered)):
            self._sums.add(0, 0)
        self.missing += len(references) - len(answered)
        self.extra += len(predictions.keys() - references.keys())

    def result(self) -> SquadScore:
        """F1 and exact match, 0 to 100.

        Raises:
            RegardError: nothing was added.
        """
        check_any(self._sums.total, "SQuAD")
        exact, f1 = self._sums.percent()
        signature = _signature("1.1", self._sums.total, missing=self.missing, extra=self.extra)
        details = {"exact_match": exact, "f1": f1}
        return SquadScore("SQuAD F1", f1, signature, self._sums.total, exact=exact, details=details)


class SQuAD2:
    """Version 2.0: a question without an answer is right when nothing is predicted.

    threshold: where scores for "no answer" are given, an answer whose score lies above it counts
    as not given. The official script's 1 never applies to probabilities; differences of logits,
    as BERT's, need one that was chosen on other data, such as another run's best.
    """

    def __init__(self, threshold: float = 1.0):
        self.threshold = threshold
        self.extra = 0
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
        thresholds shall be tried, how likely it has none; the larger, the likelier.

        Raises:
            RegardError: columns of unequal length; a prediction that is no string; scores for
                "no answer" in some batches only. Then no question of the batch is counted.
        """
        check_equal(predictions, references, "predictions", "questions")
        if no_answer is not None:
            check_equal(no_answer, references, "scores for no answer", "questions")
        if self.total and len(predictions) and bool(self._scored) != (no_answer is not None):
            raise RegardError("Scores for no answer must be given for all questions or for none.")
        pairs = list(zip(predictions, references, strict=True))
        for at, (prediction, right) in enumerate(pairs):
            _check(at, prediction, right)
        scores = [None] * len(pairs) if no_answer is None else list(map(float, no_answer))
        for (prediction, right), score in zip(pairs, scores, strict=True):
            self._add(prediction, right, score)

    def add_by_id(
        self,
        predictions: Mapping[str, str],
        references: Mapping[str, Sequence[str]],
        no_answer: Mapping[str, float] | None = None,
    ) -> None:
        """All questions of a file; predictions without a question are left out and counted.

        Raises:
            RegardError: as `add`; a question has no prediction or no score.
        """
        _check_complete(references, predictions, "prediction")
        names = list(references)
        if no_answer is not None:
            _check_complete(references, no_answer, "score for no answer")
            # Of equal scores, the best threshold depends on the order, officially the file's.
            names = [name for name in no_answer if name in references]
        self.add(
            [predictions[name] for name in names],
            [references[name] for name in names],
            None if no_answer is None else [no_answer[name] for name in names],
        )
        self.extra += len(predictions.keys() - references.keys())

    @property
    def total(self) -> int:
        """Questions so far."""
        return self._has.total + self._none.total

    def result(self) -> SquadScore:
        """F1 and exact match, 0 to 100, also of the questions with and without an answer, and with
        the best thresholds where scores for "no answer" were given.

        Raises:
            RegardError: nothing was added.
        """
        check_any(self.total, "SQuAD")
        overall = _Sums(
            self._has.exact + self._none.exact, self._has.f1 + self._none.f1, self.total
        )
        exact, f1 = overall.percent()
        details: dict[str, float] = {"exact": exact, "f1": f1, "total": self.total}
        for name, sums in (("HasAns", self._has), ("NoAns", self._none)):
            if sums.total:
                details[f"{name}_exact"], details[f"{name}_f1"] = sums.percent()
                details[f"{name}_total"] = sums.total
        if self._scored:
            details |= self._best()
        counts = {"has": self._has.total, "none": self._none.total, "extra": self.extra}
        threshold = f"|threshold:{self.threshold:g}" if self._scored else ""
        signature = _signature(f"2.0{threshold}", self.total, **counts)
        return SquadScore("SQuAD F1", f1, signature, self.total, exact=exact, details=details)

    def _add(self, prediction: str, right: Sequence[str], score: float | None) -> None:
        # An answer of articles and punctuation alone cannot be told from none.
        exact, f1 = _raw(prediction, [text for text in right if normalize(text)] or [""])
        f1 = max(exact, f1)  # nothing equals nothing; version 1.1 sees no shared word there
        if score is not None:
            self._scored.append((score, len(right) > 0, bool(prediction), exact, f1))
            if score > self.threshold:
                exact = f1 = float(not len(right))
        (self._has if len(right) else self._none).add(exact, f1)

    def _best(self) -> dict[str, float]:
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
            best[name] *= 100 / self.total
        return {f"best_{name}": value for name, value in best.items()}


def _raw(prediction: str, answers: Sequence[str]) -> tuple[float, float]:
    """Exact match and F1 with the answer that suits each best."""
    predicted, right = normalize(prediction), [normalize(answer) for answer in answers]
    exact = float(predicted in right)
    return exact, max(overlap(predicted, answer) for answer in right)


def _signature(version: str, count: int, **counts: int) -> str:
    parts = [f"{name}:{number}" for name, number in counts.items() if number]
    return "|".join([f"version:{version}", f"count:{count}", *parts])


def _check(at: int, prediction: str, answers: Sequence[str]) -> None:
    if not isinstance(prediction, str):
        raise RegardError(f"Prediction {at} must be a string, but is {shown(prediction)}.")
    listed = not isinstance(answers, str) and has_length(answers)
    if not listed or not all(isinstance(answer, str) for answer in answers):
        text = shown(answers)
        raise RegardError(f"The answers of question {at} must be a list of texts, but are {text}.")


def _check_complete(
    answers: Mapping[str, object], by_question: Mapping[str, object], what: str
) -> None:
    missing = [name for name in answers if name not in by_question]
    if missing:
        named = ", ".join([*missing[:3], *(["…"] if len(missing) > 3 else [])])
        raise RegardError(
            f"{len(missing)} of {len(answers)} questions have no {what}: {named}. Every question "
            "needs one; the prediction that there is no answer is the empty string."
        )
