"""Scores of each class and of sets of labels, beside scikit-learn and the formulas."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn.metrics
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from regard.metrics.score import (
    ClassReport,
    MultiLabelReport,
    best_threshold,
    calibration_error,
)

LABELS = ["no", "maybe", "yes", "never seen"]


def drawn(count: int = 200, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    probabilities = generator.dirichlet([0.5, 0.7, 1.0, 0.01], count)
    return probabilities, generator.integers(0, 3, count)


def test_scores_of_each_class_are_those_of_scikit_learn():
    probabilities, targets = drawn()
    report = ClassReport.of(probabilities, targets, LABELS)
    predicted = probabilities.argmax(1)
    theirs = precision_recall_fscore_support(targets, predicted, labels=range(4), zero_division=0.0)
    ours = [(one.precision, one.recall, one.f1, one.targets) for one in report.classes]
    np.testing.assert_allclose(np.array(ours).T, np.array(theirs), atol=1e-12)
    matrix = confusion_matrix(targets, predicted, labels=range(4))
    rows = [report.confusion.get(label, {}) for label in LABELS]
    assert np.array_equal([[row.get(label, 0) for label in LABELS] for row in rows], matrix)
    assert sum(one.predicted for one in report.classes) == len(targets)


def test_calibration_error_is_the_formula():
    probabilities, targets = drawn(500, 1)
    confidence, right = probabilities.max(1), probabilities.argmax(1) == targets
    expected = 0.0
    for low in range(15):
        inside = (confidence > low / 15) & (confidence <= (low + 1) / 15)
        if inside.any():
            gap = abs(right[inside].mean() - confidence[inside].mean())
            expected += inside.mean() * gap
    assert calibration_error(confidence, right) == pytest.approx(expected, abs=1e-12)
    assert calibration_error(np.ones(4), np.ones(4, bool)) == 0.0
    assert calibration_error(np.zeros(0), np.zeros(0, bool)) == 0.0


SETS = ["old", "warm", "never", "always", "rare"]


def drawn_sets(count: int = 60, seed: int = 0, digits: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities, rounded so that some are equal, and targets; one label never occurs."""
    generator = np.random.default_rng(seed)
    shares = np.array([0.4, 0.5, 0.0, 1.0, 0.05])
    targets = generator.random((count, 5)) < shares
    probabilities = generator.random((count, 5)) * 0.6 + 0.4 * targets
    return probabilities.round(digits), targets


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.5, 0.9])
def test_scores_of_sets_of_labels_are_those_of_scikit_learn(threshold):
    probabilities, targets = drawn_sets()
    report = MultiLabelReport.of(probabilities, targets, SETS, threshold)
    found = probabilities >= threshold
    each = sklearn.metrics.precision_recall_fscore_support(targets, found, zero_division=0)
    ours = [(*one.precision_recall_f1(), one.targets) for one in report.labels.classes]
    np.testing.assert_allclose(np.array(ours).T, np.array(each), atol=1e-12)
    for name, one in (("micro", report.labels.micro), ("macro", report.labels.macro)):
        theirs = sklearn.metrics.precision_recall_fscore_support(
            targets, found, average=name, zero_division=0
        )
        assert one.precision_recall_f1() == pytest.approx(theirs[:3], abs=1e-12)
    assert report.subset_accuracy == sklearn.metrics.accuracy_score(targets, found)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_best_threshold_has_the_largest_micro_f1_of_all(seed, dtype):
    probabilities, targets = drawn_sets(8, seed, 1)
    probabilities = probabilities.astype(dtype)
    tries = [*np.unique(probabilities).tolist(), 1.1]
    values = [
        MultiLabelReport.of(probabilities, targets, SETS, one).values()["micro-f1"] for one in tries
    ]
    best = best_threshold(probabilities, targets)
    found = MultiLabelReport.of(probabilities, targets, SETS, best).values()["micro-f1"]
    assert found == max(values)


def test_the_best_threshold_without_any_target_is_a_half():
    probabilities, targets = drawn_sets()
    assert best_threshold(probabilities, np.zeros_like(targets)) == 0.5
    assert best_threshold(np.zeros((0, 3)), np.zeros((0, 3), bool)) == 0.5
    neighbours = np.array([[0.5, np.nextafter(np.float32(0.5), np.float32(1))]], np.float32)
    best = best_threshold(neighbours, np.array([[False, True]]))
    assert MultiLabelReport.of(
        neighbours, np.array([[False, True]]), ["a", "b"], best
    ).subset_accuracy
