"""Products, recurrences and likelihoods by compiled kernels, and layers of LSTM in training."""

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.kernels import build
from regard.kernels.signatures import LstmLayerStruct
from regard.kernels.tensors import (
    address,
    checked_shape,
    contiguous,
    is_cpu_strided,
    optional_address,
    raw_address,
)
from regard.layers.quantized import GROUP, PANEL, Panels, check_range, check_recurrence

WEIGHTS = {torch.uint8: 0, torch.bfloat16: 1}  # the numbers that products.h gives them
WORK_PER_THREAD = 100_000  # multiplications of one row from which a further thread pays
AT_ONCE = 12  # rows for which the matrix is read once


def threads_for(work: int, rows: int = 1) -> int:
    """The number of threads for `work` multiplications, which are those of `rows` rows."""
    return max(1, min(torch.get_num_threads(), work // min(rows, AT_ONCE) // WORK_PER_THREAD))


def quantized_linear(x: Tensor, matrix: Panels, bias: Tensor | None = None) -> Tensor:
    """See `quantized_linear`; that of a row is bit-identical alone and in any batch."""
    x = contiguous(x)
    out_features, in_features = matrix.shape
    size = x.shape[:-1]
    out = x.new_empty(*size, out_features)
    rows = x.numel() // in_features
    numbers = (
        *packed_matrix(*matrix),
        optional_address("bias", bias, torch.float32, (out_features,)),
    )
    if rows:
        build.library().regard_linear(
            *(*numbers, address("x", x, torch.float32, (*size, in_features)), rows),
            raw_address(out),
            threads_for(rows * matrix.packed.numel(), rows),
        )
    return out


def packed_matrix(
    packed: Tensor, scale: Tensor | None, shape: tuple[int, int]
) -> tuple[int, int, int, int, int | None]:
    """A matrix (N, K) in panels as kernels take it: type, N, K, addresses of numbers and scales.

    Raises:
        RegardError: `packed` and `scale` are not those of a matrix of this shape.
    """
    out_features, in_features = shape
    if packed.dtype not in WEIGHTS:
        raise RegardError(f"`packed` must be uint8 or bfloat16, but is {packed.dtype}.")
    side = 4 if packed.dtype is torch.uint8 else 2
    panels = -(-out_features // PANEL), -(-in_features // GROUP) * GROUP // side, PANEL, side
    data = address("packed", packed, packed.dtype, panels)
    if side == 4:
        return (
            0,
            out_features,
            in_features,
            data,
            address("scale", scale, torch.float32, (out_features,)),
        )
    if scale is not None:
        raise RegardError("`scale` must be None where the weights are bfloat16.")
    return 1, out_features, in_features, data, None


def fits(x: Tensor, matrix: Panels, bias: Tensor | None = None) -> bool:
    """Whether there are kernels for this product."""
    plain = is_cpu_strided(x) and matrix.packed.is_cpu and not x.requires_grad
    plain = plain and (bias is None or bias.dtype == torch.float32) and build.available()
    return plain and x.dim() > 0 and x.size(-1) == matrix.shape[1] and 0 not in matrix.shape


CELLS = {1: 0, 3: 1, 4: 2}  # the number that recurrent.h gives a cell with so many gates


def fits_recurrence(
    below: Tensor, matrix: Panels, bias: Tensor | None, hidden: Tensor, cell: Tensor
) -> bool:
    """Whether there are kernels for these."""
    numbers = (below, hidden, cell, *(() if bias is None else (bias,)))
    plain = all(map(is_cpu_strided, numbers)) and matrix.packed.is_cpu and build.available()
    return plain and below.numel() > 0 and not below.requires_grad


def quantized_recurrence(
    below: Tensor, matrix: Panels, bias: Tensor | None, hidden: Tensor, cell: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """All steps of a layer: hidden states, and the last hidden and cell states."""
    check_recurrence(below, hidden, cell)
    (rows, tokens, gates), width = below.shape, hidden.size(1)
    below = contiguous(below)
    hidden, cell = (
        state.resolve_neg().clone(memory_format=torch.contiguous_format) for state in (hidden, cell)
    )
    out, real = below.new_empty(rows, tokens, width), torch.float32
    matrix = matrix._replace(shape=(gates, width))
    build.library().regard_recur(
        *(CELLS[gates // width], *packed_matrix(*matrix)),
        optional_address("bias", bias, real, (gates,)),
        *(address("below", below, real, (rows, tokens, gates)), rows, tokens),
        address("hidden", hidden, real, (rows, width)),
        address("cell", cell, real, (rows, width)) if cell.numel() else None,
        raw_address(out),
        threads_for(rows * matrix.packed.numel()),
    )
    return out, hidden, cell


WORK_PER_LOGIT = 40  # multiplications that take as long as one term of the log-sum-exp


def negative_log_likelihood(logits: Tensor, targets: Tensor) -> Tensor:
    """See `ops.negative_log_likelihood`.

    Raises:
        IndexError: there is no such token.
        RegardError: there is not one target, int64, for each row.
    """
    rows, vocab_size = checked_shape("logits", logits)
    logits, targets = contiguous(logits), contiguous(targets)
    losses = torch.empty(rows, dtype=torch.float64)
    missing = build.library().regard_nll(
        *(address("logits", logits, torch.float32, (rows, vocab_size)), rows, vocab_size),
        address("targets", targets, torch.int64, (rows,)),
        raw_address(losses),
        threads_for(rows * vocab_size * WORK_PER_LOGIT),
    )
    if missing:
        check_range("targets", targets, vocab_size)
    return losses


def topk(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """See `ops.topk`."""
    rows, vocab_size = checked_shape("logits", logits)
    logits = contiguous(logits)
    tokens, log_probs = torch.empty(rows, count, dtype=torch.int64), torch.empty(rows, count)
    build.library().regard_topk(
        *(address("logits", logits, torch.float32, (rows, vocab_size)), rows, vocab_size, count),
        raw_address(tokens),
        raw_address(log_probs),
        threads_for(rows * vocab_size * WORK_PER_LOGIT),
    )
    return tokens, log_probs


# ------------------------------------------------------------- layers of LSTM in training (lstm.h)

HALVES = ("inputs", "d_gates")  # in bfloat16; all others are float32


def lstm_available() -> bool:
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


def lstm_forward(
    weight: Tensor, inputs: Tensor, bias: Tensor, hidden: Tensor, cell: Tensor, *, keep: bool
) -> LSTMOutput:
    """All hidden states and cells, in float32.

    Args:
        weight: U, (4D, D).
        inputs: W x, (B, T, 4D), in bfloat16.
        bias: (4D).
        hidden, cell: before the first step, (B, D).
        keep: for `lstm_backward`.
    """
    rows, steps, width = _lstm_shapes(inputs, keep)["hiddens"]
    hiddens = hidden.new_empty(rows, steps, width)
    cells = hidden.new_empty(rows, steps if keep else 1, width)
    gates = hidden.new_empty(inputs.shape) if keep else None
    output = LSTMOutput(hiddens, cells, gates)
    arguments = dict(weight=weight, inputs=inputs, bias=bias, hidden=hidden, cell=cell)
    _call_lstm("regard_lstm_forward", inputs, keep, **arguments, **vars(output))
    return output


def lstm_backward(
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
    _call_lstm("regard_lstm_backward", d_gates, True, **arguments, **gradients)
    return d_gates, d_bias, d_hidden, d_cell


def _call_lstm(name: str, like: Tensor, keep: bool, /, **tensors: Tensor | None) -> None:
    """`like` is (B, T, 4D); there are gates if `keep`."""
    absent = {"d_hidden"} if keep else {"gates"}  # these may be
    prepared = {
        key: x if x is None else contiguous(x)
        for key, x in tensors.items()
        if x is not None or key not in absent
    }
    shapes = _lstm_shapes(like, keep)
    addresses = {
        key: address(key, x, torch.bfloat16 if key in HALVES else torch.float32, shapes[key])
        for key, x in prepared.items()
    }
    rows, steps, gate_rows = like.shape
    arguments = LstmLayerStruct(rows, steps, gate_rows // 4, **addresses)
    getattr(build.library(), name)(ctypes.byref(arguments), torch.get_num_threads())


def _lstm_shapes(like: Tensor, keep: bool) -> dict[str, tuple[int, ...]]:
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
