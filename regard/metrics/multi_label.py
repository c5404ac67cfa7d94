"""Scores of multi-label classification: F1, subset accuracy, and the calibration of each label.

In arrays (N, L), entry (i, l) belongs to example i and label l.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from regard.metrics.class_report import COLUMNS, ScoresByLabel, calibration_error
from regard.metrics.score import Score, ScoreReport, ScoreTable, check_any, check_equal


@dataclass(frozen=True)
class MultiLabelReport(ScoreReport):
    """The predicted labels of examples, any number each, against their targets.

    labels: precision, recall and F1 of each label, and their averages.
    calibration_errors: the expected calibration error of each label: its probability against
        whether an example has it, sum over bins of (n_b / N) |share_b - probability_b|.
    subset_accuracy: the share of examples of which all labels are correct.
    threshold: the labels whose probability is at least this are predicted.
    examples: N, the number of examples.
    """

    labels: ScoresByLabel
    calibration_errors: tuple[float, ...]
    subset_accuracy: float
    threshold: float
    examples: int

    @classmethod
    def of(
        cls, probabilities: np.ndarray, targets: np.ndarray, labels: Sequence[str], threshold: float
    ) -> MultiLabelReport:
        """The report for probabilities (N, L) and targets (N, L) bool: the labels of each example.

        Raises:
            RegardError: there are no examples, or not as many targets as predictions.
        """
        check_equal(probabilities, targets, "predictions", "targets")
        check_any(len(targets), "F1 of sets of labels")
        probabilities = probabilities.astype(np.float64)  # else the threshold is rounded
        predicted = probabilities >= threshold
        columns = zip((predicted & targets).sum(0), predicted.sum(0), targets.sum(0), strict=True)
        counts = {
            label: (int(correct), int(p), int(t))
            for label, (correct, p, t) in zip(labels, columns, strict=True)
        }
        errors = map(calibration_error, probabilities.T, targets.T)
        exact = float((predicted == targets).all(1).mean())
        return cls(ScoresByLabel.of(counts), tuple(errors), exact, threshold, len(targets))

    def values(self) -> dict[str, float]:
        """Micro-F1, macro-F1 and subset accuracy by name."""
        return {
            "micro-f1": self.labels.micro.f1,
            "macro-f1": self.labels.macro.f1,
            "subset-accuracy": self.subset_accuracy,
        }

    def scores(self) -> list[Score]:
        """The values as scores, the first with this report."""
        count, labels = self.examples, len(self.labels.classes)
        signature = f"labels:{labels}|threshold:{self.threshold:.4g}|count:{count}"
        names = ("micro-F1", "macro-F1", "subset accuracy")
        values = zip(names, self.values().values(), (self, None, None), strict=True)
        return [
            Score(name, value, signature, count, 4, report=report) for name, value, report in values
        ]

    def facts(self) -> dict[str, Any]:
        """As JSON has it."""
        labels = asdict(self.labels)
        errors = zip(labels["classes"], self.calibration_errors, strict=True)
        labels["classes"] = [row | {"calibration_error": error} for row, error in errors]
        return {**labels, "subset_accuracy": self.subset_accuracy, "threshold": self.threshold}

    def table(self) -> ScoreTable:
        """A row for each label, and one for each average."""
        errors = [*(f"{error:.3f}" for error in self.calibration_errors), "", ""]
        rows = [[*row, error] for row, error in zip(self.labels.rows(), errors, strict=True)]
        note = f"subset accuracy {self.subset_accuracy:.3f}, threshold {self.threshold:.3g}"
        head = ("label", *COLUMNS, "calibration error")
        return ScoreTable("Scores of each label", note, head, rows)


def best_threshold(probabilities: np.ndarray, targets: np.ndarray) -> float:
    """The threshold with the largest micro-F1; of several the largest; 0.5 without any target.

    It is the mean of two neighbouring probabilities, or the smallest probability.

    probabilities: (N, L).  targets: (N, L) bool.
    """
    order = np.argsort(-probabilities.ravel(), kind="stable")
    ranked = probabilities.ravel()[order].astype(np.float64)
    correct = targets.ravel()[order].cumsum()
    if not len(correct) or not correct[-1]:
        return 0.5
    f1 = 2 * correct / (np.arange(1, len(correct) + 1) + correct[-1])
    lower = np.append(ranked[1:], -np.inf)
    f1[ranked == lower] = -1  # equal probabilities are predicted together
    best = int(f1.argmax())
    below = lower[best] if best + 1 < len(ranked) else ranked[best]
    return float((ranked[best] + below) / 2)
