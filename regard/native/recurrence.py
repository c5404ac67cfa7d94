"""A recurrent layer with a narrow matrix, over the tokens of each row."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.native import build
from regard.native.arguments import address, contiguous, is_cpu_strided, optional_address
from regard.native.products import packed_matrix, product, threads_for

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
    (rows, tokens, lines), width, kind, step = _sizes(gates, hidden, cell)
    numbers = (gates, hidden, cell, *(() if bias is None else (bias,)))
    plain = all(map(is_cpu_strided, numbers)) and packed.is_cpu
    plain = plain and gates.numel() > 0 and not gates.requires_grad
    library = build.kernels() if plain else None
    if library is None:
        states = []
        for column in gates.unbind(1):
            again = product(hidden, packed, scale, bias, (lines, width))
            hidden, cell = step(column, again, hidden, cell)
            states.append(hidden)
        return torch.stack(states, 1) if states else hidden[:, None][:, :0], hidden, cell
    gates = contiguous(gates)
    hidden, cell = (
        state.resolve_neg().clone(memory_format=torch.contiguous_format) for state in (hidden, cell)
    )
    out, real = gates.new_empty(rows, tokens, width), torch.float32
    library.regard_recur(
        *(kind, *packed_matrix(packed, scale, (lines, width))),
        optional_address("bias", bias, real, (lines,)),
        *(address("gates", gates, real, (rows, tokens, lines)), rows, tokens),
        address("hidden", hidden, real, (rows, width)),
        address("cell", cell, real, (rows, width)) if cell.numel() else None,
        address("out", out, real, (rows, tokens, width)),
        threads_for(rows * packed.numel()),
    )
    return out, hidden, cell


def _sizes(
    gates: Tensor, hidden: Tensor, cell: Tensor
) -> tuple[tuple[int, int, int], int, int, Cell]:
    """Rows, tokens and lines, the width of a state, and the kind of cell.

    Raises:
        RegardError: they do not belong together.
    """
    sizes = tuple(map(tuple, (gates.shape, hidden.shape, cell.shape)))
    match sizes:
        case (rows, tokens, lines), (again, width), (same, inner) if rows == again == same:
            kind = CELLS.get(lines // width) if width and not lines % width else None
            if kind is not None and inner in ((width,) if kind[0] == 2 else (0, width)):
                return (rows, tokens, lines), width, *kind
    raise RegardError(
        "`gates` must be (B, T, G * D) with G of 1, 3 or 4, `hidden` (B, D) and `cell` (B, D), or "
        "(B, 0) where G is not 4, but they are {}, {} and {}.".format(*sizes)
    )


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
