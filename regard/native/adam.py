"""Adam and the norm of a gradient by the compiled kernels: see cpp/adam.h."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from regard.native import build
from regard.native.products import pointer

PIECE = 1 << 15  # numbers of a piece, as in adam.h
_address, _count, _number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float


class _Parameter(ctypes.Structure):
    _fields_ = [(name, _address) for name in ("values", "slopes", "means", "squares", "narrow")]
    _fields_ += [("count", _count)]
    _fields_ += [(name, _number) for name in ("keep", "pull", "rate", "unused")]


class _Adam(ctypes.Structure):
    _fields_ = [("parameters", _address), ("pieces", _address), ("count", _count)]
    _fields_ += [(name, _number) for name in ("slope_scale", "first", "second", "lacking", "eps")]
    _fields_ += [("unused", _number), ("sums", _address)]


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
    usual = tensor.dtype == torch.float32 and tensor.device.type == "cpu"
    return usual and tensor.is_contiguous() and tensor.layout == torch.strided


def adam(
    updated: Sequence[Updated], *, step: int, scale: float, betas: tuple[float, float], eps: float
) -> None:
    """Update number `step` (from 1) with gradients that are multiplied with `scale` before.

    Equations of Kingma & Ba 2015, algorithm 1.
    """
    first, second = betas
    table = (_Parameter * len(updated))()
    for line, one in zip(table, updated, strict=True):
        tensors = (one.values, one.values.grad, one.means, one.squares, one.narrow)
        line.values, line.slopes, line.means, line.squares, line.narrow = map(pointer, tensors)
        line.count, line.keep, line.pull = one.values.numel(), one.keep, one.pull
        line.rate = one.rate / (1 - first**step)
    job = _job(table)
    job.slope_scale, job.first, job.second, job.eps = scale, first, second, eps
    job.lacking = (1 - second**step) ** -0.5
    _run("regard_adam", job)


def square_sum(parameters: Sequence[Tensor]) -> float:
    """The sum of the squares of all gradients, the same for any number of threads."""
    table = (_Parameter * len(parameters))()
    for line, parameter in zip(table, parameters, strict=True):
        line.slopes, line.count = pointer(parameter.grad), parameter.numel()
    job = _job(table)
    sums = np.zeros(job.count)
    job.sums = sums.ctypes.data
    _run("regard_add_squares", job)
    return float(sums.sum())


def _job(table: ctypes.Array[_Parameter]) -> _Adam:
    numbers = [(i, at) for i, line in enumerate(table) for at in range(0, line.count, PIECE)]
    pieces = np.array(numbers, np.int64).reshape(-1, 2)
    job = _Adam(ctypes.addressof(table), pieces.ctypes.data, len(pieces))
    job.kept = table, pieces  # for as long as the job lives
    return job


def _run(name: str, job: _Adam) -> None:
    if job.count:
        threads = max(1, min(torch.get_num_threads(), job.count))
        getattr(build.kernels(), name)(_count(threads), ctypes.byref(job))
