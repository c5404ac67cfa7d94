"""A layer of LSTM over whole sequences by the compiled kernels, forward and backward."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.kernels import build
from regard.kernels.arguments import address, checked_shape, contiguous
from regard.kernels.signatures import LstmLayerStruct

HALVES = ("inputs", "d_gates")  # in bfloat16; all others are float32


def available() -> bool:
    """Whether there are kernels for this processor."""
    library = build.kernels()
    return library is not None and bool(library.regard_lstm_available())


@dataclass(frozen=True)
class LSTMOutput:
    """What a layer leaves: `hiddens` (B, T, D), `cells` (B, T, D), squashed `gates` (B, T, 4D).

    Where no gradient is needed there are no gates, and `cells` are the last, (B, 1, D).
    """

    hiddens: Tensor
    cells: Tensor
    gates: Tensor | None


def forward(
    weight: Tensor, inputs: Tensor, bias: Tensor, hidden: Tensor, cell: Tensor, *, keep: bool
) -> LSTMOutput:
    """All hidden states and cells, in float32.

    Args:
        weight: U, (4D, D).
        inputs: W x, (B, T, 4D), in bfloat16.
        bias: (4D).
        hidden, cell: before the first step, (B, D).
        keep: for `backward`.
    """
    rows, steps, width = _shapes(inputs, keep)["hiddens"]
    hiddens = hidden.new_empty(rows, steps, width)
    cells = hidden.new_empty(rows, steps if keep else 1, width)
    gates = hidden.new_empty(inputs.shape) if keep else None
    output = LSTMOutput(hiddens, cells, gates)
    arguments = dict(weight=weight, inputs=inputs, bias=bias, hidden=hidden, cell=cell)
    _call("regard_lstm_forward", inputs, keep, **arguments, **vars(output))
    return output


def backward(
    weight: Tensor,
    output: LSTMOutput,
    cell: Tensor,
    grads: tuple[Tensor, Tensor, Tensor],
    *,
    first: bool,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Gradients by the gates before they were squashed, (B, T, 4D) in bfloat16, by the bias, by the
    first hidden state (if `first`) and by the first cell.

    Args:
        cell: before the first step.
        grads: by all hidden states (B, T, D), by the last one beside that, by the last cell.
    """
    d_hiddens, d_end, d_cell = grads
    checked_shape("cells", output.cells, 3)
    d_gates = cell.new_empty(*output.cells.shape[:2], 4 * cell.size(1), dtype=torch.bfloat16)
    d_bias = cell.new_zeros(4 * cell.size(1))
    d_cell = d_cell.clone(memory_format=torch.contiguous_format)  # it is written to
    d_hidden = cell.new_empty(cell.shape) if first else None
    arguments = dict(weight=weight, cell=cell, cells=output.cells, gates=output.gates)
    gradients = dict(d_gates=d_gates, d_bias=d_bias, d_cell=d_cell, d_hidden=d_hidden)
    arguments |= dict(d_hiddens=d_hiddens, d_end=d_end)
    _call("regard_lstm_backward", d_gates, True, **arguments, **gradients)
    return d_gates, d_bias, d_hidden, d_cell


def _call(name: str, like: Tensor, keep: bool, /, **tensors: Tensor | None) -> None:
    """`like` is (B, T, 4D); there are gates if `keep`."""
    library = build.kernels()
    if library is None or not library.regard_lstm_available():
        raise RegardError("There are no compiled kernels for LSTMs on this processor.")
    absent = {"d_hidden"} if keep else {"gates"}  # these may be
    prepared = {
        key: x if x is None else contiguous(x)
        for key, x in tensors.items()
        if x is not None or key not in absent
    }
    shapes = _shapes(like, keep)
    addresses = {
        key: address(key, x, torch.bfloat16 if key in HALVES else torch.float32, shapes[key])
        for key, x in prepared.items()
    }
    rows, steps, gate_rows = like.shape
    arguments = LstmLayerStruct(rows, steps, gate_rows // 4, **addresses)
    getattr(library, name)(ctypes.byref(arguments), torch.get_num_threads())


def _shapes(like: Tensor, keep: bool) -> dict[str, tuple[int, ...]]:
    """Of each tensor that lstm.h names, where one is (B, T, 4D)."""
    if like.dim() != 3 or like.size(2) % 4 or not like.size(1):
        raise RegardError(f"`inputs` must be (B, T, 4D), T > 0, but is {tuple(like.shape)}.")
    rows, steps, gate_rows = like.shape
    width = gate_rows // 4
    states, state, gates = (rows, steps, width), (rows, width), (rows, steps, gate_rows)
    return {
        "weight": (gate_rows, width),
        "inputs": gates,
        "bias": (gate_rows,),
        "hidden": state,
        "cell": state,
        "gates": gates,
        "cells": states if keep else (rows, 1, width),
        "hiddens": states,
        "d_hiddens": states,
        "d_end": state,
        "d_cell": state,
        "d_hidden": state,
        "d_gates": gates,
        "d_bias": (gate_rows,),
    }
