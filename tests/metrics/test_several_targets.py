"""Scores of sets of labels and of several numbers, beside scikit-learn, scipy and the formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics

from regard.errors import RegardError
from regard.metrics.multi_label import MultiLabelReport, best_threshold
from regard.metrics.multi_regression import MultiRegressionReport

LABELS = ["old", "warm", "never", "always", "rare"]


def drawn(count: int = 60, seed: int = 0, digits: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities, rounded so that some are equal, and targets; one label never occurs."""
    generator = np.random.default_rng(seed)
    shares = np.array([0.4, 0.5, 0.0, 1.0, 0.05])
    targets = generator.random((count, 5)) < shares
    probabilities = generator.random((count, 5)) * 0.6 + 0.4 * targets
    return probabilities.round(digits), targets


def naive_f1(right: int, found: int, wanted: int) -> float:
    """From precision and recall."""
    precision = right / found if found else 0.0
    recall = right / wanted if wanted else 0.0
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.5, 0.9])
def test_scores_of_sets_of_labels_are_those_of_scikit_learn(threshold):
    probabilities, targets = drawn()
    report = MultiLabelReport.of(probabilities, targets, LABELS, threshold)
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


def test_the_calibration_error_of_each_label_is_the_formula():
    probabilities, targets = drawn(300, 2, 9)
    report = MultiLabelReport.of(probabilities, targets, LABELS, 0.5)
    for label, error in enumerate(report.calibration_errors):
        expected = 0.0
        for low in range(15):
            shares = probabilities[:, label]
            inside = (shares > low / 15) & (shares <= (low + 1) / 15)
            if inside.any():
                gap = targets[inside, label].mean() - shares[inside].mean()
                expected += inside.mean() * abs(gap)
        assert error == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_best_threshold_has_the_largest_micro_f1_of_all(seed, dtype):
    probabilities, targets = drawn(8, seed, 1)
    probabilities = probabilities.astype(dtype)
    tries = [*np.unique(probabilities).tolist(), 1.1]
    values = [
        MultiLabelReport.of(probabilities, targets, LABELS, one).values()["micro-f1"]
        for one in tries
    ]
    best = best_threshold(probabilities, targets)
    found = MultiLabelReport.of(probabilities, targets, LABELS, best).values()["micro-f1"]
    assert found == max(values)


def test_the_best_threshold_without_any_target_is_a_half():
    probabilities, targets = drawn()
    assert best_threshold(probabilities, np.zeros_like(targets)) == 0.5
    assert best_threshold(np.zeros((0, 3)), np.zeros((0, 3), bool)) == 0.5
    neighbours = np.array([[0.5, np.nextafter(np.float32(0.5), np.float32(1))]], np.float32)
    best = best_threshold(neighbours, np.array([[False, True]]))
    assert MultiLabelReport.of(
        neighbours, np.array([[False, True]]), ["a", "b"], best
    ).subset_accuracy


def test_scores_of_numbers_are_those_of_scipy_and_their_means():
    generator = np.random.default_rng(3)
    targets = generator.normal(size=(40, 3)) * [1, 10, 100]
    predicted = targets + generator.normal(size=(40, 3)) * [0.5, 20, 30]
    report = MultiRegressionReport.of(predicted.astype(np.float32), targets, ["a", "b", "c"])
    means = np.zeros(4)
    for column, one in enumerate(report.numbers):
        found, wanted = predicted.astype(np.float32).astype(float)[:, column], targets[:, column]
        theirs = [
            sum((a - b) ** 2 for a, b in zip(found, wanted, strict=True)) / 40,
            sum(abs(a - b) for a, b in zip(found, wanted, strict=True)) / 40,
            scipy.stats.pearsonr(found, wanted).statistic,
            scipy.stats.spearmanr(found, wanted).statistic,
        ]
        assert [one.mse, one.mae, one.pearson, one.spearman] == pytest.approx(theirs)
        means += np.array(theirs) / 3
    assert list(report.values().values()) == pytest.approx(means.tolist())
    assert [score.value for score in report.scores()] == list(report.values().values())
    assert [row[0] for row in report.table().rows] == ["a", "b", "c", "mean"]


def test_correlations_with_constant_targets_are_nan_and_errors_are_not():
    predicted, targets = np.arange(6.0).reshape(3, 2), np.ones((3, 2))
    targets[:, 1] = [1, 2, 3]
    report = MultiRegressionReport.of(predicted, targets, ["flat", "b"])
    assert math.isnan(report.numbers[0].pearson) and report.numbers[1].pearson == pytest.approx(1)
    assert math.isnan(report.values()["pearson"]) and math.isfinite(report.values()["mse"])


def test_no_examples_and_unequal_lengths_raise_an_error():
    for kind in (
        lambda a, b: MultiLabelReport.of(a, b, ["x", "y"], 0.5),
        lambda a, b: MultiRegressionReport.of(a, b, ["x", "y"]),
    ):
        with pytest.raises(RegardError, match="nothing was added"):
            kind(np.zeros((0, 2)), np.zeros((0, 2), bool))
        with pytest.raises(RegardError, match="as many predictions as targets"):
            kind(np.zeros((3, 2)), np.zeros((2, 2), bool))
