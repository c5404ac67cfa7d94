"""An LSTM whose hidden states are a projection of its wider cells (Sak et al. 2014).

    c = clip(f * c + i * g),  h = clip(R (o * tanh(c)))

`projected_lstm` is the equation. The registered implementation multiplies all inputs at once, and
computes the gradient of each weight by one product over all steps, where autograd adds a matrix at
every step.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from regard import ops
from regard.ops import autocast_dtype, linear, operation


class ProjectedWeights(NamedTuple):
    """The weights of an LSTM with D cells and P outputs.

    W (4D, D_in), U (4D, P) and b (4D,), gates in the order i, f, g, o; R (P, D), the projection.
    """

    input: Tensor
    recurrent: Tensor
    bias: Tensor
    projection: Tensor


@operation
def projected_lstm(
    x: Tensor,
    hidden: Tensor,
    cell: Tensor,
    weights: ProjectedWeights,
    cell_clip: float | None = None,
    projection_clip: float | None = None,
) -> tuple[Tensor, Tensor]:
    """c' = clip(f c + i g),  h' = clip(R (o tanh(c')))     (Sak et al. 2014, clipped as in ELMo)

    Args:
        x: (B, T, D_in), T > 0.
        hidden, cell: the state before the first step, (B, P) and (B, D).
        cell_clip, projection_clip: the largest absolute value of c' and h'; None: no limit.

    Returns:
        Every hidden state, (B, T, P), and every cell, (B, T, D).
    """
    below, hiddens, cells = linear(x, weights.input, weights.bias).to(cell.dtype), [], []
    for t in range(x.size(1)):
        gates = below[:, t] + linear(hidden, weights.recurrent).to(cell.dtype)
        i, f, g, o = gates.chunk(4, 1)
        cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
        cell = cell if cell_clip is None else cell.clamp(-cell_clip, cell_clip)
        hidden = linear(torch.sigmoid(o) * torch.tanh(cell), weights.projection).to(cell.dtype)
        if projection_clip is not None:
            hidden = hidden.clamp(-projection_clip, projection_clip)
        hiddens.append(hidden)
        cells.append(cell)
    return torch.stack(hiddens, 1), torch.stack(cells, 1)


class ProjectedLSTM(nn.Module):
    """One layer of D cells whose hidden states have P dimensions; see `projected_lstm`.

    Args:
        d_in, d_cell, d_model: D_in, D and P.
        cell_clip, projection_clip: the largest absolute value of cells and of hidden states.
    """

    def __init__(
        self,
        d_in: int,
        d_cell: int,
        d_model: int,
        *,
        cell_clip: float | None = None,
        projection_clip: float | None = None,
    ):
        super().__init__()
        self.d_cell, self.d_model = d_cell, d_model
        self.cell_clip, self.projection_clip = cell_clip, projection_clip
        self.input = nn.Linear(d_in, 4 * d_cell)
        self.recurrent = nn.Linear(d_model, 4 * d_cell, bias=False)
        self.projection = nn.Linear(d_cell, d_model, bias=False)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(d_cell**-0.5), d_cell**-0.5)

    def forward(self, x: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        """Every hidden state (B, T, P), and every cell (B, T, D).

        Args:
            x: (B, T, D_in).
            hidden, cell: before the first step, (B, P) and (B, D).
        """
        if x.size(1) == 0:
            return hidden[:, None][:, :0], cell[:, None][:, :0]
        weights = ProjectedWeights(
            self.input.weight, self.recurrent.weight, self.input.bias, self.projection.weight
        )
        return projected_lstm(x, hidden, cell, weights, self.cell_clip, self.projection_clip)

    def empty(self, rows: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """The state before anything was read: zeros, (B, P) and (B, D)."""
        return like.new_zeros(rows, self.d_model), like.new_zeros(rows, self.d_cell)


# ----------------------------------------------------- an implementation of projected_lstm


def _one_type(
    x: Tensor,
    hidden: Tensor,
    cell: Tensor,
    weights: ProjectedWeights,
    cell_clip: float | None = None,
    projection_clip: float | None = None,
) -> bool:
    """Whether all tensors have one dtype; under autocast the definition is called."""
    types = {tensor.dtype for tensor in (x, hidden, cell, *weights)}
    return types == {autocast_dtype(x)}


def _unrolled(
    x: Tensor,
    hidden: Tensor,
    cell: Tensor,
    weights: ProjectedWeights,
    cell_clip: float | None = None,
    projection_clip: float | None = None,
) -> tuple[Tensor, Tensor]:
    clips = cell_clip, projection_clip
    if torch.is_grad_enabled():
        hiddens, cells = _ProjectedLSTM.apply(x, hidden, cell, *weights, *clips)
    else:
        hiddens, cells, *_ = _forward(x, hidden, cell, weights, *clips)
    return hiddens.transpose(0, 1), cells.transpose(0, 1)  # (T, B, ...) -> (B, T, ...)


def _forward(
    x: Tensor,
    hidden: Tensor,
    cell: Tensor,
    weights: ProjectedWeights,
    cell_clip: float | None,
    projection_clip: float | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hidden states (T, B, P), cells (T, B, D), gates after their activations, and tanh(cells)."""
    gates = torch.nn.functional.linear(x.transpose(0, 1), weights.input, weights.bias)
    width, recurrent, projection = cell.size(1), weights.recurrent.t(), weights.projection.t()
    hiddens = x.new_empty(*gates.shape[:2], projection.size(1))
    cells, squashed = (x.new_empty(*gates.shape[:2], width) for _ in range(2))
    steps = zip(gates, hiddens, cells, squashed, strict=True)
    for step, hidden_here, cell_here, squashed_here in steps:
        step.addmm_(hidden, recurrent)
        step[:, : 2 * width].sigmoid_()
        step[:, 2 * width : 3 * width].tanh_()
        step[:, 3 * width :].sigmoid_()
        i, f, g, o = step.chunk(4, 1)
        torch.mul(f, cell, out=cell_here).addcmul_(i, g)
        if cell_clip is not None:
            cell_here.clamp_(-cell_clip, cell_clip)
        torch.tanh(cell_here, out=squashed_here)
        torch.mm(squashed_here * o, projection, out=hidden_here)
        if projection_clip is not None:
            hidden_here.clamp_(-projection_clip, projection_clip)
        hidden, cell = hidden_here, cell_here
    return hiddens, cells, gates, squashed


class _ProjectedLSTM(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, hidden: Tensor, cell: Tensor, *others: Any) -> tuple:
        weights, ctx.clips = ProjectedWeights(*others[:4]), others[4:]
        hiddens, cells, gates, squashed = _forward(x, hidden, cell, weights, *ctx.clips)
        ctx.save_for_backward(x, hidden, cell, *weights, hiddens, cells, gates, squashed)
        return hiddens, cells

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        x, hidden, _, w, u, _, _, hiddens, _, gates, squashed = ctx.saved_tensors
        d_gates, d_projected, d_hidden, d_cell = _through_time(ctx, *grads)
        flat = d_gates.flatten(0, 1)  # (T, B, 4D) -> (T B, 4D)
        before = torch.cat([hidden[None], hiddens[:-1]]).flatten(0, 1)  # (T, B, P) -> (T B, P)
        outputs = (squashed * gates.chunk(4, 2)[3]).flatten(0, 1)  # (T, B, D) -> (T B, D)
        d_x = (d_gates @ w).transpose(0, 1) if ctx.needs_input_grad[0] else None
        d_w = flat.t() @ x.transpose(0, 1).flatten(0, 1)
        d_r = d_projected.flatten(0, 1).t() @ outputs
        return d_x, d_hidden, d_cell, d_w, flat.t() @ before, flat.sum(0), d_r, None, None


def _through_time(ctx: Any, d_hiddens: Tensor, d_cells: Tensor) -> tuple[Tensor, ...]:
    """Gradients by the gates before their activations (T, B, 4D), by the projected hidden states
    before they were clipped (T, B, P), and by the first hidden state and cell.
    """
    _, _, first_cell, _, u, _, r, hiddens, cells, gates, squashed = ctx.saved_tensors
    cell_clip, projection_clip = ctx.clips
    d_gates, d_projected = torch.empty_like(gates), torch.empty_like(hiddens)
    d_hidden, d_cell = torch.zeros_like(hiddens[0]), torch.zeros_like(first_cell)
    for t in reversed(range(len(gates))):
        i, f, g, o = gates[t].chunk(4, 1)
        d_hidden = d_hidden + d_hiddens[t]
        if projection_clip is not None:
            d_hidden = d_hidden * (hiddens[t].abs() < projection_clip)
        d_projected[t] = d_hidden
        d_output = d_hidden @ r
        d_cell = d_cell + d_cells[t] + d_output * o * (1 - squashed[t] * squashed[t])
        if cell_clip is not None:
            d_cell = d_cell * (cells[t].abs() < cell_clip)
        before = cells[t - 1] if t else first_cell
        d_i, d_f, d_g, d_o = d_gates[t].chunk(4, 1)
        torch.mul(d_cell * g, i * (1 - i), out=d_i)
        torch.mul(d_cell * before, f * (1 - f), out=d_f)
        torch.mul(d_cell * i, 1 - g * g, out=d_g)
        torch.mul(d_output * squashed[t], o * (1 - o), out=d_o)
        d_hidden, d_cell = d_gates[t] @ u, d_cell * f
    return d_gates, d_projected, d_hidden, d_cell


ops.register(projected_lstm, "unrolled", _unrolled, when=_one_type)
