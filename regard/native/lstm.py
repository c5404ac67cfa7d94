"""A layer of LSTM over whole sequences by the compiled kernels, forward and backward."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.native import build
from regard.native.products import pointer

TENSORS = (
    *("weight", "inputs", "bias", "hidden", "cell", "gates", "cells", "hiddens"),
    *("d_hiddens", "d_end", "d_cell", "d_hidden", "d_gates", "d_bias"),
)


class _Arguments(ctypes.Structure):
    """`Layer` in lstm.h, which says what each tensor is."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("rows", "steps", "width")),
        *((name, ctypes.c_void_p) for name in TENSORS),
    ]


def available() -> bool:
    """Whether there are kernels for this processor."""
    library = build.kernels()
    return library is not None and bool(library.regard_lstm_there())


@dataclass(frozen=True)
class Swept:
    """What a layer leaves: `hiddens` (B, T, D), `cells` (B, T, D), squashed `gates` (B, T, 4D).

    Where no gradient will be asked for there are no gates, and `cells` are the last, (B, 1, D).
    """

    hiddens: Tensor
    cells: Tensor
    gates: Tensor | None


def forward(
    weight: Tensor, inputs: Tensor, bias: Tensor, hidden: Tensor, cell: Tensor, *, keep: bool
) -> Swept:
    """All hidden states and cells, in float32.

    Args:
        weight: U, (4D, D).
        inputs: W x, (B, T, 4D), in bfloat16.
        bias: (4D).
        hidden, cell: before the first step, (B, D).
        keep: for `backward`.
    """
    rows, steps, width = *inputs.shape[:2], hidden.size(1)
    hiddens = hidden.new_empty(rows, steps, width)
    cells = hidden.new_empty(rows, steps if keep else 1, width)
    gates = hidden.new_empty(inputs.shape) if keep else None
    found = Swept(hiddens, cells, gates)
    given = dict(weight=weight, inputs=inputs, bias=bias, hidden=hidden, cell=cell)
    _call("regard_lstm_forward", inputs, **given, **vars(found))
    return found


def backward(
    weight: Tensor,
    swept: Swept,
    cell: Tensor,
    slopes: tuple[Tensor, Tensor, Tensor],
    *,
    first: bool,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Gradients by the gates before they were squashed, (B, T, 4D) in bfloat16, by the bias, by the
    first hidden state (if `first`) and by the first cell.

    Args:
        cell: before the first step.
        slopes: by all hidden states (B, T, D), by the last one beside that, by the last cell.
    """
    d_hiddens, d_end, d_cell = slopes
    d_gates = cell.new_empty(*swept.cells.shape[:2], 4 * cell.size(1), dtype=torch.bfloat16)
    d_bias, d_cell = cell.new_zeros(4 * cell.size(1)), d_cell.clone()
    d_hidden = torch.empty_like(cell) if first else None
    given = dict(weight=weight, cell=cell, cells=swept.cells, gates=swept.gates)
    sought = dict(d_gates=d_gates, d_bias=d_bias, d_cell=d_cell, d_hidden=d_hidden)
    _call("regard_lstm_backward", d_gates, **given, **sought, d_hiddens=d_hiddens, d_end=d_end)
    return d_gates, d_bias, d_hidden, d_cell


def _call(name: str, like: Tensor, /, **tensors: Tensor | None) -> None:
    """`like` is (B, T, 4D)."""
    laid = {key: None if x is None else x.contiguous() for key, x in tensors.items()}
    rows, steps, width = like.shape
    addresses = {key: pointer(x) for key, x in laid.items()}
    arguments = _Arguments(rows, steps, width // 4, **addresses)
    library: Any = build.kernels()
    getattr(library, name)(ctypes.byref(arguments), ctypes.c_int64(torch.get_num_threads()))
