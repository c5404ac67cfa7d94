"""Recurrent layers: one layer over a sequence, a step of it, and stacks of layers.

    RNN   h = tanh(W x + U h + b)                                     (Elman 1990)
    GRU   h = (1 - z) * n + z * h,  n = tanh(W x + r * (U h + c))     (Cho et al. 2014)
    LSTM  c = f * c + i * g,  h = o * tanh(c)                         (Gers et al. 2000)

These equations are in regard/ops/__init__.py: `ops.rnn_step`, `ops.gru_step` and `ops.lstm_step`
for a step, `ops.rnn`, `ops.gru` and `ops.lstm` for a sequence; that of `ResetFirstGRU` is here.
Torch's kernels compute sequences (oneDNN for an LSTM on a CPU, cuDNN on a GPU); in float32 they are
faster than a loop in Python. The gates are stacked in torch's order, so that published weights fit.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from itertools import repeat
from typing import TypeVar, cast

import torch
from torch import Tensor, nn

from regard import ops
from regard.layers.dropout import Dropout
from regard.ops import RecurrentWeights, autocasts_to_bfloat16
from regard.state import Cells, State

S = TypeVar("S", bound=State)
LSTMOutput = tuple[Tensor, tuple[Tensor, Tensor]]  # every hidden state, the last (hidden, cell)


class RecurrentLayer(nn.Module, ABC):
    """One recurrent layer; each kind of cell is a subclass.

    gates: G, the gates that are stacked in the matrices.
    has_cell: whether the state has a cell beside the hidden state.
    recurrent_bias: whether the recurrent product has a bias of its own.
    """

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

    def forward(self, x: Tensor, hidden: Tensor, cell: Tensor) -> LSTMOutput:
        """Every hidden state (B, T, D), and the state after the last step.

        Args:
            x: (B, T, d_in).
            hidden, cell: the state before the first step, (B, D) and (B, D) or (B, 0).
        """
        return self.forward_with(x, hidden, cell, self.weights())

    def weights(self) -> RecurrentWeights:
        """The weights of one pass."""
        return RecurrentWeights(
            self.input.weight, self.recurrent.weight, self.input.bias, self.recurrent.bias
        )

    def forward_with(
        self, x: Tensor, hidden: Tensor, cell: Tensor, weights: RecurrentWeights
    ) -> LSTMOutput:
        """`forward` with weights that several calls may share."""
        if x.size(1) == 0:
            return hidden[:, None][:, :0], (hidden, cell)
        outputs, hidden, cell = self.read(x, hidden, cell, weights)
        # Under autocast these may have 16 bits; the state keeps the dtype of the input.
        return outputs.to(x.dtype), (hidden.to(x.dtype), cell.to(x.dtype))

    def steps(self, x: Tensor, hidden: Tensor, cell: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The (hidden, cell) after each of the steps of x (B, T, d_in), one step at a time: each
        pair is the input of the next step.
        """
        weights = self.weights()
        for column in x.split(1, 1):
            _, (hidden, cell) = self.forward_with(column, hidden, cell, weights)
            yield hidden, cell

    @abstractmethod
    def read(
        self, x: Tensor, hidden: Tensor, cell: Tensor, weights: RecurrentWeights
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Every hidden state (B, T, D), the last one and the last cell, T > 0."""

    def empty(self, rows: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """The initial state, zeros: hidden (B, D), and cell (B, D) or (B, 0), with B = `rows`."""
        width = self.d_model if self.has_cell else 0
        return like.new_zeros(rows, self.d_model), like.new_zeros(rows, width)


class RNN(RecurrentLayer):
    """One gate; see `ops.rnn_step`."""

    def read(
        self, x: Tensor, hidden: Tensor, cell: Tensor, weights: RecurrentWeights
    ) -> tuple[Tensor, Tensor, Tensor]:
        return *ops.rnn(x, hidden, weights), cell


class GRU(RecurrentLayer):
    """Gates in the order r, z, n; see `ops.gru_step`. The recurrent product has its own bias."""

    gates = 3
    recurrent_bias = True

    def read(
        self, x: Tensor, hidden: Tensor, cell: Tensor, weights: RecurrentWeights
    ) -> tuple[Tensor, Tensor, Tensor]:
        return *ops.gru(x, hidden, weights), cell


class ResetFirstGRU(RecurrentLayer):
    """Gates in the order r, z, n; r is applied before the recurrent matrix, see
    `reset_first_gru_step`.
    """

    gates = 3

    def read(
        self, x: Tensor, hidden: Tensor, cell: Tensor, weights: RecurrentWeights
    ) -> tuple[Tensor, Tensor, Tensor]:
        below = ops.linear(x, weights.input, weights.input_bias).to(hidden.dtype)  # (B, T, 3D)
        outputs = []
        for column in below.unbind(1):
            hidden = reset_first_gru_step(column, hidden, weights.recurrent)
            outputs.append(hidden)
        return torch.stack(outputs, 1), hidden, cell


def reset_first_gru_step(below: Tensor, hidden: Tensor, recurrent: Tensor) -> Tensor:
    """h' = (1 - z) h + z n,  n = tanh(W x + U (r h))       (Bahdanau et al. 2014, section A.1.1)

    The reset gate r multiplies h, where in `ops.gru_step` it multiplies U h; and z is the weight of
    the new state, where there it is that of the old one.

    Args:
        below: W x + b of the gates r, z, n, (B, 3D).
        hidden: h, (B, D).
        recurrent: the matrices U of the gates r, z, n, (3D, D).
    """
    width = hidden.size(1)
    of_gates, of_new = recurrent.split([2 * width, width])  # (3D, D) -> (2D, D), (D, D)
    gates = below[:, : 2 * width] + ops.linear(hidden, of_gates, None).to(hidden.dtype)
    reset, update = torch.sigmoid(gates).chunk(2, 1)
    new = below[:, 2 * width :] + ops.linear(reset * hidden, of_new, None).to(hidden.dtype)
    return torch.lerp(hidden, torch.tanh(new), update)


class LSTM(RecurrentLayer):
    """Gates in the order i, f, g, o; see `ops.lstm_step`."""

    gates = 4
    has_cell = True

    def read(
        self, x: Tensor, hidden: Tensor, cell: Tensor, weights: RecurrentWeights
    ) -> tuple[Tensor, Tensor, Tensor]:
        return ops.lstm(x, hidden, cell, weights)


class WeightDropLSTM(LSTM):
    """An LSTM with dropout on the recurrent matrix, one mask for a pass (Merity et al. 2018,
    section 2).

    It has two biases, like `torch.nn.LSTM` and so the published weights.
    """

    recurrent_bias = True

    def __init__(self, d_in: int, d_model: int, weight_dropout: float):
        super().__init__(d_in, d_model)
        self.weight_dropout = Dropout(weight_dropout)

    def weights(self) -> RecurrentWeights:
        """The matrices, and the sum of both biases."""
        bias = self.input.bias + self.recurrent.bias
        dropped = self.weight_dropout(self.recurrent.weight)
        return RecurrentWeights(self.input.weight, dropped, bias, None)


class LSTMStep(nn.Module):
    """`ops.lstm_step` as a module, for decoders whose outputs are inputs of the next step."""

    def forward(self, below: Tensor, recurrent: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        """(B, 4D), (B, 4D) and (B, D) -> the next hidden state and cell, (B, D)."""
        return ops.lstm_step(below, recurrent, cell)


CELLS: dict[str, type[RecurrentLayer]] = {"rnn": RNN, "gru": GRU, "lstm": LSTM}


class Stack(nn.Module):
    """A stack of layers, with dropout between layers and not between steps (Zaremba et al. 2014,
    section 3.1: noise on recurrent connections would be amplified at every step).
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
            state: the state before the first step; None: zeros.
        """
        state = self.empty(x.size(0), x) if state is None else state
        after = []
        for n, layer in enumerate(self.layers):
            x = self.dropout(x) if n else x
            x, end = layer(x, state.hidden[:, n], state.cell[:, n])
            after.append(end)
        return x, stack_cells(after)

    def read(self, x: Tensor, state: Cells, lengths: Tensor | None = None) -> Cells:
        """The state after all steps of x (B, T, d_in), or of sequence b after its first
        `lengths[b]` steps; see `read_to`.
        """
        if lengths is None:
            return self(x, state)[1]
        return read_to(lengths, state, lambda part, state: self(x[:, part], state)[1])

    def empty(self, rows: int, like: Tensor) -> Cells:
        """The initial state, zeros, with the dtype and device of `like`."""
        return stack_cells([layer.empty(rows, like) for layer in self.layers])


def read_to(lengths: Tensor, state: S, read: Callable[[slice, S], S]) -> S:
    """The state of each sequence b after its first `lengths[b]` steps, (B,).

    The whole batch is computed from each length to the next larger one.

    Args:
        read: from a slice of the steps and the state before them to the state after them.
    """
    result, start = state, 0
    for length in sorted(set(lengths.clamp(min=0).tolist())):
        state = read(slice(start, length), state)
        result, start = _rows_of(lengths == length, state, result), length
    return result


def _rows_of(rows: Tensor, state: S, other: S) -> S:
    """`state` for the sequences whose entry of `rows` (B,) is True, `other` for the others."""
    others = other.tensors()
    return state.with_tensors(
        {
            name: torch.where(rows.view(-1, *[1] * (tensor.dim() - 1)), tensor, others[name])
            for name, tensor in state.tensors().items()
        }
    )


@dataclass(frozen=True)
class BPTTWindows:
    """Truncated backpropagation through time: texts in windows of `width` steps, between which the
    state is carried without gradient.

    In each text the last `learning` windows have gradients. The mask of weight dropout is the same
    for all windows ("BPTT for text classification", Howard & Ruder 2018, section 3.3).

    lengths: of the texts, (B,).
    """

    lengths: Tensor
    width: int
    learning: int

    def read(self, layer: RecurrentLayer, x: Tensor) -> Tensor:
        """The layer's hidden states, from a zero state: (B, T, d_in) -> (B, T, D)."""
        weights, state = layer.weights(), layer.empty(x.size(0), x)
        outputs = [x.new_zeros(x.size(0), 0, layer.d_model)]
        for learns, window in zip(self._learning(x.size(1)), x.split(self.width, 1), strict=False):
            learning = learns is None or bool(learns.any())
            with torch.set_grad_enabled(torch.is_grad_enabled() and learning):
                hidden, (end, cell) = layer.forward_with(window, *state, weights)
            if learns is not None:
                hidden = torch.where(learns[:, None, None], hidden, hidden.detach())
            outputs.append(hidden)
            state = end.detach(), cell.detach()
        return torch.cat(outputs, 1)

    def _learning(self, steps: int) -> Iterator[Tensor | None]:
        """For each window the texts that have gradients in it, (B,) bool; None: all of them."""
        count = -(-steps // self.width)
        if count <= self.learning:
            return repeat(None, count)
        windows = -(-self.lengths // self.width)
        return (windows - n <= self.learning for n in range(count))


class BidirectionalStack(nn.Module):
    """Bidirectional layers (Schuster & Paliwal 1997); d_model is the width of both directions."""

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
        """Hidden states (B, T, D), and the last states of both directions of each layer, (B, L, D).

        The backward direction starts at the last position of each sequence, so that padding changes
        nothing; hidden states at padding are undefined. The last states of an empty sequence are
        zeros.
        """
        order, ends = reverse_order(lengths, x.size(1)), []
        for n, (ahead, back) in enumerate(zip(self.ahead, self.back, strict=True)):
            x = self.dropout(x) if n else x
            forth, _ = ahead(x, *ahead.empty(len(x), x))
            turned, _ = back(reorder(x, order), *back.empty(len(x), x))
            ended, began = last_states(forth, lengths), last_states(turned, lengths)
            ends.append(torch.cat([ended, began], -1))
            x = torch.cat([forth, reorder(turned, order)], -1)
        return x, torch.stack(ends, 1)


def last_states(hiddens: Tensor, lengths: Tensor) -> Tensor:
    """The last position of each sequence: (B, T, D) -> (B, D); zeros for an empty one."""
    if hiddens.size(1) == 0:
        return hiddens.new_zeros(hiddens.size(0), hiddens.size(2))
    row = torch.arange(lengths.size(0), device=lengths.device)
    last = hiddens[row, (lengths - 1).clamp(min=0)]
    return last.masked_fill(lengths[:, None] == 0, 0.0)


def reverse_order(lengths: Tensor, count: int) -> Tensor:
    """Positions (B, T), T = `count`, that reverse each sequence and leave its padding in place."""
    at = torch.arange(count, device=lengths.device)[None]
    return torch.where(at < lengths[:, None], lengths[:, None] - 1 - at, at)


def reorder(x: Tensor, order: Tensor) -> Tensor:
    """(B, T, D) with position t taken from position `order[b, t]`, (B, T)."""
    return x.gather(1, order[..., None].expand_as(x))


def stack_cells(layers: Sequence[Sequence[Tensor]]) -> Cells:
    """The (hidden, cell) of each layer, (B, D) each, as one state, (B, L, D) each."""
    return Cells(*(torch.stack(list(part), 1) for part in zip(*layers, strict=True)))


# ------------------------------------------------- implementations of ops.rnn, ops.gru, ops.lstm

# cuDNN copies the weights of a layer into one chunk at each call. This warning asks users of
# `nn.LSTM` to do so once; here the weights may differ at each call, as by dropout.
warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous")


def _torch_arguments(x: Tensor, weights: RecurrentWeights) -> tuple:
    """The weights, and the other arguments of torch's kernels: has biases, 1 layer, no dropout,
    training, one direction, batch first.
    """
    zeros = torch.zeros_like(weights.input[:, 0])
    biases = (zeros if bias is None else bias for bias in weights[2:])
    options = True, 1, 0.0, torch.is_grad_enabled(), False, True
    return [*weights[:2], *biases], *options


def _first(state: Tensor) -> Tensor:
    """The state before the first step as torch's kernels take it: (B, D) -> (1, B, D).

    cuDNN takes none that is a view of the states of several layers.
    """
    return state[None].contiguous()


def _rnn(x: Tensor, hidden: Tensor, weights: RecurrentWeights) -> tuple[Tensor, Tensor]:
    outputs, hidden = torch.rnn_tanh(x, _first(hidden), *_torch_arguments(x, weights))
    return outputs, hidden[0]


def _gru(x: Tensor, hidden: Tensor, weights: RecurrentWeights) -> tuple[Tensor, Tensor]:
    outputs, hidden = torch.gru(x, _first(hidden), *_torch_arguments(x, weights))
    return outputs, hidden[0]


def _lstm(
    x: Tensor, hidden: Tensor, cell: Tensor, weights: RecurrentWeights
) -> tuple[Tensor, Tensor, Tensor]:
    supported = not autocasts_to_bfloat16(x) or _has_bfloat16_lstm()
    if not supported:
        x, hidden, cell = x.float(), hidden.float(), cell.float()
    with nullcontext() if supported else torch.autocast("cpu", enabled=False):
        states = _first(hidden), _first(cell)
        outputs, hidden, cell = torch.lstm(x, states, *_torch_arguments(x, weights))
    return outputs, hidden[0], cell[0]


def _several_steps(x: Tensor, hidden: Tensor, cell: Tensor, weights: RecurrentWeights) -> bool:
    # oneDNN's kernel first rearranges the weights: 650 wide that takes 7 ms, one step 0.2 ms.
    return x.size(1) > 1 or x.device.type != "cpu"


@cache
def _has_bfloat16_lstm() -> bool:
    """Whether oneDNN has an LSTM in bfloat16 for this processor; not for all without AVX-512."""
    x, state = torch.zeros(1, 2, 1), torch.zeros(1, 1)
    weights = RecurrentWeights(torch.zeros(4, 1), torch.zeros(4, 1), None, None)
    try:
        with torch.autocast("cpu", torch.bfloat16):
            torch.lstm(x, (state[None], state[None]), *_torch_arguments(x, weights))
    except RuntimeError:
        return False
    return True


ops.register(ops.rnn, "torch", _rnn)
ops.register(ops.gru, "torch", _gru)
ops.register(ops.lstm, "torch", _lstm, when=_several_steps)
