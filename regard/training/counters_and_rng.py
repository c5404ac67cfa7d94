"""What a training has counted, its random numbers, and when it is finished."""

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.data.batches import Batches
from regard.training.options import TrainingOptions


@dataclass
class Counters:
    """How far a training is. Every checkpoint holds them."""

    step: int = 0  # steps made
    epoch_batches: int = 0  # batches taken from the epoch of the last one
    tokens: int = 0  # items seen of the first loss: predicted tokens, or what the task counts
    seconds: float = 0.0  # time spent in steps: without validations and checkpoints
    validated: int = 0  # the step of the last validation, and how many epochs were complete then
    validated_epochs: int = 0
    best: float | None = None
    best_step: int = 0
    best_checkpoint: str = ""
    stale: int = 0  # validations since the best score was reached first
    averaged: int = 0  # weights in the mean of `WeightAverage`
    history: list[float] = field(default_factory=list)  # the scores that its trigger compares


class Meters:
    """Sums and counts of each loss since the last log line, added up on the device.

    sums: (), float64, in nats for most tasks.  counts: items of each loss.
    """

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, int] = {}

    def add(self, losses: list[dict[str, Tensor]], counts: Mapping[str, int]) -> None:
        """The losses of the batches of one step, and their joint counts."""
        for of_batch in losses:
            for name, value in of_batch.items():
                before = self.sums.get(name)
                self.sums[name] = value.double() if before is None else before + value
        for name, count in counts.items():
            self.counts[name] = self.counts.get(name, 0) + count

    def means(self) -> dict[str, float]:
        """The mean of each loss over its items; waits for the device."""
        return {name: float(total) / max(1, self.counts[name]) for name, total in self.sums.items()}


def rng_tensors() -> dict[str, Tensor]:
    """The state of torch's generators, as uint8."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states |= {f"cuda{i}": state for i, state in enumerate(torch.cuda.get_rng_state_all())}
    return states


def rng_facts() -> dict[str, Any]:
    """The state of Python's and numpy's generators, for JSON: tasks may draw from them."""
    kind, keys, *rest = np.random.get_state(legacy=True)
    return {"python": random.getstate(), "numpy": [kind, np.asarray(keys).tolist(), *rest]}


def restore_rng(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Put all generators back; GPUs that were not there when they were stored keep their state."""
    torch.set_rng_state(tensors["cpu"])
    if torch.cuda.is_available():
        for device in range(torch.cuda.device_count()):
            if (name := f"cuda{device}") in tensors:
                torch.cuda.set_rng_state(tensors[name], device)
    version, keys, gauss = facts["python"]
    random.setstate((version, tuple(keys), gauss))
    kind, keys, *rest = facts["numpy"]
    np.random.set_state((kind, np.array(keys, np.uint32), *rest))


@contextmanager
def isolated_rng() -> Iterator[None]:
    """Random numbers that are drawn inside leave the generators as they were."""
    tensors, facts = rng_tensors(), rng_facts()
    try:
        yield
    finally:
        restore_rng(tensors, facts)


def epochs_done(counters: Counters, batches: Batches) -> float:
    """Completed epochs and the fraction of the present one; whole when an epoch ends."""
    part = counters.epoch_batches / max(1, batches.batches_per_epoch)
    return batches.epoch + min(1.0, part)


def fraction(options: TrainingOptions, counters: Counters, epochs: float) -> float:
    """How much of the training is done, by the limit that will come first."""
    done = (
        (counters.step, options.max_steps),
        (epochs, options.epochs),
        (counters.tokens, options.tokens),
    )
    return min(1.0, max(count / limit for count, limit in done if limit))


def reason_to_end(options: TrainingOptions, counters: Counters, epochs: float) -> str:
    """Which limit is reached, in words; empty while none is."""
    done = (
        ("steps", counters.step, options.max_steps),
        ("epochs", epochs, options.epochs),
        ("tokens", counters.tokens, options.tokens),
    )
    for unit, count, limit in done:
        if limit is not None and count >= limit:
            return f"{limit:,} {unit if limit != 1 else unit.removesuffix('s')}"
    if 0 < options.validation.patience <= counters.stale:
        validations = "1 validation" if counters.stale == 1 else f"{counters.stale} validations"
        return f"no better score in {validations}"
    return ""
