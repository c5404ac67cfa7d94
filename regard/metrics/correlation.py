"""Correlation of predicted numbers with their targets: Pearson's and Spearman's."""

import math
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from regard.errors import RegardError
from regard.metrics.score import Score, check_any

Numbers = Sequence[float] | np.ndarray | Tensor


class Pearson:
    """Pearson's correlation, from means and products of deviations in float64.

    The first pair is subtracted from all, and batches are merged by their means (Chan, Golub and
    LeVeque 1983): numbers far from zero lose no digits, and memory does not grow.
    """

    def __init__(self) -> None:
        self.count = 0
        self._origin = np.zeros((2, 1))
        self._means = np.zeros(2)
        self._products = np.zeros((2, 2))  # sums of products of deviations from the means
        self._range = np.array([[math.inf, math.inf], [-math.inf, -math.inf]])

    def add(self, predictions: Numbers, references: Numbers) -> None:
        """Count predictions with their references, two arrays of one shape.

        Raises:
            RegardError: unequal shapes; a number that is not finite.
        """
        pairs = _pair(predictions, references)  # (2, N)
        size = pairs.shape[1]
        if not size:
            return
        if not self.count:
            self._origin = pairs[:, :1].copy()
        pairs -= self._origin
        means, total = pairs.mean(1), self.count + size
        deviations = pairs - means[:, None]
        shift = means - self._means
        within, between = deviations @ deviations.T, np.outer(shift, shift)
        self._products += within + between * (self.count * size / total)
        self._means += shift * (size / total)
        self._range[0] = np.minimum(self._range[0], pairs.min(1))
        self._range[1] = np.maximum(self._range[1], pairs.max(1))
        self.count = total

    def result(self) -> Score:
        """Between -1 and 1; NaN where predictions or targets are constant, as the signature says.

        Raises:
            RegardError: nothing was added.
        """
        check_any(self.count, "Pearson correlation")
        # The range tells exactly; the products may be no more than what rounding left.
        constant = (self._range[0] == self._range[1]) | (self._products.diagonal() == 0)
        return _score("Pearson correlation", self._products, constant, self.count)


class Spearman:
    """Pearson's correlation of ranks; equal numbers share the mean of their ranks.

    Ranks need all numbers: 16 bytes are kept for each pair.
    """

    def __init__(self) -> None:
        self._values = array("d"), array("d")

    def add(self, predictions: Numbers, references: Numbers) -> None:
        """Count predictions with their references, two arrays of one shape.

        Raises:
            RegardError: unequal shapes; a number that is not finite.
        """
        for values, new in zip(self._values, _pair(predictions, references), strict=True):
            values.frombytes(new.tobytes())

    def result(self) -> Score:
        """Between -1 and 1; NaN where predictions or targets are constant, as the signature says.

        Raises:
            RegardError: nothing was added.
        """
        count = len(self._values[0])
        check_any(count, "Spearman correlation")
        ranks = np.stack([_ranks(np.array(values)) for values in self._values])
        deviations = ranks - (count + 1) / 2  # the mean rank, with ties or without
        constant = np.all(deviations == 0, axis=1)
        return _score("Spearman correlation", deviations @ deviations.T, constant, count)


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1; those of equal numbers are averaged."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (counts.cumsum() - (counts - 1) / 2)[inverse]


def _score(name: str, products: np.ndarray, constant: np.ndarray, count: int) -> Score:
    signature = f"count:{count}"
    sides = [side for side, flat in zip(("predictions", "targets"), constant, strict=True) if flat]
    if sides:
        # No number is right here, and an error would end a training that has just started.
        reason = f"undefined:constant {' and '.join(sides)}"
        return Score(name, math.nan, f"{signature}|{reason}", count, 4)
    value = products[0, 1] / (math.sqrt(products[0, 0]) * math.sqrt(products[1, 1]))
    return Score(name, float(np.clip(value, -1, 1)), signature, count, 4)


def _pair(predictions: Numbers, references: Numbers) -> np.ndarray:
    """Both in float64, flattened: (2, N)."""
    predicted, expected = _array(predictions, "predictions"), _array(references, "references")
    if predicted.shape != expected.shape:
        raise RegardError(
            "There must be as many predictions as references, in one shape, but their shapes are "
            f"{predicted.shape} and {expected.shape}."
        )
    return np.stack([predicted.ravel(), expected.ravel()])


def _array(numbers: Any, name: str) -> np.ndarray:
    if isinstance(numbers, Tensor):
        numbers = numbers.detach().double().cpu().numpy()
    values = np.asarray(numbers, dtype=np.float64)
    if not np.isfinite(values).all():
        raise RegardError(f"`{name}` must be finite numbers, but some are infinite or NaN.")
    return values
