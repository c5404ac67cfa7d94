"""A classifier label by label: precision, recall, F1, the confusion matrix, and its calibration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from regard.metrics.score import check_equal

BINS = 15  # of probabilities, as in Guo et al. 2017


@dataclass(frozen=True)
class ClassScores:
    """Scores of one label; those whose denominator is 0 are 0.

    predicted, targets: how many examples have this label.
    """

    label: str
    precision: float
    recall: float
    f1: float
    predicted: int
    targets: int


@dataclass(frozen=True)
class ClassReport:
    """The predictions of a classifier against targets.

    confusion: (O, O), the examples with the target of the row and the prediction of the column.
    calibration_error: the expected calibration error, sum over bins of (n_b / N) |accuracy_b -
        confidence_b| (Guo et al. 2017, eq. 3), over 15 bins of the highest probability.
    """

    classes: tuple[ClassScores, ...]
    confusion: tuple[tuple[int, ...], ...]
    calibration_error: float

    @classmethod
    def of(
        cls, probabilities: np.ndarray, targets: np.ndarray, labels: Sequence[str]
    ) -> ClassReport:
        """From probabilities (N, O) and the index of each target, (N,).

        Raises:
            RegardError: there are not as many targets as predictions.
        """
        check_equal(probabilities, targets, "predictions", "targets")
        predicted = probabilities.argmax(1)
        confusion = np.zeros((len(labels), len(labels)), dtype=int)
        np.add.at(confusion, (targets, predicted), 1)
        right, found, wanted = np.diag(confusion), confusion.sum(0), confusion.sum(1)
        counts = zip(labels, right.tolist(), found.tolist(), wanted.tolist(), strict=True)
        classes = tuple(ClassScores(label, *_scores(*n), *n[1:]) for label, *n in counts)
        error = calibration_error(probabilities.max(1), predicted == targets)
        return cls(classes, tuple(map(tuple, confusion.tolist())), error)

    def facts(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


def _scores(right: int, found: int, wanted: int) -> tuple[float, float, float]:
    """Precision, recall and F1."""
    return (
        right / found if found else 0.0,
        right / wanted if wanted else 0.0,
        2 * right / (found + wanted) if found + wanted else 0.0,
    )


def calibration_error(confidence: np.ndarray, right: np.ndarray) -> float:
    """The expected calibration error of probabilities (N,) and whether each was right, (N,)."""
    if not len(confidence):
        return 0.0
    bins = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)  # (low, high]
    gaps = np.bincount(bins, weights=right - confidence, minlength=BINS)
    return float(np.abs(gaps).sum() / len(confidence))
