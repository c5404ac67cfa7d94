"""How many labels are right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.metrics.score import Score, check_any, check_equal

IGNORE = -100


class Accuracy:
    """The share of predictions that equal their target; targets of -100 do not count."""

    def __init__(self) -> None:
        self.right, self.count = 0, 0

    def add(self, predictions: Sequence[Any] | Tensor, targets: Sequence[Any] | Tensor) -> None:
        """Labels of any kind, as two lists; or two integer tensors of one shape.

        Raises:
            RegardError: there are not as many predictions as targets.
        """
        if isinstance(predictions, Tensor) and isinstance(targets, Tensor):
            if predictions.shape != targets.shape:
                raise RegardError(
                    "`predictions` and `targets` must have one shape, but have "
                    f"{tuple(predictions.shape)} and {tuple(targets.shape)}."
                )
            kept = targets != IGNORE
            self.right += int(((predictions == targets) & kept).sum())
            self.count += int(torch.count_nonzero(kept))
            return
        check_equal(predictions, targets, "predictions", "targets")
        pairs = [pair for pair in zip(predictions, targets, strict=True) if pair[1] != IGNORE]
        self.right += sum(bool(found == wanted) for found, wanted in pairs)
        self.count += len(pairs)

    def result(self) -> Score:
        """Between 0 and 1.

        Raises:
            RegardError: nothing was added.
        """
        check_any(self.count, "Accuracy")
        return Score("accuracy", self.right / self.count, f"count:{self.count}", self.count, 4)
