"""Recurrent layers: what a cell computes, how it is swept over a sequence, how layers are stacked.

    RNN   h = tanh(W x + U h + b)                                     (Elman 1990)
    GRU   h = (1 - z) * n + z * h,  n = tanh(W x + r * (U h + c))     (Cho et al. 2014)
    LSTM  c = f * c + i * g,  h = o * tanh(c)                         (Gers et al. 2000)

All that does not depend on the state is one product over the whole sequence; only U h is computed
step by step. Gates lie side by side in torch's order, so that published weights need no shuffling.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from regard.layers.dropout import Dropout
from regard.layers.linear import Repeated
from regard.state import Cells


class RecurrentLayer(nn.Module):
    """One layer. Subclasses say how many gates there are and what a step does with them."""

    gates = 1
    has_cell = False
    recurrent_bias = False

    def __init__(self, d_in: int, d_model: int):
        super().__init__()
        self.d_model = d_model
        self.input = nn.Linear(d_in, self.gates * d_model)
        self.recurrent = nn.Linear(d_model, self.gates * d_model, bias=self.recurrent_bias)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(d_model**-0.5), d_model**-0.5)

    def advance(
        self, projected: Tensor, recurrent: Tensor, hidden: Tensor, cell: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The next hidden state and cell, (B, D), from W x + b and U h, both (B, G * D)."""
        raise NotImplementedError

    def forward(self, x: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        """Every hidden state and every cell (none where the kind has none): 2 times (B, T, D).

        Args:
            x: (B, T, d_in).
            hidden, cell: the state before the first step, (B, D) and (B, D) or (B, 0).
        """
        projected = self.input(x.transpose(0, 1).contiguous()).to(hidden.dtype)  # (T, B, G * D)
        recurrent = Repeated(self.recurrent.weight)
        hiddens, cells = [], []
        for step in projected.unbind():
            hidden, cell = self.advance(step, recurrent(hidden), hidden, cell)
            hiddens.append(hidden)
            cells.append(cell)
        if not hiddens:
            return hidden[:, None][:, :0], cell[:, None][:, :0]
        return torch.stack(hiddens, 1), torch.stack(cells, 1)

    def empty(self, rows: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """The state before anything was read: zeros."""
        width = self.d_model if self.has_cell else 0
        return like.new_zeros(rows, self.d_model), like.new_zeros(rows, width)


class RNN(RecurrentLayer):
    """h = tanh(W x + U h + b)"""

    def advance(
        self, projected: Tensor, recurrent: Tensor, hidden: Tensor, cell: Tensor
    ) -> tuple[Tensor, Tensor]:
        return torch.tanh(projected + recurrent), cell


class GRU(RecurrentLayer):
    """Reset and update gates r, z; the reset comes after the product, as in cuDNN."""

    gates = 3
    recurrent_bias = True

    def advance(
        self, projected: Tensor, recurrent: Tensor, hidden: Tensor, cell: Tensor
    ) -> tuple[Tensor, Tensor]:
        width = self.d_model
        recurrent = recurrent + self.recurrent.bias
        both = torch.sigmoid(projected[:, : 2 * width] + recurrent[:, : 2 * width])
        reset, update = both.chunk(2, 1)
        new = torch.tanh(projected[:, 2 * width :] + reset * recurrent[:, 2 * width :])
        return torch.lerp(new, hidden, update), cell


class LSTM(RecurrentLayer):
    """Input, forget and output gates i, f, o and the candidate g, in the order i f g o."""

    gates = 4
    has_cell = True

    def advance(
        self, projected: Tensor, recurrent: Tensor, hidden: Tensor, cell: Tensor
    ) -> tuple[Tensor, Tensor]:
        return _LSTMGates.apply(projected, recurrent, cell)


class _LSTMGates(torch.autograd.Function):
    """The element-wise part of a step as one node of the graph: torch's own would be eleven."""

    @staticmethod
    def forward(
        ctx: Any, projected: Tensor, recurrent: Tensor, cell: Tensor
    ) -> tuple[Tensor, Tensor]:
        gates = projected + recurrent
        width = cell.size(1)
        gates[:, : 2 * width].sigmoid_()
        gates[:, 2 * width : 3 * width].tanh_()
        gates[:, 3 * width :].sigmoid_()
        enter, keep, new, leave = gates.chunk(4, 1)
        after = torch.mul(keep, cell).addcmul_(enter, new)
        squashed = after.tanh()
        ctx.save_for_backward(gates, cell, squashed)
        return leave * squashed, after

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        d_hidden, d_cell = grads
        gates, cell, squashed = ctx.saved_tensors
        enter, keep, new, leave = gates.chunk(4, 1)
        d_cell = d_cell.addcmul(d_hidden * leave, 1 - squashed * squashed)
        slopes = gates - gates * gates  # sigmoid' = s (1 - s), in place of tanh' for `new`
        d_enter, d_keep, d_new, d_leave = slopes.chunk(4, 1)
        d_enter.mul_(new).mul_(d_cell)
        d_keep.mul_(cell).mul_(d_cell)
        torch.mul(enter, 1 - new * new, out=d_new).mul_(d_cell)
        d_leave.mul_(squashed).mul_(d_hidden)
        return slopes, slopes, d_cell.mul_(keep)


CELLS: dict[str, type[RecurrentLayer]] = {"rnn": RNN, "gru": GRU, "lstm": LSTM}


def cell_class(name: str) -> type[RecurrentLayer]:
    """The layer of this name."""
    if name not in CELLS:
        raise ValueError(f"`cell` must be one of {', '.join(CELLS)}, but is {name!r}.")
    return CELLS[name]


class Stack(nn.Module):
    """Layers on each other, with dropout between them and never between steps.

    (Zaremba et al. 2014, section 3.1: noise on the recurrent connections would be amplified at
    every step.)
    """

    def __init__(
        self,
        kind: type[RecurrentLayer],
        d_in: int,
        d_model: int,
        layers: int,
        *,
        dropout: float = 0.0,
    ):
        super().__init__()
        stack = [kind(d_in if n == 0 else d_model, d_model) for n in range(layers)]
        self.layers = cast("Sequence[RecurrentLayer]", nn.ModuleList(stack))
        self.dropout = Dropout(dropout)

    def forward(
        self, x: Tensor, state: Cells | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, Cells]:
        """The top layer's hidden states (B, T, D), and the state after the last step.

        Args:
            x: (B, T, d_in).
            state: where to go on from; None: from zeros.
            lengths: (B,), the state of row b is that after its first `lengths[b]` steps.
        """
        state = self.empty(x.size(0), x) if state is None else state
        after = []
        for n, layer in enumerate(self.layers):
            before = state.hidden[:, n], state.cell[:, n]
            x = self.dropout(x) if n else x
            x, cells = layer(x, *before)
            after.append((last(x, before[0], lengths), last(cells, before[1], lengths)))
        return x, stack_cells(after)

    def empty(self, rows: int, like: Tensor) -> Cells:
        """Before anything was read: zeros, on the device of `like`."""
        return stack_cells([layer.empty(rows, like) for layer in self.layers])


class BidirectionalStack(nn.Module):
    """Each level reads both ways (Schuster & Paliwal 1997); d_model is that of both together."""

    def __init__(
        self,
        kind: type[RecurrentLayer],
        d_in: int,
        d_model: int,
        layers: int,
        *,
        dropout: float = 0.0,
    ):
        super().__init__()
        if d_model % 2:
            raise ValueError(f"`d_model` must be even, half a direction, but is {d_model}.")
        widths = [d_in] + [d_model] * (layers - 1)
        ahead = [kind(width, d_model // 2) for width in widths]
        back = [kind(width, d_model // 2) for width in widths]
        self.ahead = cast("Sequence[RecurrentLayer]", nn.ModuleList(ahead))
        self.back = cast("Sequence[RecurrentLayer]", nn.ModuleList(back))
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Cells]:
        """Hidden states (B, T, D) and what each direction ended with, (B, L, D).

        The way back starts at each row's own last position, so that padding changes nothing; what
        stands at the padding means nothing.
        """
        order, after = turn(lengths, x.size(1)), []
        for n, (ahead, back) in enumerate(zip(self.ahead, self.back, strict=True)):
            x = self.dropout(x) if n else x
            forth, forth_end = run(ahead, x, lengths)
            reverse, reverse_end = run(back, reorder(x, order), lengths)
            x = torch.cat([forth, reorder(reverse, order)], -1)
            after.append([torch.cat(pair, -1) for pair in zip(forth_end, reverse_end, strict=True)])
        return x, stack_cells(after)


def run(layer: RecurrentLayer, x: Tensor, lengths: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """One layer from zeros: its hidden states (B, T, D), and each row's own last state."""
    hidden, cell = layer.empty(x.size(0), x)
    hiddens, cells = layer(x, hidden, cell)
    return hiddens, (last(hiddens, hidden, lengths), last(cells, cell, lengths))


def last(steps: Tensor, before: Tensor, lengths: Tensor | None) -> Tensor:
    """(B, T, D) -> (B, D): what each row ended with; `before` where it has no step."""
    if steps.size(1) == 0:
        return before
    if lengths is None:
        return steps[:, -1]
    row = torch.arange(lengths.size(0), device=lengths.device)
    found = steps[row, (lengths - 1).clamp(min=0)]
    return torch.where(lengths[:, None] > 0, found, before)


def turn(lengths: Tensor, count: int) -> Tensor:
    """(B, T) positions that turn each row's own words around and leave its padding in place."""
    at = torch.arange(count, device=lengths.device)[None]
    return torch.where(at < lengths[:, None], lengths[:, None] - 1 - at, at)


def reorder(x: Tensor, order: Tensor) -> Tensor:
    """(B, T, D) in another order of the positions, (B, T)."""
    return x.gather(1, order[..., None].expand_as(x))


def stack_cells(layers: Sequence[Sequence[Tensor]]) -> Cells:
    """The (hidden, cell) of each layer as one state, rows first: (B, L, D)."""
    return Cells(*(torch.stack(list(part), 1) for part in zip(*layers, strict=True)))
