"""Averaged SGD: the mean of the weights after each step, from some step on.

    mean = 1 / (K - T + 1) sum_{i = T..K} w_i          (Polyak & Juditsky 1992)

T is the step at which the mean begins, K the last one. The training goes on with the weights
themselves; the mean is validated and published. NT-ASGD (Merity et al. 2018, algorithm 1) begins it
when validations have stopped to improve.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from regard.checkpoints.store import read_table, verify_folder
from regard.errors import CheckpointError
from regard.training.checkpointing import AVERAGED, FROZEN
from regard.training.counters_and_rng import Counters
from regard.training.options import AveragingOptions


def average(checkpoints: Sequence[Path]) -> dict[str, Tensor]:
    """The uniform mean of the weights in these checkpoint folders, added up in float64.

    Each folder is verified first. Integer buffers are taken from the last one.

    Raises:
        CheckpointError: a folder is damaged, or the folders hold different names or shapes.
    """
    total: dict[str, Tensor] = {}
    for folder in checkpoints:
        verify_folder(folder)
        weights = _weights_in(folder)
        if total and _shapes(weights) != _shapes(total):
            raise CheckpointError(f"{folder} holds other tensors than {checkpoints[0]}.")
        for name, tensor in weights.items():
            if tensor.is_floating_point():
                tensor = total.get(name, 0) + tensor.to(torch.float64)
            total[name] = tensor
    if not total:
        raise CheckpointError("there must be at least one checkpoint to average.")
    return {
        name: (total[name] / len(checkpoints)).to(tensor.dtype)
        if tensor.is_floating_point()
        else tensor
        for name, tensor in weights.items()
    }


def _weights_in(folder: Path) -> dict[str, Tensor]:
    """The weights of a checkpoint, those that are frozen too; where it has a mean, that one."""
    tables = {name: read_table(folder, name) for name in ("weights", FROZEN, AVERAGED)}
    if not tables["weights"]:
        raise CheckpointError(f"{folder} holds no weights.")
    return tables["weights"] | tables[FROZEN] | tables[AVERAGED]


def _shapes(tensors: dict[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}


class WeightAverage:
    """The mean of the weights of a model after each step.

    `counters.averaged` is the number of steps in it, 0 before it begins.

    named: the weights that are trained, by name; a tied one comes once.
    """

    def __init__(self, named: Mapping[str, Tensor], options: AveragingOptions, counters: Counters):
        self.named, self.options, self.counters = named, options, counters
        self.weights: list[Tensor] = [*named.values()]
        self.means: list[Tensor] = []

    @property
    def has_begun(self) -> bool:
        """Whether there is a mean."""
        return self.counters.averaged > 0

    def begin_if_due(self) -> bool:
        """Before a step: begin where the option `start` says so; whether it began."""
        start = self.options.start
        due = start is not None and not self.has_begun and self.counters.step >= start
        if due:
            self._begin()
        return due

    def validated(self, score: float, direction: str) -> bool:
        """Begin where the trigger says so after a validation; whether it began.

        It does if the score is worse than the best of those before the last `nonmono`.
        """
        interval, at = self.options.nonmono, self.counters
        if not interval or self.has_begun or not math.isfinite(score):
            return False
        sign = 1.0 if direction == "min" else -1.0
        before = at.history[:-interval]
        at.history.append(score)
        if not before or sign * score <= min(sign * earlier for earlier in before):
            return False
        self._begin()
        return True

    def add(self) -> None:
        """Add the weights after a step to the mean, where there is one."""
        if self.has_begun:
            self.counters.averaged += 1
            with torch.no_grad():
                torch._foreach_lerp_(self.means, self.weights, 1 / self.counters.averaged)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """A block in which the model has the mean, where there is one."""
        if not self.has_begun:
            yield
            return
        weights_before = [weight.detach().clone() for weight in self.weights]
        self.put_into_model()
        try:
            yield
        finally:
            _copy(weights_before, self.weights)

    def put_into_model(self) -> None:
        """Fill the model with the mean, where there is one."""
        if self.has_begun:
            _copy(self.means, self.weights)

    def tensors(self) -> dict[str, Tensor]:
        """The mean by the names of the parameters; {} where there is none."""
        return dict(zip(self.named, self.means, strict=True)) if self.has_begun else {}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what `tensors` gave."""
        self.means = [tensors[name].to(w) for name, w in self.named.items()] if tensors else []

    def _begin(self) -> None:
        self.means = [weight.detach().clone() for weight in self.weights]
        self.counters.averaged = 1


def _copy(values: list[Tensor], weights: list[Tensor]) -> None:
    with torch.no_grad():
        for value, weight in zip(values, weights, strict=True):
            weight.copy_(value)
