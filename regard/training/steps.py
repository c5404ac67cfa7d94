"""One training step: fetch batches, compute losses, backward, clip, step.

`Steps` uses a task only through its losses and batches. The training loop (`loop.Loop`) inherits
from it.
"""

import math
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import RegardError
from regard.ops import WeightCopies, weight_copies
from regard.training import optimizers
from regard.training.callbacks import Trainable
from regard.training.checkpointing import Counters
from regard.training.compiling import (
    Forwards,
    activation_checkpointing,
    blocks_of,
    casting,
    compiled_blocks,
    compiling,
)
from regard.training.distributed import processes, shard
from regard.training.options import TrainingOptions


class NonFiniteError(RegardError):
    """A loss or a gradient became infinite or not a number; the step was not applied."""


@contextmanager
def ordered_sums(device: torch.device) -> Iterator[None]:
    """The threads of a CPU add up gradients in one order, so that a step gives the same bits again.

    PyTorch's own setting, but without its errors and its filling of new memory; threads otherwise
    add the gradients of rows that an index repeats as they come.
    """
    if device.type != "cpu":
        yield
        return
    before = torch.get_deterministic_debug_mode()
    fills = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)
        torch.utils.deterministic.fill_uninitialized_memory = fills  # type: ignore[attr-defined]


@dataclass(frozen=True)
class AppliedStep:
    """A step that was applied.

    losses: for each batch the sum of each loss over its items, by the names of the losses.
    totals: the number of items (tokens, examples) of each loss in all batches.
    """

    losses: list[dict[str, Tensor]]
    totals: Mapping[str, int]


