"""Recurrent layers: what a cell computes, how it is swept over a sequence, how layers are stacked.

    RNN   h = tanh(W x + U h + b)                                     (Elman 1990)
    GRU   h = (1 - z) * n + z * h,  n = tanh(W x + r * (U h + c))     (Cho et al. 2014)
    LSTM  c = f * c + i * g,  h = o * tanh(c)                         (Gers et al. 2000)

A sequence is swept by torch's own kernels (oneDNN's on a CPU, cuDNN's on a GPU): in float32 no loop
in Python outruns them. An LSTM in bfloat16 has compiled ones, on a CPU that multiplies bfloat16.
Gates lie side by side in torch's order, so that published weights fit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from regard.layers.dropout import Dropout
from regard.layers.linear import compute_type, linear, narrowed, product
from regard.native import lstm as compiled
from regard.native import training as native
from regard.state import Cells

Swept = tuple[Tensor, tuple[Tensor, Tensor]]  # every hidden state, then the last (hidden, cell)


class RecurrentLayer(nn.Module, ABC):
    """One layer. A kind of cell is a subclass: how many gates, and how a sequence is swept."""

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

    def forward(self, x: Tensor, hidden: Tensor, cell: Tensor) -> Swept:
        """Every hidden state (B, T, D), and the state after the last step.

        Args:
            x: (B, T, d_in).
            hidden, cell: the state before the first step, (B, D) and (B, D) or (B, 0).
        """
        if x.size(1) == 0:
            return hidden[:, None][:, :0], (hidden, cell)
        bias = self.recurrent.bias
        bias = torch.zeros_like(self.input.bias) if bias is None else bias
        weights = [self.input.weight, self.recurrent.weight, self.input.bias, bias]
        hiddens, (hidden, cell) = self.sweep(x, hidden[None], cell[None], weights)
        # Under autocast the sweep gives 16 bits; what travels on keeps the width of the input.
        return hiddens.to(x.dtype), (hidden[0].to(x.dtype), cell[0].to(x.dtype))

    @abstractmethod
    def sweep(self, x: Tensor, hidden: Tensor, cell: Tensor, weights: list[Tensor]) -> Swept:
        """Torch's own kernel of one layer; its states have a first dimension for the layer."""

    def empty(self, rows: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """The state before anything was read: zeros."""
        width = self.d_model if self.has_cell else 0
        return like.new_zeros(rows, self.d_model), like.new_zeros(rows, width)


# Of torch's kernels: has biases, 1 layer, no dropout, not as in training, one way, rows first. "In
# training" says whether gradients can be needed.
def _options(x: Tensor) -> tuple[bool, int, float, bool, bool, bool]:
    return True, 1, 0.0, torch.is_grad_enabled(), False, True


class RNN(RecurrentLayer):
    """h = tanh(W x + U h + b)"""

    def sweep(self, x: Tensor, hidden: Tensor, cell: Tensor, weights: list[Tensor]) -> Swept:
        hiddens, hidden = torch.rnn_tanh(x, hidden, weights, *_options(x))
        return hiddens, (hidden, cell)


class GRU(RecurrentLayer):
    """Reset and update gates r, z and the candidate n, in the order r z n.

    The reset comes after the product, as in cuDNN; so the product needs its own bias.
    """

    gates = 3
    recurrent_bias = True

    def sweep(self, x: Tensor, hidden: Tensor, cell: Tensor, weights: list[Tensor]) -> Swept:
        hiddens, hidden = torch.gru(x, hidden, weights, *_options(x))
        return hiddens, (hidden, cell)


class LSTM(RecurrentLayer):
    """Input, forget and output gates i, f, o and the candidate g, in the order i f g o."""

    gates = 4
    has_cell = True

    def sweep(self, x: Tensor, hidden: Tensor, cell: Tensor, weights: list[Tensor]) -> Swept:
        if x.size(1) == 1 and x.device.type == "cpu":
            return self._one(x, hidden[0], cell[0])
        if _fits(x, hidden, cell, *weights) and compiled.available():
            hiddens, hidden, cell = _LSTMSweep.apply(
                x, hidden[0], cell[0], *weights[:3], torch.is_grad_enabled()
            )
            return hiddens, (hidden[None], cell[None])
        narrow = not _is_narrowed(x) or _sweeps_bfloat16()
        if not narrow:
            x, hidden, cell = x.float(), hidden.float(), cell.float()
        with nullcontext() if narrow else torch.autocast("cpu", enabled=False):
            hiddens, hidden, cell = torch.lstm(x, (hidden, cell), weights, *_options(x))
        return hiddens, (hidden, cell)

    def _one(self, x: Tensor, hidden: Tensor, cell: Tensor) -> Swept:
        # oneDNN's kernel first rearranges the weights: 650 wide that takes 7 ms, this one 0.2 ms.
        gates = linear(x[:, 0], self.input.weight, self.input.bias).to(cell.dtype)
        more = linear(hidden, self.recurrent.weight).to(cell.dtype)
        hidden, cell = self.step(gates, more, cell)
        return hidden[:, None], (hidden[None], cell[None])

    @staticmethod
    def step(gates: Tensor, more: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        """The next hidden state and cell, (B, D), where W x + b + U h = gates + more, (B, 4D).

        For loops whose next input depends on the last output.
        """
        return _LSTMStep.apply(gates, more, cell)


def _is_narrowed(x: Tensor) -> bool:
    """Whether autocast on a CPU asks for bfloat16."""
    on = x.device.type == "cpu" and torch.is_autocast_enabled("cpu")
    return on and torch.get_autocast_dtype("cpu") == torch.bfloat16


@cache
def _sweeps_bfloat16() -> bool:
    """Whether oneDNN has an LSTM in bfloat16 for this processor: not for all that lack AVX-512."""
    x, state = torch.zeros(1, 2, 1), torch.zeros(1, 1, 1)
    weights = [torch.zeros(4, 1), torch.zeros(4, 1), torch.zeros(4), torch.zeros(4)]
    try:
        with torch.autocast("cpu", torch.bfloat16):
            torch.lstm(x, (state, state), weights, *_options(x))
    except RuntimeError:
        return False
    return True


def _fits(*tensors: Tensor) -> bool:
    """Whether autocast asks for bfloat16 where everything is float32 on the CPU."""
    plain = all(x.dtype == torch.float32 and x.device.type == "cpu" for x in tensors)
    return plain and compute_type(tensors[0]) == torch.bfloat16


class LSTMStep(nn.Module):
    """`LSTM.step` as a part of a model."""

    def forward(self, gates: Tensor, more: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        """See `LSTM.step`."""
        return LSTM.step(gates, more, cell)


class _LSTMStep(torch.autograd.Function):
    """One node of the graph, where torch's own operations would make eleven."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, more: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        ctx.compiled = cell.dtype == torch.float32 and native.fit(cell, gates, more)
        if ctx.compiled:
            hidden, after, gates = native.lstm_step(gates, more, cell)
            ctx.save_for_backward(gates, cell, after)
            return hidden, after
        gates = gates + more
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
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        d_hidden, d_cell = grads
        gates, cell, squashed = ctx.saved_tensors
        if ctx.compiled:
            d_gates, d_before = native.lstm_step_back((d_hidden, d_cell), gates, cell, squashed)
            return d_gates, d_gates, d_before
        enter, keep, new, leave = gates.chunk(4, 1)
        d_cell = d_cell.addcmul(d_hidden * leave, 1 - squashed * squashed)
        slopes = gates - gates * gates  # sigmoid' = s (1 - s); below, tanh' = 1 - t^2
        d_enter, d_keep, d_new, d_leave = slopes.chunk(4, 1)
        d_enter.mul_(new).mul_(d_cell)
        d_keep.mul_(cell).mul_(d_cell)
        torch.mul(enter, 1 - new * new, out=d_new).mul_(d_cell)
        d_leave.mul_(squashed).mul_(d_hidden)
        return slopes, slopes, d_cell.mul_(keep)


class _LSTMSweep(torch.autograd.Function):
    """A whole sequence: one product for what comes from below, then the compiled chain of steps."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        hidden: Tensor,
        cell: Tensor,
        below: Tensor,
        own: Tensor,
        bias: Tensor,
        learning: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        x, below = x.to(torch.bfloat16), narrowed(below)
        swept = compiled.forward(own, product(x, below), bias, hidden, cell, keep=learning)
        if learning:
            ctx.save_for_backward(x, hidden, cell, below, own, *vars(swept).values())
        return swept.hiddens, swept.hiddens[:, -1].clone(), swept.cells[:, -1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, hidden, cell, below, own, *kept = ctx.saved_tensors
        needs_x, needs_hidden, _, needs_below, needs_own, *_ = ctx.needs_input_grad
        swept = compiled.Swept(*kept)
        d_hiddens, d_hidden, d_cell = grads
        d_gates, d_bias, d_first, d_cell = compiled.backward(
            own, swept, cell, (d_hiddens, d_hidden, d_cell), first=needs_hidden
        )
        lines = d_gates.flatten(0, 1).t()  # (4D, B * T)
        before = torch.cat([hidden[:, None], swept.hiddens[:, :-1]], 1).to(x.dtype)
        return (
            product(d_gates, below.t()).float() if needs_x else None,
            *(d_first, d_cell),
            product(lines, x.flatten(0, 1).t()).float() if needs_below else None,
            product(lines, before.flatten(0, 1).t()).float() if needs_own else None,
            *(d_bias, None),
        )


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

    def forward(self, x: Tensor, state: Cells | None = None) -> tuple[Tensor, Cells]:
        """The top layer's hidden states (B, T, D), and the state after the last step.

        Args:
            x: (B, T, d_in).
            state: where to go on from; None: from zeros.
        """
        state = self.empty(x.size(0), x) if state is None else state
        after = []
        for n, layer in enumerate(self.layers):
            x = self.dropout(x) if n else x
            x, end = layer(x, state.hidden[:, n], state.cell[:, n])
            after.append(end)
        return x, stack_cells(after)

    def read(self, x: Tensor, lengths: Tensor) -> Cells:
        """The state of each row after its own first `lengths[b]` steps, (B,), from zeros.

        The batch goes on together from each length to the next longer one.
        """
        state = kept = self.empty(x.size(0), x)
        done = 0
        for length in sorted(set(lengths.clamp(min=0).tolist())):
            _, state = self(x[:, done:length], state)
            ended, done = (lengths == length)[:, None, None], length
            kept = Cells(
                torch.where(ended, state.hidden, kept.hidden),
                torch.where(ended, state.cell, kept.cell),
            )
        return kept

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

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden states (B, T, D), and those with which each level's directions ended, (B, L, D).

        The way back starts at each row's own last position, so that padding changes nothing; what
        stands at the padding means nothing. A row without a position ends with zeros.
        """
        order, ends = turn(lengths, x.size(1)), []
        for n, (ahead, back) in enumerate(zip(self.ahead, self.back, strict=True)):
            x = self.dropout(x) if n else x
            forth, _ = ahead(x, *ahead.empty(x.size(0), x))
            turned, _ = back(reorder(x, order), *back.empty(x.size(0), x))
            ends.append(torch.cat([last(forth, lengths), last(turned, lengths)], -1))
            x = torch.cat([forth, reorder(turned, order)], -1)
        return x, torch.stack(ends, 1)


def last(hiddens: Tensor, lengths: Tensor) -> Tensor:
    """(B, T, D) -> (B, D): each row's last position; zeros where it has none."""
    if hiddens.size(1) == 0:
        return hiddens.new_zeros(hiddens.size(0), hiddens.size(2))
    row = torch.arange(lengths.size(0), device=lengths.device)
    found = hiddens[row, (lengths - 1).clamp(min=0)]
    return found.masked_fill(lengths[:, None] == 0, 0.0)


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
