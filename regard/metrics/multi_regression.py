"""Scores of regression to several numbers: errors and correlations of each, and their means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Any

import numpy as np

from regard.metrics.correlation import Pearson, Spearman
from regard.metrics.score import Score, ScoreReport, ScoreTable, check_any, check_equal

# field of RegressionScores -> name of the score
NAMES = {
    "mse": "mean squared error",
    "mae": "mean absolute error",
    "pearson": "Pearson correlation",
    "spearman": "Spearman correlation",
}


@dataclass(frozen=True)
class RegressionScores:
    """The scores of one number. A correlation is NaN if predictions or targets are constant."""

    label: str
    mse: float
    mae: float
    pearson: float
    spearman: float

    @classmethod
    def of(cls, label: str, predicted: np.ndarray, targets: np.ndarray) -> RegressionScores:
        """The scores of predictions and targets, (N,)."""
        errors = predicted - targets
        correlations = []
        for metric in (Pearson(), Spearman()):
            metric.add(predicted, targets)
            correlations.append(metric.result().value)
        mse, mae = float(np.square(errors).mean()), float(np.abs(errors).mean())
        return cls(label, mse, mae, *correlations)


@dataclass(frozen=True)
class MultiRegressionReport(ScoreReport):
    """The scores of each number, and their means over the numbers."""

    numbers: tuple[RegressionScores, ...]
    mean: RegressionScores
    examples: int

    @classmethod
    def of(
        cls, predicted: np.ndarray, targets: np.ndarray, labels: Sequence[str]
    ) -> MultiRegressionReport:
        """The report for predictions and targets, (N, K); `labels` are the names of the K numbers.

        Raises:
            RegardError: there are no examples, or not as many targets as predictions.
        """
        check_equal(predicted, targets, "predictions", "targets")
        check_any(len(targets), "Mean squared error")
        columns = zip(labels, predicted.T.astype(float), targets.T.astype(float), strict=True)
        numbers = tuple(RegressionScores.of(*column) for column in columns)
        means = (
            math.fsum(getattr(scores, name) for scores in numbers) / len(numbers) for name in NAMES
        )
        return cls(numbers, RegressionScores("mean", *means), len(targets))

    def values(self) -> dict[str, float]:
        """The means by the names of the scores."""
        return {name: getattr(self.mean, name) for name in NAMES}

    def scores(self) -> list[Score]:
        """The means as scores, the first with this report."""
        signature = f"mean over:{len(self.numbers)}|count:{self.examples}"
        return [
            Score(text, value, signature, self.examples, 4, report=None if i else self)
            for i, (text, value) in enumerate(
                zip(NAMES.values(), self.values().values(), strict=True)
            )
        ]

    def facts(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"numbers": [asdict(scores) for scores in self.numbers], "mean": asdict(self.mean)}

    def table(self) -> ScoreTable:
        """A row for each number, and one for the means."""
        rows = [astuple(scores) for scores in (*self.numbers, self.mean)]
        cells = [[name, *(f"{value:.4g}" for value in values)] for name, *values in rows]
        return ScoreTable("Scores of each number", "", ("number", *NAMES.values()), cells)
