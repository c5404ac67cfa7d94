"""How well labels are predicted: accuracy, F1, macro-F1, Matthews correlation.

All but accuracy are functions of how often each label was predicted for each; these counts are
kept by the labels' names and add up over batches.
"""

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from regard.errors import RegardError
from regard.metrics.score import Score, check_any, check_equal
from regard.suggest import nearest

IGNORE = -100

# Names of labels, or integers; as two lists, or two integer arrays or tensors of one shape.
Labels = Sequence[Any] | np.ndarray | Tensor


def counted_pairs(predictions: Labels, references: Labels) -> list[tuple[Any, Any]]:
    """(prediction, target) of all whose target is not -100.

    Raises:
        RegardError: there are not as many predictions as references.
    """
    check_equal(predictions, references, "predictions", "references")
    columns = [
        column.flatten().tolist() if isinstance(column, Tensor | np.ndarray) else column
        for column in (predictions, references)
    ]
    return [pair for pair in zip(*columns, strict=True) if pair[1] != IGNORE]


class Accuracy:
    """The share of predictions that equal their target; targets of -100 do not count."""

    def __init__(self) -> None:
        self.right, self.count = 0, 0

    def add(self, predictions: Labels, references: Labels) -> None:
        """Labels of any kind; see `counted_pairs`."""
        pairs = counted_pairs(predictions, references)
        self.right += sum(prediction == reference for prediction, reference in pairs)
        self.count += len(pairs)

    def result(self) -> Score:
        """Between 0 and 1.

        Raises:
            RegardError: nothing was added.
        """
        check_any(self.count, "Accuracy")
        return Score("accuracy", self.right / self.count, f"count:{self.count}", self.count, 4)


class _Confusion:
    """Counts pairs (predicted, target); memory grows with the labels, not with the data."""

    def __init__(self, labels: Sequence[Hashable] | None = None):
        self.labels = None if labels is None else tuple(labels)
        self.pairs: Counter[tuple[Hashable, Hashable]] = Counter()

    def add(self, predictions: Labels, references: Labels) -> None:
        """Labels; see `counted_pairs`.

        Raises:
            RegardError: there are not as many predictions as references, or a label is not one of
                the `labels` given at the start.
        """
        pairs = Counter(counted_pairs(predictions, references))
        self._check({label for pair in pairs for label in pair})
        self.pairs += pairs

    @property
    def count(self) -> int:
        """How many predictions were counted."""
        return self.pairs.total()

    def _check(self, labels: set[Hashable]) -> None:
        allowed = labels if self.labels is None else self.labels
        if unknown := labels.difference(allowed):
            label = min(map(repr, unknown))
            raise RegardError(f"There is no label {label}. {nearest(label, map(str, allowed))}")

    def _sums(self) -> tuple[Counter[Hashable], Counter[Hashable], Counter[Hashable]]:
        """How often each label was right, predicted, and the target."""
        right: Counter[Hashable] = Counter()
        predicted: Counter[Hashable] = Counter()
        targets: Counter[Hashable] = Counter()
        for (prediction, target), count in self.pairs.items():
            predicted[prediction] += count
            targets[target] += count
            if prediction == target:
                right[target] += count
        return right, predicted, targets

    def _score(self, name: str, value: float, *signature: str) -> Score:
        text = "|".join([*signature, f"count:{self.count}"])
        return Score(name, value, text, self.count, 4)


class F1(_Confusion):
    """2 P R / (P + R) of one label, with its precision P and recall R; MRPC's and QQP's is "1".

    labels: all labels, where they are known: any other label raises an error, and F1 is 0 if
        `positive` never occurs. None: `result` raises an error if `positive` never occurs, since
        it may be misspelled.
    """

    def __init__(self, positive: Hashable, labels: Sequence[Hashable] | None = None):
        super().__init__(labels)
        self.positive = positive

    def result(self) -> Score:
        """Between 0 and 1.

        Raises:
            RegardError: nothing was added; the positive label is neither known nor seen.
        """
        check_any(self.count, "F1")
        right, predicted, targets = self._sums()
        labels = predicted | targets if self.labels is None else self.labels
        if self.positive not in labels:
            hint = nearest(str(self.positive), map(str, labels))
            raise RegardError(
                f"F1 of the label {self.positive!r} is not defined: it is neither predicted nor a "
                f"target. {hint} Give `labels` where it may be so."
            )
        value = _f1(right[self.positive], predicted[self.positive], targets[self.positive])
        return self._score("F1", value, f"positive:{self.positive}")


class MacroF1(_Confusion):
    """The mean of every label's F1.

    labels: all labels, where they are known: any other label raises an error, and the F1 of a
        label that never occurs is 0. None: the mean is over the labels that occur.
    """

    def result(self) -> Score:
        """Between 0 and 1.

        Raises:
            RegardError: nothing was added.
        """
        check_any(self.count, "Macro-F1")
        right, predicted, targets = self._sums()
        labels = list(predicted | targets) if self.labels is None else self.labels
        value = math.fsum(_f1(right[name], predicted[name], targets[name]) for name in labels)
        return self._score("macro-F1", value / len(labels), f"labels:{len(labels)}")


class Matthews(_Confusion):
    """Matthews' correlation of two or more labels (R_K of Gorodkin 2004); CoLA's measure.

    With n predictions, c of them right, p_k predictions and t_k targets of label k:
    (c n - sum p_k t_k) / sqrt((n^2 - sum p_k^2) (n^2 - sum t_k^2)). Where all predictions, or all
    targets, are one label, it is 0.
    """

    def result(self) -> Score:
        """Between -1 and 1.

        Raises:
            RegardError: nothing was added.
        """
        check_any(self.count, "Matthews correlation")
        right, predicted, targets = self._sums()
        n = self.count
        above = right.total() * n - sum(predicted[name] * targets[name] for name in targets)
        spread = [
            n * n - sum(count * count for count in sums.values()) for sums in (predicted, targets)
        ]
        below = math.sqrt(spread[0] * spread[1])  # exactly `above` where all is right
        return self._score("Matthews correlation", above / below if below else 0.0)


def _f1(right: int, predicted: int, targets: int) -> float:
    """The harmonic mean of right / predicted and right / targets; 0 where there is neither."""
    return 2 * right / (predicted + targets) if predicted + targets else 0.0