class Steps(ABC):
    """A model, its optimizer and its batches, and the step that changes them.

    precision: that of matrix products; it is set before the first step.
    carry: what `Trainable.losses` returned with the last batch, and is given with the next one.
    norm: the norm of the last gradient before clipping.
    """

    precision: str

    def __init__(self, task: Trainable, options: TrainingOptions):
        if options.threads:
            torch.set_num_threads(options.threads)
        self.task, self.options, self.processes = task, options, processes()
        self.model: nn.Module = task.module
        self.sharded = shard(task, self.processes)
        self.optimizer = optimizers.optimizer(self.model, options.optimizer, self.sharded.trained)
        self.unfreezing = options.gradual_unfreezing_interval
        self.layers = optimizers.layer_groups(self.model) if self.unfreezing else []
        self.device = next(iter(self.sharded.trained.values())).device
        self.weight_copies = WeightCopies()  # of the weights, for products in bfloat16
        self.checkpointed, self.compiled = self.blocks()
        self.batches = task.train_batches()
        self.counters, self.items = Counters(), task.items
        self.carry: Any = None
        self.learning_rate = self.norm = 0.0

    def blocks(self) -> tuple[list[nn.Module], Forwards]:
        """The blocks with activation checkpointing, and the compiled blocks."""
        checkpointing = self.options.activation_checkpointing
        if self.options.compile:
            return [], compiled_blocks(self.model, self.device, checkpointing=checkpointing)
        return blocks_of(self.model) if checkpointing else [], {}

    @abstractmethod
    def scheduled_rate(self) -> float:
        """The learning rate of step `counters.step`."""

    def apply_step(self) -> AppliedStep:
        """One step of the optimizer, over batches that weigh like one large one.

        Raises:
            NonFiniteError: a loss or a gradient became infinite or NaN.
        """
        began = time.perf_counter()
        batches = self.fetch()
        totals: Counter[str] = Counter()
        for batch in batches:
            totals.update(self.task.counts(batch))
        divisors = self.divisors(totals, len(batches))
        with weight_copies(self.weight_copies), ordered_sums(self.device):
            with optimizers.without_gradients(self.frozen_layers()):
                losses = [self.backward(batch, divisors) for batch in batches]
            losses, norm = self.sharded.reduced(
                losses, lambda: optimizers.gradients(self.optimizer)
            )
            self.check_finite(losses, norm)
            optimizers.clip(self.optimizer, self.norm, self.options.optimizer.max_grad_norm)
            self.advance(totals, sum(map(self.task.rate_factor, batches)) / len(batches))
            self.optimizer.step()
        self.optimizer.zero_grad()
        self.counters.seconds += time.perf_counter() - began
        return AppliedStep(losses, totals)

    def frozen_layers(self) -> list[optimizers.Parameters]:
        """The layers that are not trained in this epoch."""
        return self.layers[
            : optimizers.frozen_groups(len(self.layers), self.batches.epoch, self.unfreezing)
        ]

    def fetch(self) -> list[Any]:
        """The batches of one step; the last step of an epoch may have fewer."""
        counters = self.counters
        fetched: list[Any] = []
        while len(fetched) < self.options.gradient_accumulation_steps:
            epoch = self.batches.epoch
            fetched.append(next(self.batches))
            same_epoch = self.batches.epoch == epoch
            counters.epoch_batches = counters.epoch_batches + 1 if same_epoch else 1
            if counters.epoch_batches >= self.batches.batches_per_epoch:
                break
        return fetched

    def divisors(self, totals: Mapping[str, int], batches: int) -> dict[str, float]:
        """The divisor of each loss of a step: the number of its items, or the average number.

        Where all sequences of a batch have one length, batches differ in their number of tokens:
        divided by its own number, a token of a short sentence would weigh several times as much as
        one of a long sentence.
        """
        usual = self.task.usual
        return {
            name: usual[name] * batches if name in usual else max(1, total)
            for name, total in totals.items()
        }

    def backward(self, batch: Any, divisors: Mapping[str, float]) -> dict[str, Tensor]:
        """Add this batch's part of the gradient of the sum over losses of (sum / divisor)."""
        casts = casting(self.precision, self.device)
        with casts, compiling(self.compiled), activation_checkpointing(self.checkpointed):
            losses, self.carry = self.sharded.losses(batch, self.carry)
        sums = {name: value for name, (value, _) in losses.items()}
        objective = sum(value / divisors[name] for name, value in sums.items())
        objective.backward()  # type: ignore[union-attr]
        return {name: value.detach() for name, value in sums.items()}

    def check_finite(self, losses: list[dict[str, Tensor]], norm: Tensor) -> None:
        """Read the norm of the gradient and the losses together: the only wait for the device.

        Raises:
            NonFiniteError: one of them is infinite or NaN.
        """
        total = norm + sum(value for of_batch in losses for value in of_batch.values())
        self.norm, total_value = torch.stack([norm.to(total), total]).tolist()
        if math.isfinite(total_value):
            return
        reason, index = f"the norm of the gradient is {self.norm}", len(losses) - 1
        for i, of_batch in reversed(list(enumerate(losses))):
            for name, value in of_batch.items():
                if not value.isfinite():
                    reason, index = f"the loss `{name}` is {float(value)}", i
        batch = self.counters.epoch_batches - len(losses) + index + 1
        where = f"batch {batch} of epoch {self.batches.epoch + 1}"
        raise NonFiniteError(f"step {self.counters.step + 1}: {reason} at {where}: not applied")

    def advance(self, totals: Mapping[str, int], factor: float) -> None:
        """Count this step, and set the learning rate that belongs to it: the scheduled one times
        `factor`.
        """
        self.counters.step += 1
        self.counters.tokens += next(iter(totals.values()), 0)
        self.learning_rate = self.scheduled_rate() * factor
        optimizers.set_rate(self.optimizer, self.learning_rate)

    @property
    def epochs(self) -> float:
        """Completed epochs and the part of the present one that is done; whole when one ends."""
        part = self.counters.epoch_batches / max(1, self.batches.batches_per_epoch)
        return self.batches.epoch + min(1.0, part)
