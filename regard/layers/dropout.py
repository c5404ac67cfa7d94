"""Dropout, several times faster on a CPU than torch's own.

Torch draws one random number an element with a serial generator. One 64-bit draw holds four 16-bit
numbers, which decide over four elements; the probability is then a multiple of 1/65536, and the
kept elements are scaled by the probability that was really used.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, threshold: int) -> Tensor:
        draws = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        keep = draws.view(torch.int16)[: x.numel()].view(x.shape) >= threshold - 32768
        ctx.scale = 65536 / (65536 - threshold)
        ctx.save_for_backward(keep)
        return (x * keep).mul_(ctx.scale)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (keep,) = ctx.saved_tensors
        return (grads[0] * keep).mul_(ctx.scale), None


def dropout(x: Tensor, probability: float) -> Tensor:
    """Zero each element with this probability and scale the others so that the mean stays.

    Draws from torch's default generator, so that a saved generator state repeats the run.
    """
    if probability == 0.0:
        return x
    check_probability(probability)
    if x.device.type != "cpu":
        return F.dropout(x, probability)
    return _Drop.apply(x, min(round(probability * 65536), 65535))


def check_probability(probability: float) -> None:
    """Something must be left to scale up."""
    if not 0.0 <= probability < 1.0:
        raise ValueError(f"`probability` must be in [0, 1), but is {probability}.")


class Dropout(nn.Module):
    """`dropout` in training, nothing in evaluation."""

    def __init__(self, probability: float):
        super().__init__()
        check_probability(probability)
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.probability) if self.training else x

    def extra_repr(self) -> str:
        return f"{self.probability}"
