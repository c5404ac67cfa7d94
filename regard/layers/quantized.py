"""Layers whose weights are quantized: 8-bit integers with a scale for each row, or bfloat16.

They replace the layers of a float32 model and are called in the same way; they cannot be trained.

    W[n] ~ scale[n] * q[n],   q[n] = round(W[n] / scale[n]),   scale[n] = max |W[n]| / 127
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import ops
from regard.errors import RegardError
from regard.file_pages import is_releasing, release
from regard.layers.recurrent import LSTMOutput, RecurrentLayer
from regard.layers.softmax import SLICE, Softmax, summed_loss, without_ignored
from regard.ops import operation

# ------------------------------------------------------------------------------------------- panels
#
# Quantized matrices, and what is computed with them, in plain PyTorch.
#
#     W[n] ~ scale[n] * q[n]          with 8-bit integers q and a scale for each row, or bfloat16
#
# A matrix is stored in panels of 16 rows, as compiled kernels read it: see `pack`. Activations are
# quantized too: to bfloat16, or to 8 bits in groups of 64 elements that share a scale. The
# functions here and the compiled kernels have the same results, up to the order of rounding.


PANEL = 16  # rows of a matrix that are stored together
GROUP = 64  # elements of an activation that share a scale
SMALLEST = 1e-30  # a group with a smaller absolute maximum becomes zeros
OFFSET = 128  # 8-bit weights are stored without sign
WEIGHTS_AT_ONCE = 1 << 22  # weights that `quantized_linear` holds as float32 at once: 16 MB


class Panels(NamedTuple):
    """A matrix (N, K) in panels; `scale` (N,) where it is 8-bit, None where it is bfloat16."""

    packed: Tensor
    scale: Tensor | None
    shape: tuple[int, int]


def pack(weight: Tensor) -> Tensor:
    """A matrix of int8 or bfloat16 in panels: (N, K) -> (N / 16, K / side, 16, side)."""
    side = 4 if weight.dtype == torch.int8 else 2
    full = F.pad(weight, (0, -weight.size(1) % GROUP, 0, -weight.size(0) % PANEL)).contiguous()
    if full.storage_offset() % side:  # a slice of a file
        full = full.clone()
    words = full.view(torch.int32).unflatten(0, (-1, PANEL))  # a word: `side` elements of a row
    # (P, 16, K / side) -> (P, K / side, 16, side)
    packed = words.transpose(1, 2).contiguous()[..., None].view(weight.dtype)
    return packed.view(torch.uint8).bitwise_xor_(OFFSET) if side == 4 else packed


def unpack(packed: Tensor, rows: int, columns: int) -> Tensor:
    """The inverse of `pack`, as float32, without scales: -> (rows, columns)."""
    # (P, K / side, 16, side) -> (P, 16, K / side, side) -> (P * 16, K)
    plain = packed.transpose(1, 2).flatten(2).flatten(0, 1)[:rows, :columns]
    return _signed(plain)


def rows_of(packed: Tensor, ids: Tensor, columns: int) -> Tensor:
    """Rows of a packed matrix, as float32, without scales: (...,) -> (..., columns). Other rows are
    not read.
    """
    rows = packed[ids // PANEL, :, ids % PANEL]  # (..., K / side, side)
    return _signed(rows.flatten(-2)[..., :columns])


def _signed(numbers: Tensor) -> Tensor:
    return numbers.float() - OFFSET if numbers.dtype == torch.uint8 else numbers.float()


@operation
def quantized_linear(x: Tensor, matrix: Panels, bias: Tensor | None = None) -> Tensor:
    """q(x) W^T + b: (..., K) -> (..., N), q quantizing x as the matrix is; see `round_to_8_bits`.

    W becomes float32 slice by slice, because the whole of it would take four times the memory of
    8-bit weights.

    Raises:
        RegardError: x is on another device than the matrix.
    """
    check_device("x", x, matrix.packed)
    (rows, columns), rounded = matrix.shape, _rounded(x, matrix)
    panels = max(1, WEIGHTS_AT_ONCE // (PANEL * max(1, columns)))
    parts = [
        ops.linear(rounded, unpack(part, rows - i * panels * PANEL, columns).to(x.dtype))
        for i, part in enumerate(matrix.packed.split(panels))
    ]
    return _scaled(torch.cat(parts, -1), matrix, bias)


def _rounded(x: Tensor, matrix: Panels) -> Tensor:
    """x quantized as the matrix is, then dequantized to its own dtype: (..., K), same."""
    if matrix.scale is None:
        return x.to(torch.bfloat16).to(x.dtype)
    rounded = round_to_8_bits(x)
    # Straight-through estimator: the gradient of rounding, which is zero, is replaced by 1.
    return x + (rounded - x).detach() if x.requires_grad else rounded


def _scaled(product: Tensor, matrix: Panels, bias: Tensor | None) -> Tensor:
    """scale * product + bias, (..., N), from the product with the quantized weights."""
    if matrix.scale is not None:
        product = product * matrix.scale.to(product.dtype)
    return product if bias is None else product + bias


def round_to_8_bits(x: Tensor) -> Tensor:
    """x rounded to 8 bits: (..., K), same. Each 64 elements have a scale, max(abs(x)) / 127."""
    groups = F.pad(x, (0, -x.size(-1) % GROUP)).unflatten(-1, (-1, GROUP))  # -> (..., G, 64)
    maximum = groups.abs().amax(-1, keepdim=True)
    inverse = torch.where(maximum < SMALLEST, 0.0, 127.0 / maximum)
    numbers = (groups * inverse).round() * (maximum / 127.0)  # NaN and infinity give NaN
    return numbers.flatten(-2)[..., : x.size(-1)]


@operation
def quantized_rows(ids: Tensor, matrix: Panels) -> Tensor:
    """Rows of a matrix as float32, an embedding lookup: (...,) -> (..., K).

    Raises:
        IndexError: there is no such row.
        RegardError: ids are not integers, or on another device than the matrix.
    """
    if ids.dtype not in (torch.int64, torch.int32):
        raise RegardError(f"`ids` must be int64 or int32, but is {ids.dtype}.")
    check_device("ids", ids, matrix.packed)
    check_range("ids", ids, matrix.shape[0])
    rows = rows_of(matrix.packed, ids, matrix.shape[1])
    return rows if matrix.scale is None else rows * matrix.scale[ids, None]


@operation
def quantized_recurrence(
    below: Tensor, matrix: Panels, bias: Tensor | None, hidden: Tensor, cell: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """`ops.rnn`, `ops.gru` or `ops.lstm` with a quantized recurrent matrix.

    Args:
        below: W x + b of all steps, (B, T, G * D); G is 1 for an RNN, 3 for a GRU, 4 for an LSTM.
        matrix, bias: U, (G * D, D), and its bias.
        hidden, cell: the state before the first step, (B, D), and (B, D) or (B, 0).

    Returns:
        Every hidden state (B, T, D), the last one and the last cell.
    """
    check_recurrence(below, hidden, cell)
    check_device("hidden", hidden, matrix.packed)
    weight = unpack(matrix.packed, *matrix.shape).to(hidden.dtype)
    states = []
    for column in below.unbind(1):
        product = ops.linear(_rounded(hidden, matrix), weight)
        recurrent = _scaled(product, matrix, bias)
        match below.size(2) // hidden.size(1):
            case 1:
                hidden = ops.rnn_step(column, recurrent)
            case 3:
                hidden = ops.gru_step(column, recurrent, hidden)
            case _:
                hidden, cell = ops.lstm_step(column, recurrent, cell)
        states.append(hidden)
    return torch.stack(states, 1) if states else hidden[:, None][:, :0], hidden, cell


def check_recurrence(below: Tensor, hidden: Tensor, cell: Tensor) -> None:
    """Check the shapes of a recurrence.

    Raises:
        RegardError: they do not match.
    """
    sizes = tuple(map(tuple, (below.shape, hidden.shape, cell.shape)))
    match sizes:
        case (rows, _, gates), (again, width), (same, inner) if rows == again == same and width:
            count, rest = divmod(gates, width)
            if not rest and (count, inner) in {(1, 0), (1, width), (3, 0), (3, width), (4, width)}:
                return
    raise RegardError(
        "`below` must be (B, T, G * D) with G of 1, 3 or 4, `hidden` (B, D) and `cell` (B, D), or "
        "(B, 0) where G is not 4, but they are {}, {} and {}.".format(*sizes)
    )


def check_device(name: str, x: Tensor, packed: Tensor) -> None:
    """Check the device of x.

    Raises:
        RegardError: it is not that of the matrix.
    """
    if x.device != packed.device:
        raise RegardError(f"`{name}` is on {x.device}, but the matrix is on {packed.device}.")


def check_range(name: str, numbers: Tensor, end: int) -> None:
    """Check indices on the CPU.

    Raises:
        IndexError: one is below 0, or not below `end`.
    """
    if not numbers.is_cpu or not numbers.numel():
        return
    low, high = map(int, numbers.aminmax())
    if low < 0 or high >= end:
        raise IndexError(f"`{name}` must be from 0 to {end - 1}, but are from {low} to {high}.")


# ------------------------------------------------------------------------------------------- layers
#
#


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


def quantize_matrix(
    weight: Tensor, dtype: WeightType, rows: slice = slice(None)
) -> tuple[Tensor, Tensor | None]:
    """The quantized weights (N, K) and scales (N,) of a matrix, or of some of its rows: those of
    its file, or new ones.
    """
    stored: StoredMatrix | None = getattr(weight, "stored", None)
    if stored is not None:
        stored.used = True
        return stored.numbers[rows], None if stored.scale is None else stored.scale[rows]
    numbers = weight.detach()[rows]
    if dtype == "bfloat16":
        return numbers.to(torch.bfloat16), None
    numbers = numbers.float()
    scale = numbers.abs().amax(1) / 127
    return (numbers / torch.where(scale > 0, scale, 1.0)[:, None]).round().to(torch.int8), scale


def _packed(weight: Tensor, dtype: WeightType) -> tuple[Tensor, Tensor | None]:
    """A matrix (N, K) in panels, and its scales (N,).

    Slices of rows are quantized and packed one after the other, and pages of a file are dropped
    after reading, so that this needs little more memory than the panels.
    """
    rows, columns = weight.shape
    step = max(PANEL, SLICE_BYTES // max(1, 4 * columns) // PANEL * PANEL)
    packed: Tensor | None = None
    scales = []
    for start in range(0, rows, step) if rows else [0]:
        part = slice(start, start + step)
        numbers, scale = quantize_matrix(weight, dtype, part)
        panels = pack(numbers)
        if packed is None:
            shape = (-(-rows // PANEL), *panels.shape[1:])
            packed = ops.large_empty(shape, panels.dtype)
        packed[start // PANEL : start // PANEL + panels.size(0)] = panels
        if scale is not None:
            scales.append(scale)
        if is_releasing():
            release(numbers if hasattr(weight, "stored") else weight.detach()[part])
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
