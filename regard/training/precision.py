"""The precision of matrix products; weights and steps are always float32."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from regard.data.batches import Batches
from regard.training.counters_and_rng import isolated_rng
from regard.training.task import Losses

TaskLosses = Callable[[Any, Any], tuple[Losses, Any]]
GAIN = 1.1  # bfloat16 must be faster by this factor, so that noise does not decide
SMALL = 100_000  # parameters of a model that gains nothing, and is not timed


def casting(precision: str, device: torch.device) -> AbstractContextManager:
    """The context of a forward pass; each batch needs its own."""
    if precision == "bfloat16":
        return torch.autocast(device.type, torch.bfloat16)
    return nullcontext()


def resolve(precision: str, losses: TaskLosses, model: nn.Module, batches: Batches) -> str:
    """The precision of a training, "float32" or "bfloat16".

    "auto" is bfloat16 where a forward and backward pass over the first batch is faster; a model of
    less than 100,000 parameters is not timed. Timing changes neither weights nor generators nor
    the position in the data.

    losses: `Trainable.losses` with this model.
    """
    if precision != "auto":
        return precision
    device = next(model.parameters()).device
    if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        return "float32"
    if sum(parameter.numel() for parameter in model.parameters()) < SMALL:
        return "float32"
    position = batches.position()
    batch = next(batches)
    batches.restore(position)
    with isolated_rng():
        # In turns, so that other programs disturb both; the first passes warm up.
        passes = [
            {name: _timed(losses, model, batch, name) for name in ("float32", "bfloat16")}
            for _ in range(4)
        ]
    seconds = {name: min(one[name] for one in passes[1:]) for name in passes[0]}
    return "bfloat16" if seconds["float32"] > GAIN * seconds["bfloat16"] else "float32"


def _timed(losses: TaskLosses, model: nn.Module, batch: Any, precision: str) -> float:
    """Seconds of a forward and a backward pass."""
    began = time.perf_counter()
    with casting(precision, next(model.parameters()).device):
        sums, _ = losses(batch, None)
    total: Any = sum(value for value, _ in sums.values())
    total.backward()
    total.item()  # waits for the device
    model.zero_grad()
    return time.perf_counter() - began
