"""Scores of each class, confusion and calibration, beside scikit-learn and the formula."""

from __future__ import annotations

import io
import json

import numpy as np
import pandas
import pytest
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from regard.errors import RegardError
from regard.metrics.class_report import ClassReport, calibration_error

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


def test_a_report_is_json_and_needs_as_many_targets_as_predictions():
    probabilities, targets = drawn(5)
    facts = json.loads(json.dumps(ClassReport.of(probabilities, targets, LABELS).facts()))
    assert facts["classes"][0]["label"] == "no" and facts["confusion"]["no"]
    with pytest.raises(RegardError, match="5 predictions and 4 targets"):
        ClassReport.of(probabilities, targets[:4], LABELS)


def test_a_report_is_a_table_in_a_notebook_and_in_text():
    probabilities, targets = drawn()
    labels = ["no", "<b>yes</b>", "a & b", "perhaps not"]
    report = ClassReport.of(probabilities, targets, labels)
    (shown,) = pandas.read_html(io.StringIO(report._repr_html_()))
    printed = pandas.read_csv(io.StringIO(str(report)), sep=r"\s{2,}", engine="python", nrows=4)
    for table in (shown, printed):
        assert list(table["label"]) == labels
        np.testing.assert_allclose(table["F1"], [one.f1 for one in report.classes], atol=5e-4)
        assert list(table["predicted"]) == [one.predicted for one in report.classes]
    assert str(report).endswith(f"expected calibration error {report.calibration_error:.3f}")
