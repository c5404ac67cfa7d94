"""Quantized matrices, and what is computed with them, in plain PyTorch.

    W[n] ~ scale[n] * q[n]          with 8-bit integers q and a scale for each row, or bfloat16

A matrix is stored in panels of 16 rows, as compiled kernels read it: see `pack`. Activations are
quantized too: to bfloat16, or to 8 bits in groups of 64 elements that share a scale. The functions
here and the compiled kernels have the same results, up to the order of rounding.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from regard import ops
from regard.errors import RegardError
from regard.ops import operation

PANEL = 16  # rows of a matrix that are stored together
GROUP = 64  # elements of an activation that share a scale
SMALLEST = 1e-30  # a group with a smaller absolute maximum becomes zeros
OFFSET = 128  # 8-bit weights are stored without sign
SLICE = 1 << 22  # weights that `quantized_linear` holds as float32 at once: 16 MB


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
    panels = max(1, SLICE // (PANEL * max(1, columns)))
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
