"""Scores label by label: precision, recall, F1 and averages, the confusion matrix, calibration."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np

from regard.metrics.score import ScoreReport, ScoreTable, check_any, check_equal

BINS = 15  # of the calibration error, as in Guo et al. 2017
COLUMNS = ("precision", "recall", "F1", "examples", "predicted")  # of a table, after "label"


@dataclass(frozen=True)
class ClassScores:
    """The scores of one label. A score whose denominator is 0 is 0.

    predicted, targets: the number of examples with this label as prediction, and as target.
    """

    label: str
    precision: float
    recall: float
    f1: float
    predicted: int
    targets: int

    @classmethod
    def of(cls, label: str, correct: int, predicted: int, targets: int) -> ClassScores:
        """The scores from the numbers of correct predictions, of predictions and of targets."""
        total = predicted + targets
        return ClassScores(
            label,
            correct / predicted if predicted else 0.0,
            correct / targets if targets else 0.0,
            2 * correct / total if total else 0.0,
            predicted,
            targets,
        )

    def precision_recall_f1(self) -> tuple[float, float, float]:
        """Precision, recall and F1."""
        return self.precision, self.recall, self.f1

    def cells(self) -> list[str]:
        """The row of a table with the columns `COLUMNS` after the label."""
        return [
            self.label,
            *(f"{value:.3f}" for value in self.precision_recall_f1()),
            f"{self.targets:,}",
            f"{self.predicted:,}",
        ]


@dataclass(frozen=True)
class ScoresByLabel:
    """Scores of each label, or of each type of entities, and their averages.

    micro: the scores of all labels counted together.  macro: the means over the labels.
    """

    classes: tuple[ClassScores, ...]
    micro: ClassScores
    macro: ClassScores

    @classmethod
    def of(cls, counts: Mapping[str, tuple[int, int, int]]) -> Self:
        """From (correct, predicted, targets) of each label, in this order."""
        classes = tuple(ClassScores.of(label, *numbers) for label, numbers in counts.items())
        correct, predicted, targets = (sum(n[i] for n in counts.values()) for i in range(3))
        micro = ClassScores.of("micro average", correct, predicted, targets)
        precision, recall, f1 = (
            _mean([values[i] for values in map(ClassScores.precision_recall_f1, classes)])
            for i in range(3)
        )
        macro = ClassScores("macro average", precision, recall, f1, predicted, targets)
        return cls(classes, micro, macro)

    def rows(self) -> list[list[str]]:
        """The rows of a table with the columns `COLUMNS` after the label."""
        return [scores.cells() for scores in (*self.classes, self.micro, self.macro)]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


@dataclass(frozen=True)
class ClassReport(ScoreReport):
    """The predictions of a classifier against targets.

    confusion: of each target the examples with each prediction, of those that occur.
    calibration_error: the expected calibration error, sum over bins of (n_b / N) |accuracy_b -
        confidence_b| (Guo et al. 2017, eq. 3), over 15 bins of the highest probability.
    """

    classes: tuple[ClassScores, ...]
    confusion: dict[str, dict[str, int]]
    calibration_error: float

    @classmethod
    def of(
        cls, probabilities: np.ndarray, targets: np.ndarray, labels: Sequence[str]
    ) -> ClassReport:
        """From probabilities (N, O) and the index of each target, (N,).

        Raises:
            RegardError: there are no examples, or not as many targets as predictions.
        """
        check_equal(probabilities, targets, "predictions", "targets")
        check_any(len(targets), "A report by class")
        predicted = probabilities.argmax(1)
        confusion: dict[str, dict[str, int]] = {}
        pairs = Counter(zip(targets.tolist(), predicted.tolist(), strict=True))
        for (target, prediction), count in sorted(pairs.items()):
            confusion.setdefault(labels[target], {})[labels[prediction]] = count
        counts = (
            np.bincount(chosen, minlength=len(labels)).tolist()
            for chosen in (targets[predicted == targets], predicted, targets)
        )
        classes = tuple(map(ClassScores.of, labels, *counts))
        error = calibration_error(probabilities.max(1), predicted == targets)
        return cls(classes, confusion, error)

    def facts(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)

    def table(self) -> ScoreTable:
        """A row for each label."""
        note = f"expected calibration error {self.calibration_error:.3f}"
        rows = [scores.cells() for scores in self.classes]
        return ScoreTable("Scores of each label", note, ("label", *COLUMNS), rows)


def calibration_error(confidence: np.ndarray, correct: np.ndarray) -> float:
    """The expected calibration error of probabilities (N,) and whether each was correct, (N,)."""
    if not len(confidence):
        return 0.0
    bins = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)  # (low, high]
    gaps = np.bincount(bins, weights=correct - confidence, minlength=BINS)
    return float(np.abs(gaps).sum() / len(confidence))
