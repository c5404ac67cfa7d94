"""Adam and the norm of a gradient by the compiled kernels: see cpp/adam.h."""

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
    return fits_gradients([x for update in updates for x in (update.parameter, update.gradient)])


def fits_gradients(gradients: Sequence[Tensor]) -> bool:
    """Whether there are kernels for all of these."""
    return build.available() and all(map(_plain, gradients))


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
    job = _job(table)
    job.grad_scale, job.beta1, job.beta2, job.eps = scale, first, second, eps
    job.root_scale = (1 - second**step) ** -0.5
    _run("regard_adam", job)


def gradient_norm(gradients: Sequence[Tensor]) -> Tensor:
    """See `ops.gradient_norm`; the same for any number of threads."""
    table = (ParameterStruct * len(gradients))()
    for row, gradient in zip(table, gradients, strict=True):
        row.grads = address("gradient", gradient, torch.float32, gradient.shape)
        row.count = gradient.numel()
    job = _job(table)
    sums = np.zeros(job.count)
    job.sums = sums.ctypes.data
    _run("regard_add_squares", job)
    return torch.tensor(float(sums.sum()), dtype=torch.float64).sqrt().float()


def _job(table: ctypes.Array[ParameterStruct]) -> AdamStruct:
    numbers = [(i, at) for i, row in enumerate(table) for at in range(0, row.count, PIECE)]
    pieces = np.array(numbers, np.int64).reshape(-1, 2)
    job = AdamStruct(ctypes.addressof(table), pieces.ctypes.data, len(pieces))
    job.owned = table, pieces  # keeps their memory alive
    return job


def _run(name: str, job: AdamStruct) -> None:
    if job.count:
        threads = max(1, min(torch.get_num_threads(), job.count))
        getattr(build.library(), name)(threads, ctypes.byref(job))
