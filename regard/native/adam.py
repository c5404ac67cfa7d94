"""Adam and the norm of a gradient by the compiled kernels: see cpp/adam.h."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from regard.errors import RegardError
from regard.native import build
from regard.native.arguments import address, is_contiguous, is_cpu_strided, optional_address
from regard.native.signatures import Adam, Parameter

PIECE = 1 << 15  # numbers of a piece, as in adam.h


@dataclass(frozen=True)
class Updated:
    """A parameter with its gradient and the two running means; a narrow copy of it, or None.

    keep: what it is multiplied with before.  pull: how much of it is added to the gradient.
    """

    values: Tensor
    means: Tensor
    squares: Tensor
    narrow: Tensor | None
    keep: float
    pull: float
    rate: float


def fits(parameters: Sequence[Tensor]) -> bool:
    """Whether there are kernels for these parameters and their gradients: float32 on the CPU."""
    both = [t for p in parameters for t in (p, p.grad) if t is not None]
    return all(map(_plain, both)) and build.available()


def _plain(tensor: Tensor) -> bool:
    return is_cpu_strided(tensor) and is_contiguous(tensor)


def adam(
    updated: Sequence[Updated], *, step: int, scale: float, betas: tuple[float, float], eps: float
) -> None:
    """Update number `step` (from 1) with gradients that are multiplied with `scale` before.

    Equations of Kingma & Ba 2015, algorithm 1.
    """
    first, second = betas
    table = (Parameter * len(updated))()
    for line, one in zip(table, updated, strict=True):
        real, shape = torch.float32, one.values.shape
        line.values = address("values", one.values, real, shape)
        line.slopes = address("values.grad", _gradient(one.values), real, shape)
        line.means = address("means", one.means, real, shape)
        line.squares = address("squares", one.squares, real, shape)
        line.narrow = optional_address("narrow", one.narrow, torch.bfloat16, shape)
        line.count, line.keep, line.pull = one.values.numel(), one.keep, one.pull
        line.rate = one.rate / (1 - first**step)
    job = _job(table)
    job.slope_scale, job.first, job.second, job.eps = scale, first, second, eps
    job.lacking = (1 - second**step) ** -0.5
    _run("regard_adam", job)


def square_sum(parameters: Sequence[Tensor]) -> float:
    """The sum of the squares of all gradients, the same for any number of threads."""
    table = (Parameter * len(parameters))()
    for line, parameter in zip(table, parameters, strict=True):
        gradient = _gradient(parameter)
        line.slopes = address("grad", gradient, torch.float32, parameter.shape)
        line.count = parameter.numel()
    job = _job(table)
    sums = np.zeros(job.count)
    job.sums = sums.ctypes.data
    _run("regard_add_squares", job)
    return float(sums.sum())


def _gradient(parameter: Tensor) -> Tensor:
    if parameter.grad is None:
        raise RegardError("A parameter must have a gradient, but one has none.")
    return parameter.grad


def _job(table: ctypes.Array[Parameter]) -> Adam:
    numbers = [(i, at) for i, line in enumerate(table) for at in range(0, line.count, PIECE)]
    pieces = np.array(numbers, np.int64).reshape(-1, 2)
    job = Adam(ctypes.addressof(table), pieces.ctypes.data, len(pieces))
    job.kept = table, pieces  # for as long as the job lives
    return job


def _run(name: str, job: Adam) -> None:
    if job.count:
        threads = max(1, min(torch.get_num_threads(), job.count))
        getattr(build.kernels(), name)(threads, ctypes.byref(job))
