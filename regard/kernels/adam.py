"""Adam by the compiled kernels: see cpp/adam.h."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from regard.kernels import build
from regard.kernels.arguments import address, is_contiguous, is_cpu_strided, optional_address
from regard.kernels.signatures import AdamStruct, ParameterStruct
from regard.ops import AdamUpdate

PIECE = 1 << 15  # numbers of a piece, as in adam.h


def fits(
    updates: Sequence[AdamUpdate], scale: float, betas: tuple[float, float], eps: float
) -> bool:
    """Whether there are kernels for these parameters and their gradients: float32 on the CPU."""
    tensors = [x for update in updates for x in (update.parameter, update.gradient)]
    return build.available() and all(map(_plain, tensors))


def _plain(tensor: Tensor) -> bool:
    return is_cpu_strided(tensor) and is_contiguous(tensor)


def adam(
    updates: Sequence[AdamUpdate], scale: float, betas: tuple[float, float], eps: float
) -> None:
    """One step of all parameters and of their low-precision copies."""
    by_step: dict[int, list[AdamUpdate]] = {}
    for update in updates:
        update.step.add_(1)
        by_step.setdefault(int(update.step), []).append(update)
    for step, group in by_step.items():
        _update(group, step, scale, betas, eps)


def _update(
    updates: Sequence[AdamUpdate], step: int, scale: float, betas: tuple[float, float], eps: float
) -> None:
    first, second = betas
    table = (ParameterStruct * len(updates))()
    for row, update in zip(table, updates, strict=True):
        real, shape = torch.float32, update.parameter.shape
        row.values = address("parameter", update.parameter, real, shape)
        row.grads = address("gradient", update.gradient, real, shape)
        row.means = address("exp_avg", update.exp_avg, real, shape)
        row.squares = address("exp_avg_sq", update.exp_avg_sq, real, shape)
        row.copy = optional_address("copy", update.copy, torch.bfloat16, shape)
        row.count = update.parameter.numel()
        row.decay_factor, row.l2 = update.decay_factor, update.l2
        row.learning_rate = update.learning_rate / (1 - first**step)
    numbers = [(i, at) for i, row in enumerate(table) for at in range(0, row.count, PIECE)]
    pieces = np.array(numbers, np.int64).reshape(-1, 2)
    if not len(pieces):
        return
    job = AdamStruct(ctypes.addressof(table), pieces.ctypes.data, len(pieces))
    job.grad_scale, job.beta1, job.beta2, job.eps = scale, first, second, eps
    job.root_scale = (1 - second**step) ** -0.5
    threads = max(1, min(torch.get_num_threads(), job.count))
    build.library().regard_adam(threads, ctypes.byref(job))
