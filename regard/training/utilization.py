"""Model FLOPs utilization (MFU): how much of a device's rate the products of a training use.

Chowdhery et al. 2022, "PaLM", appendix B: what activation checkpointing computes a second time does
not count, so that it lowers the MFU at the same speed. Nor does padding: a token has the FLOPs that
it has in a batch of the same shape without padding.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from copy import copy
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from regard.data.batches import Sequences
from regard.layers.linear import linear_no_grad
from regard.training.counters_and_rng import isolated_rng
from regard.training.flops import count, twin
from regard.training.task import Trainable

PRODUCT = (1024, 1024, 2048)  # rows of x; columns and rows of the weight: to measure a rate
PRODUCTS = {"cuda": (8192, 4096, 8192)}  # half a TFLOP
SHAPES = 3  # of batches whose FLOPs are counted; others have as many a position, on average
# Dense products of bfloat16 in TFLOP/s, by what is in the device's name; from data sheets. Of two
# names that a device has, the first counts.
RATES = {
    "GB200": 2500,
    "B200": 2250,
    "B100": 1750,
    "GH200": 989,
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
    """Counts the tokens of batches, and from a few batches the FLOPs of a token.

    devices: how many such devices a batch is divided among.

    A task whose batches cannot be counted, or whose model cannot be copied to the meta device,
    has no share.
    """

    def __init__(self, task: Trainable, device: torch.device, precision: str, devices: int = 1):
        self.task, self.device, self.precision = task, device, precision
        self.devices = devices
        self.tokens, self.batch = 0, None
        self._model: Any = None
        self._counted: dict[tuple, float] = {}  # FLOPs of a position, by the shapes of a batch
        self._rate: float | None = None

    def add(self, batches: Sequence[Any]) -> None:
        """Count the batches of a step."""
        self.batch = batches[-1]
        self.tokens += sum(map(tokens_in, batches))

    def share(self, tokens: int, seconds: float) -> float | None:
        """The share of the device's rate where so many tokens took so long; None: not known."""
        per_token = self._flops_per_token()
        if per_token is None or not tokens:
            return None
        if self._rate is None:
            self._rate = self.devices * rate_of(self.device, self.precision)
        return tokens * per_token / seconds / self._rate

    def _flops_per_token(self) -> float | None:
        shapes = tuple(tuple(t.shape) for t in grids_of(self.batch))
        if shapes and shapes not in self._counted and len(self._counted) < SHAPES:
            flops = self._flops()
            if flops is None:
                self.batch = None  # do not try again
                return None
            self._counted[shapes] = flops / positions_in(self.batch)
        per_position = self._counted.values()
        return self._counted.get(
            shapes, sum(per_position) / len(per_position) if per_position else None
        )

    def _flops(self) -> float | None:
        task = copy(self.task)
        try:
            with isolated_rng():
                self._model = task.module = self._model or twin(self.task.module, "meta")
                return count(task, self.batch)[1]
        except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError):
            return None


def grids_of(batch: Any) -> list[Tensor]:
    """The tensors of a batch that have a token at each position."""
    if isinstance(batch, Tensor):
        return [batch] if batch.dim() > 1 else []
    parts = [getattr(batch, f.name) for f in fields(batch)] if is_dataclass(batch) else []
    return [grid for part in parts for grid in grids_of(part)]


def positions_in(batch: Any) -> int:
    """The positions of a batch, padding included."""
    return sum(grid.numel() for grid in grids_of(batch))


def tokens_in(batch: Any) -> int:
    """The positions of a batch without padding, where lengths say which positions are padding."""
    if isinstance(batch, Sequences):
        return int(batch.lengths.sum()) * len(grids_of(batch))
    if isinstance(batch, Tensor):
        return batch.numel() if batch.dim() > 1 else 0
    parts = [getattr(batch, f.name) for f in fields(batch)] if is_dataclass(batch) else []
    return sum(map(tokens_in, parts))


def rate_of(device: torch.device, precision: str) -> float:
    """FLOP/s of products: of a known GPU's data sheet in bfloat16, else measured."""
    if device.type == "cuda" and precision == "bfloat16":
        rate = published_rate(torch.cuda.get_device_name(device))
        if rate is not None:
            return rate
    return _measured(device, precision, torch.get_num_threads())


def published_rate(name: str) -> float | None:
    """FLOP/s of a GPU whose name has a name of `RATES` as words of its own; None for others: an RTX
    A4000 is no A40.
    """
    for gpu, rate in RATES.items():
        if re.search(rf"\b{gpu}\b", name):
            return rate * 1e12
    return None


@cache  # another training of this process finds the same
def _measured(device: torch.device, precision: str, threads: int) -> float:
    """The best of several products, large enough that starting one does not count."""
    rows, width, outputs = PRODUCTS.get(device.type, PRODUCT)
    kind = getattr(torch, precision)
    x = torch.ones(rows, width, dtype=kind, device=device)
    weight = torch.ones(outputs, width, dtype=kind, device=device)
    best = float("inf")
    with torch.no_grad():
        for _ in range(6):
            began = time.perf_counter()
            linear_no_grad(x, weight)[0, 0].item()  # waits for the device
            best = min(best, time.perf_counter() - began)
    return 2.0 * rows * width * outputs / best
