"""Time and memory of a pass, measured on some rows of a batch and scaled up to all of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch

from regard.data.grouped_inputs import GroupBatch
from regard.experiments.estimate.samples import TaskSample, first_rows
from regard.training import Trainable
from regard.training.compiling import activation_checkpointing, blocks_of
from regard.training.flops import bytes_of, stored_by, twin
from regard.training.optimizers import optimizer
from regard.training.options import TrainingOptions
from regard.training.precision import casting

PASS_SECONDS = 0.5  # of processor time: a pass that takes as long is measured exactly enough
MAX_SECONDS = 15.0  # of wall time of all passes: then no larger pass begins
BUSY_SHARE = 0.7  # if the main thread has less of a processor, the result says so


@dataclass(frozen=True)
class Measured:
    """What one step costs.

    seconds: None where it was not measured.  activations: bytes.  how: what was measured, in words.
    """

    seconds: float | None
    activations: int
    how: str


def measured(recipe: Any, sample: TaskSample, counted: Measured) -> Measured:
    """The cost of a step from a few rows of a batch, timed on this machine.

    counted: what is returned, with the reason, if this machine has too little memory.
    """
    options: TrainingOptions = recipe.training
    batch = sample.batches[0]
    needed = 5 * bytes_of(sample.task.module)
    if needed > free_memory():
        return replace(counted, how=f"nothing: {needed / 1e9:.1f} GB of memory would be needed")
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(recipe.seed)
    task = with_new_weights(sample.task)
    task.module.train()
    clock = Clock()
    seconds, rows = time_of_batch(
        lambda n: clock.time(lambda: _losses(task, first_rows(batch, n), options).backward()),
        len(batch),
    )
    step = optimizer(task.module, options.optimizer).step
    step()  # allocates the tables
    whole = options.gradient_accumulation_steps * seconds + clock.time(step).own
    threads = torch.get_num_threads()
    unit = "examples" if isinstance(batch, GroupBatch) else "rows"
    how = (
        f"{rows:,} of the {len(batch):,} {unit} of a batch, on this machine with "
        f"{threads} thread{'s' * (threads > 1)}, without validation"
    )
    if rows == 1 < len(batch):
        how += " (what the weights cost is counted with every row: an upper bound)"
    if clock.share < BUSY_SHARE:
        how += f"; other programs took {1 - clock.share:.0%} of its time, which is not in the time"
    return Measured(whole, activations_of(task, batch, options, max(rows, 2)), how)


def with_new_weights(task: Trainable) -> Trainable:
    """The same task with a model with new weights on the CPU."""
    made = copy(task)
    made.module = twin(task.module, "cpu")
    if task.aux_lm is not None:
        made.aux_lm = replace(task.aux_lm, head=made.module.encoder.head)
    return made


@dataclass(frozen=True)
class Seconds:
    """own: of the main thread on a processor.  wall: of the wall clock."""

    own: float
    wall: float


class Clock:
    """Times calls, and sums processor and wall time."""

    def __init__(self) -> None:
        self.own = self.wall = 0.0

    def time(self, work: Callable[[], Any]) -> Seconds:
        """The time of a call."""
        own, wall = time.thread_time(), time.perf_counter()
        work()
        taken = Seconds(time.thread_time() - own, time.perf_counter() - wall)
        self.own, self.wall = self.own + taken.own, self.wall + taken.wall
        return taken

    @property
    def share(self) -> float:
        """Processor time over wall time: 1 where nothing else ran."""
        return self.own / self.wall


def time_of_batch(timed: Callable[[int], Seconds], most: int) -> tuple[float, int]:
    """Seconds of a pass over `most` rows, and how many were timed.

    A pass costs a constant time for the weights and a time for each row: one row and several rows
    determine both.
    """
    rows, first = 1, timed(1)  # the first also loads code and allocates memory
    taken = timed(1)
    one, spent = taken.own, first.wall + taken.wall
    while rows < most and taken.own < PASS_SECONDS and spent < MAX_SECONDS:
        rows = min(most, 4 * rows)
        taken = timed(rows)
        spent += taken.wall
    if rows == 1:
        return most * one, 1
    of_row = max(0.0, taken.own - one) / (rows - 1)
    return taken.own + of_row * (most - rows), rows


def activations_of(task: Trainable, batch: Any, options: TrainingOptions, rows: int) -> int:
    """Bytes of the activations of a batch, from those of its first `rows` and of half of them."""

    def kept(rows: int) -> int:
        blocks = blocks_of(task.module) if options.activation_checkpointing else []
        kept_alone = replace(options, activation_checkpointing=False)
        return stored_by(
            task.module, lambda: _losses(task, first_rows(batch, rows), kept_alone), blocks
        )

    if len(batch) == 1:
        return kept(1)
    half = rows // 2
    first, second = kept(half), kept(rows)
    return second + (second - first) * (len(batch) - rows) // (rows - half)


def _losses(task: Trainable, batch: Any, options: TrainingOptions) -> Any:
    blocks = blocks_of(task.module) if options.activation_checkpointing else []
    with casting(options.precision, torch.device("cpu")), activation_checkpointing(blocks):
        losses, _ = task.losses(batch, None)
    return sum(value for value, _ in losses.values())


def free_memory() -> int:
    """Bytes of available memory."""
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
