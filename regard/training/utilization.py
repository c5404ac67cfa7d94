"""How much of a device's rate the products of a training use: model FLOPs utilization, MFU.

Chowdhery et al. 2022, "PaLM", appendix B: what is computed anew for the backward pass does not
count, so that a training which does so has the lower share for the same speed. Nor does what is
computed of padding: a token has the FLOPs that it has in a batch of the same shape without any.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from copy import copy
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from regard.data.batches import Sequences
from regard.layers.linear import linear_no_grad
from regard.training.flops import count, twin
from regard.training.memory import isolated_random

PRODUCT = (1024, 1024, 2048)  # rows, and columns and lines of a matrix, to measure a rate
PRODUCTS = {"cuda": (8192, 4096, 8192)}  # half a TFLOP
SHAPES = 3  # of batches whose FLOPs are counted; those of others follow by the number of places
# Dense products of bfloat16 in TFLOP/s, by what is in the device's name; the makers' data sheets.
RATES = {
    "B200": 2250,
    "B100": 1750,
    "H200": 989,
    "H100 PCIe": 756,
    "H100": 989,
    "A100": 312,
    "L40S": 362,
    "L40": 181,
    "L4": 121,
    "A10G": 70,
    "A10": 125,
    "A40": 150,
    "V100": 112,
    "T4": 65,
    "RTX 5090": 210,
    "RTX 4090": 165,
    "RTX 3090": 71,
}


class Utilization:
    """Counts the places of batches that hold tokens, and from a few of them the FLOPs of a place.

    A task whose batches cannot be counted, or whose model cannot be made anew without numbers, has
    no share.
    """

    def __init__(self, task: Any, device: torch.device, precision: str):
        self.task, self.device, self.precision = task, device, precision
        self.places, self.batch = 0, None
        self._model: Any = None
        self._counted: dict[tuple, float] = {}  # FLOPs of a place, by the shapes of a batch
        self._rate: float | None = None

    def add(self, batches: Sequence[Any]) -> None:
        """These were learned from."""
        self.batch = batches[-1]
        self.places += sum(map(filled_places, batches))

    def share(self, places: int, seconds: float) -> float | None:
        """Of the device's rate, where so many filled places took so long."""
        a_place = self._flops_of_a_place()
        if a_place is None or not places:
            return None
        if self._rate is None:
            self._rate = rate_of(self.device, self.precision)
        return places * a_place / seconds / self._rate

    def _flops_of_a_place(self) -> float | None:
        shapes = tuple(tuple(t.shape) for t in _grids(self.batch))
        if shapes and shapes not in self._counted and len(self._counted) < SHAPES:
            flops = self._flops()
            if flops is None:
                self.batch = None  # nor is it asked again
                return None
            self._counted[shapes] = flops / places_of(self.batch)
        known = self._counted.values()
        return self._counted.get(shapes, sum(known) / len(known) if known else None)

    def _flops(self) -> float | None:
        task = copy(self.task)
        try:
            with isolated_random():
                self._model = task.model = self._model or twin(self.task.model, "meta")
                return count(task, self.batch)[1]
        except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError):
            return None


def _grids(batch: Any) -> list[Tensor]:
    """The tensors of a batch in which each place is a token."""
    if isinstance(batch, Tensor):
        return [batch] if batch.dim() > 1 else []
    parts = [getattr(batch, f.name) for f in fields(batch)] if is_dataclass(batch) else []
    return [grid for part in parts for grid in _grids(part)]


def places_of(batch: Any) -> int:
    """Of all its grids, padding included."""
    return sum(grid.numel() for grid in _grids(batch))


def filled_places(batch: Any) -> int:
    """Of all its grids, without padding, where lengths tell which it is."""
    if isinstance(batch, Sequences):
        return int(batch.lengths.sum()) * len(_grids(batch))
    if isinstance(batch, Tensor):
        return batch.numel() if batch.dim() > 1 else 0
    parts = [getattr(batch, f.name) for f in fields(batch)] if is_dataclass(batch) else []
    return sum(map(filled_places, parts))


def rate_of(device: torch.device, precision: str) -> float:
    """FLOP/s of products: of a known GPU's data sheet in bfloat16, else measured."""
    if device.type == "cuda" and precision == "bfloat16":
        name = torch.cuda.get_device_name(device)
        for known, rate in RATES.items():
            if known in name:
                return rate * 1e12
    return _measured(device, precision)


def _measured(device: torch.device, precision: str) -> float:
    """The best of several products, large enough for what a device starts with each."""
    rows, width, lines = PRODUCTS.get(device.type, PRODUCT)
    kind = getattr(torch, precision)
    x = torch.ones(rows, width, dtype=kind, device=device)
    weight = torch.ones(lines, width, dtype=kind, device=device)
    best = float("inf")
    with torch.no_grad():
        for _ in range(6):
            began = time.perf_counter()
            linear_no_grad(x, weight)[0, 0].item()  # waits for the device
            best = min(best, time.perf_counter() - began)
    return 2.0 * rows * width * lines / best
