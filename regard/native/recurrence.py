"""A recurrent layer with a narrow matrix, over the tokens of each row."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from regard.native import build
from regard.native.products import WEIGHTS, pointer, product, threads_for

Cell = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def sweep(
    gates: Tensor,
    packed: Tensor,
    scale: Tensor | None,
    bias: Tensor | None,
    hidden: Tensor,
    cell: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Every hidden state (B, T, D), and hidden state and cell after the last token.

    gates: (B, T, G * D) what the tokens say: one gate of an RNN, 3 of a GRU, 4 of an LSTM, as in
    `regard.layers.recurrent`.  packed, scale, bias: the matrix (G * D, D) of the hidden state.
    hidden, cell: before the first token, (B, D), and (B, D) or (B, 0).
    """
    (rows, tokens, lines), width = gates.shape, hidden.size(1)
    kind, step = CELLS[lines // width]
    numbers = (gates, hidden, cell, *(() if bias is None else (bias,)))
    plain = all(x.dtype == torch.float32 and x.device.type == "cpu" for x in numbers)
    plain = plain and gates.numel() > 0 and not gates.requires_grad
    library = build.kernels() if plain else None
    if library is None:
        states = []
        for column in gates.unbind(1):
            again = product(hidden, packed, scale, bias, (lines, width))
            hidden, cell = step(column, again, hidden, cell)
            states.append(hidden)
        return torch.stack(states, 1) if states else hidden[:, None][:, :0], hidden, cell
    gates = gates.contiguous()
    hidden, cell = (state.clone(memory_format=torch.contiguous_format) for state in (hidden, cell))
    out = gates.new_empty(rows, tokens, width)
    library.regard_recur(
        *(kind, WEIGHTS[packed.dtype], lines, width, pointer(packed), pointer(scale)),
        *(pointer(bias), pointer(gates), rows, tokens, pointer(hidden)),
        *(pointer(cell) if cell.numel() else None, pointer(out)),
        threads_for(rows * packed.numel()),
    )
    return out, hidden, cell


def _plain(gates: Tensor, again: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    return torch.tanh(gates + again), cell


def _gated(gates: Tensor, again: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    (reset, update, new), (u, v, w) = gates.chunk(3, 1), again.chunk(3, 1)
    fresh = torch.tanh(new + torch.sigmoid(reset + u) * w)
    return torch.lerp(fresh, hidden, torch.sigmoid(update + v)), cell


def _long_short(
    gates: Tensor, again: Tensor, hidden: Tensor, cell: Tensor
) -> tuple[Tensor, Tensor]:
    enter, keep, new, leave = (gates + again).chunk(4, 1)
    cell = torch.sigmoid(keep) * cell + torch.sigmoid(enter) * torch.tanh(new)
    return torch.sigmoid(leave) * torch.tanh(cell), cell


# How many gates: the number that recurrent.h gives the cell, and the same by torch.
CELLS: dict[int, tuple[int, Cell]] = {1: (0, _plain), 3: (1, _gated), 4: (2, _long_short)}
