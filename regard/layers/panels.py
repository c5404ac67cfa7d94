"""Quantized matrices, and what is computed with them, in plain PyTorch.

    W[n] ~ scale[n] * q[n]          with 8-bit integers q and a scale for each row, or bfloat16

A matrix lies in panels of 16 rows, as compiled kernels read it: see `pack`. What it is multiplied
with is quantized too: to bfloat16, or to 8 bits in groups of 64 numbers that share a scale.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from regard import ops
from regard.errors import RegardError
from regard.ops import operation

PANEL = 16  # rows of a matrix that lie together
GROUP = 64  # numbers of an input that share a scale
SMALLEST = 1e-30  # a group whose numbers are all smaller becomes zeros
OFFSET = 128  # 8-bit weights are stored without sign


class Panels(NamedTuple):
    """A matrix (N, K) in panels; `scale` (N,) where it is 8-bit, None where it is bfloat16."""

    packed: Tensor
    scale: Tensor | None
    shape: tuple[int, int]


def pack(weight: Tensor) -> Tensor:
    """A matrix of int8 or bfloat16 in panels: (N, K) -> (N / 16, K / side, 16, side)."""
    side = 4 if weight.dtype == torch.int8 else 2
    full = F.pad(weight, (0, -weight.size(1) % GROUP, 0, -weight.size(0) % PANEL)).contiguous()
    if full.storage_offset() % side:  # as it lies in a file
        full = full.clone()
    words = full.view(torch.int32).unflatten(0, (-1, PANEL))  # `side` numbers that stay together
    # (P, 16, K / side) -> (P, K / side, 16, side)
    packed = words.transpose(1, 2).contiguous()[..., None].view(weight.dtype)
    return packed.view(torch.uint8).bitwise_xor_(OFFSET) if side == 4 else packed


def unpack(packed: Tensor, lines: int, columns: int) -> Tensor:
    """The inverse of `pack`, as float32."""
    plain = packed.transpose(1, 2).flatten(2).flatten(0, 1)[:lines, :columns]
    return _signed(plain)


def rows_of(packed: Tensor, ids: Tensor, columns: int) -> Tensor:
    """Some lines of a packed matrix, as float32: (...,) -> (..., K)"""
    lines = packed[ids // PANEL, :, ids % PANEL]  # (..., K / side, side)
    return _signed(lines.flatten(-2)[..., :columns])


def _signed(numbers: Tensor) -> Tensor:
    return numbers.float() - OFFSET if numbers.dtype == torch.uint8 else numbers.float()


@operation
def quantized_linear(x: Tensor, matrix: Panels, bias: Tensor | None = None) -> Tensor:
    """q(x) W^T + b: (..., K) -> (..., N), q quantizing x as the matrix is; see `round_to_8_bits`.

    Raises:
        RegardError: x is on another device than the matrix.
    """
    check_device("x", x, matrix.packed)
    weight = unpack(matrix.packed, *matrix.shape).to(x.dtype)
    if matrix.scale is None:
        return F.linear(x.to(torch.bfloat16).to(x.dtype), weight, bias)
    near = round_to_8_bits(x)
    if x.requires_grad:  # rounding has a gradient of zero, but what is rounded has that of x
        near = x + (near - x).detach()
    found = F.linear(near, weight) * matrix.scale.to(x.dtype)
    return found if bias is None else found + bias


def round_to_8_bits(x: Tensor) -> Tensor:
    """x with 8 bits a number, in groups of 64 that share a scale: the group's maximum / 127."""
    groups = F.pad(x, (0, -x.size(-1) % GROUP)).unflatten(-1, (-1, GROUP))
    most = groups.abs().amax(-1, keepdim=True)
    inverse = torch.where(most < SMALLEST, 0.0, 127.0 / most)
    numbers = (groups * inverse).round() * (most / 127.0)  # NaN and infinity give NaN
    return numbers.flatten(-2)[..., : x.size(-1)]


@operation
def quantized_rows(ids: Tensor, matrix: Panels) -> Tensor:
    """Rows of a matrix as float32, an embedding lookup: (...,) -> (..., K).

    Raises:
        IndexError: there is no such row.
        RegardError: ids are no integers, or on another device than the matrix.
    """
    if ids.dtype not in (torch.int64, torch.int32):
        raise RegardError(f"`ids` must be int64 or int32, but is {ids.dtype}.")
    check_device("ids", ids, matrix.packed)
    check_range("ids", ids, matrix.shape[0])
    found = rows_of(matrix.packed, ids, matrix.shape[1])
    return found if matrix.scale is None else found * matrix.scale[ids, None]


@operation
def quantized_recurrence(
    below: Tensor, matrix: Panels, bias: Tensor | None, hidden: Tensor, cell: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """`ops.rnn`, `ops.gru` or `ops.lstm` with a quantized recurrent matrix.

    Args:
        below: W x + b of all steps, (B, T, G D); one gate of an RNN, 3 of a GRU, 4 of an LSTM.
        matrix, bias: U, (G D, D), and its bias.
        hidden, cell: before the first step, (B, D), and (B, D) or (B, 0).

    Returns:
        Every hidden state (B, T, D), the last one and the last cell.
    """
    check_recurrence(below, hidden, cell)
    states = []
    for column in below.unbind(1):
        recurrent = quantized_linear(hidden, matrix, bias)
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
    """Raises RegardError: the sizes do not belong together."""
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
    """Raises RegardError: x is elsewhere than a matrix, which torch does not always notice."""
    if x.device != packed.device:
        raise RegardError(f"`{name}` is on {x.device}, but the matrix is on {packed.device}.")


def check_range(name: str, numbers: Tensor, end: int) -> None:
    """Raises IndexError: some numbers on the CPU are not from 0 to before `end`."""
    if not numbers.is_cpu or not numbers.numel():
        return
    least, most = map(int, numbers.aminmax())
    if least < 0 or most >= end:
        raise IndexError(f"`{name}` must be from 0 to {end - 1}, but are from {least} to {most}.")
