"""Layers whose weights are quantized: 8-bit integers with a scale for each row, or bfloat16.

They replace the layers of a float32 model and are called in the same way; they cannot be trained.

    W[n] ~ scale[n] * q[n],   q[n] = round(W[n] / scale[n]),   scale[n] = max |W[n]| / 127
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import ops
from regard.file_pages import is_releasing, release
from regard.layers.panels import (
    PANEL,
    Panels,
    pack,
    quantized_linear,
    quantized_recurrence,
    quantized_rows,
)
from regard.layers.recurrent import LSTMOutput, RecurrentLayer
from regard.layers.softmax import SLICE, Softmax, summed_loss, without_ignored

SLICE_BYTES = 8 << 20  # float32 weights that are quantized at a time

WeightType = Literal["int8", "bfloat16"]


@dataclass
class StoredMatrix:
    """A quantized matrix as it is stored in a file.

    It is the attribute `stored` of the parameter that it replaces.

    numbers: (N, K), int8 or bfloat16.
    scale: (N,), of each row; None: bfloat16.
    used: whether a quantized layer was built from it.
    """

    numbers: Tensor
    scale: Tensor | None
    used: bool = False

    def dequantized(self) -> Tensor:
        """The matrix as float32."""
        numbers = self.numbers.float()
        return numbers if self.scale is None else numbers * self.scale[:, None]


def quantize_matrix(weight: Tensor, dtype: WeightType) -> tuple[Tensor, Tensor | None]:
    """The quantized weights (N, K) and scales (N,) of a matrix: those of its file, or new ones."""
    stored: StoredMatrix | None = getattr(weight, "stored", None)
    if stored is not None:
        stored.used = True
        return stored.numbers, stored.scale
    if dtype == "bfloat16":
        return weight.detach().to(torch.bfloat16), None
    numbers = weight.detach().float()
    scale = numbers.abs().amax(1) / 127
    return (numbers / torch.where(scale > 0, scale, 1.0)[:, None]).round().to(torch.int8), scale


def _packed(weight: Tensor, dtype: WeightType) -> tuple[Tensor, Tensor | None]:
    """A matrix (N, K) in panels, and its scales (N,).

    Slices of rows are quantized and packed one after the other, and pages of a file are dropped
    after reading, so that this needs little more memory than the panels.
    """
    rows, columns = weight.shape
    step = max(PANEL, SLICE_BYTES // max(1, 4 * columns) // PANEL * PANEL)
    stored: StoredMatrix | None = getattr(weight, "stored", None)
    packed: Tensor | None = None
    scales = []
    for start in range(0, rows, step) if rows else [0]:
        part = slice(start, start + step)
        if stored is None:
            source = weight.detach()[part]
            numbers, scale = quantize_matrix(source, dtype)
        else:
            stored.used = True
            source = numbers = stored.numbers[part]
            scale = None if stored.scale is None else stored.scale[part]
        panels = pack(numbers)
        if packed is None:
            shape = (-(-rows // PANEL), *panels.shape[1:])
            packed = ops.large_empty(shape, panels.dtype)
        packed[start // PANEL : start // PANEL + panels.size(0)] = panels
        if scale is not None:
            scales.append(scale)
        if is_releasing():
            release(source)
    assert packed is not None
    return packed, torch.cat(scales) if scales else None


class QuantizedMatrix(nn.Module):
    """A matrix (N, K): `weight` in panels as kernels read it; `scale` (N,) where it is 8-bit."""

    weight: Tensor
    scale: Tensor | None

    def __init__(self, weight: Tensor, dtype: WeightType):
        super().__init__()
        self.out_features, self.in_features = weight.shape
        packed, scale = _packed(weight, dtype)
        self.register_buffer("weight", packed)
        self.register_buffer("scale", scale)

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)"""
        return self.out_features, self.in_features

    @property
    def panels(self) -> Panels:
        """The matrix as the operations take it."""
        return Panels(self.weight, self.scale, self.shape)

    def part(self, first: int, end: int) -> QuantizedMatrix:
        """Rows `first` to before `end`, in the same memory; both must be multiples of 16."""
        part = copy(self)
        scale = None if self.scale is None else self.scale[first:end]
        part._buffers = {"weight": self.weight[first // PANEL : end // PANEL], "scale": scale}
        part.out_features = end - first
        return part

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """`model.to()`, `float()` and the like move the matrix, but do not convert its weights."""
        kind = self.weight.dtype
        self.weight = self.weight.view(torch.uint8)  # integers are not converted
        super()._apply(fn, recurse)
        self.weight = self.weight.view(kind)
        self.scale = None if self.scale is None else self.scale.float()
        return self

    def rows(self, ids: Tensor) -> Tensor:
        """Rows of the matrix as float32, an embedding lookup: (...,) -> (..., K)"""
        return quantized_rows(ids, self.panels)

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x W^T + b: (..., K) -> (..., N)"""
        return quantized_linear(x, self.panels, bias)

    def extra_repr(self) -> str:
        return f"{self.shape}, {'int8' if self.scale is not None else 'bfloat16'}"


class QuantizedLinear(nn.Module):
    """`Linear` with a quantized weight."""

    bias: Tensor | None

    def __init__(self, linear: nn.Linear, dtype: WeightType):
        super().__init__()
        self.matrix = QuantizedMatrix(linear.weight, dtype)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        bias = None if linear.bias is None else linear.bias.detach().float()
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        """(..., K) -> (..., N)"""
        return self.matrix(x, self.bias)

    def step_matmul(self) -> Callable[[Tensor], Tensor]:
        return self.matrix


class QuantizedRecurrent(nn.Module):
    """`RecurrentLayer` with quantized weights."""

    empty = RecurrentLayer.empty

    def __init__(self, layer: RecurrentLayer, dtype: WeightType):
        super().__init__()
        self.d_model, self.has_cell = layer.d_model, layer.has_cell
        self.input = QuantizedLinear(layer.input, dtype)
        self.recurrent = QuantizedLinear(layer.recurrent, dtype)

    def forward(self, x: Tensor, hidden: Tensor, cell: Tensor) -> LSTMOutput:
        matrix, bias = self.recurrent.matrix.panels, self.recurrent.bias
        parts = quantized_recurrence(self.input(x), matrix, bias, hidden, cell)
        return parts[0], parts[1:]


class QuantizedEmbedding(nn.Module):
    """`nn.Embedding` with a quantized weight; a lookup dequantizes the rows that it reads."""

    def __init__(self, matrix: QuantizedMatrix):
        super().__init__()
        self.matrix = matrix

    @property
    def weight(self) -> Tensor:
        """The quantized matrix, in panels."""
        return self.matrix.weight

    def forward(self, ids: Tensor) -> Tensor:
        """(...,) -> (..., D)"""
        return self.matrix.rows(ids)


class QuantizedSoftmax(nn.Module):
    """`Softmax` with a quantized weight; `matrix` may be that of an embedding."""

    bias: Tensor | None

    def __init__(self, softmax: Softmax, matrix: QuantizedMatrix):
        super().__init__()
        self.matrix = matrix
        bias = None if softmax.bias is None else softmax.bias.detach().float()
        self.register_buffer("bias", bias)

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., V)"""
        return self.matrix(hidden, self.bias)

    def loss(
        self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0, count: int | None = None
    ) -> tuple[Tensor, int]:
        """The sum of the cross-entropies in nats, and the number of targets; see `Softmax.loss`."""
        hidden, targets = without_ignored(hidden, targets, count)
        if not smoothing:
            vocab_size = self.matrix.out_features
            return summed_loss(hidden, targets, self.logits, vocab_size), targets.numel()
        total = hidden.new_zeros((), dtype=torch.float64)
        step = max(SLICE // self.matrix.out_features, 64)
        for start in range(0, targets.numel(), step):
            part = slice(start, start + step)
            logits = self.logits(hidden[part]).float()
            total += F.cross_entropy(
                logits, targets[part], label_smoothing=smoothing, reduction="sum"
            )
        return total.to(torch.float32), targets.numel()
