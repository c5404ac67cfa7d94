"""An LSTM whose hidden states are a projection of its wider cells (Sak et al. 2014)."""

import torch
from torch import Tensor, nn

from regard import ops
from regard.layers.linear import SharedWeightMatmul


class ProjectedLSTM(nn.Module):
    """c' = clip(f c + i g),  h' = clip(R (o tanh(c')))     (Sak et al. 2014, clipped as in ELMo)

    One layer of D cells whose hidden states have P dimensions, gates in the order i, f, g, o.

    Args:
        d_in, d_cell, d_model: D_in, D and P.
        cell_clip, projection_clip: the largest absolute value of cells and of hidden states; None:
            no limit.
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
        # One product for the inputs of all steps: (B, T, D_in) -> (T, B, 4 D)
        below = ops.linear(x.transpose(0, 1), self.input.weight, self.input.bias).to(cell.dtype)
        recurrent = SharedWeightMatmul(self.recurrent.weight)
        projection = SharedWeightMatmul(self.projection.weight)
        hiddens, cells = [], []
        for of_input in below.unbind():
            i, f, g, o = (of_input + recurrent(hidden)).chunk(4, 1)
            cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
            if self.cell_clip is not None:
                cell = cell.clamp(-self.cell_clip, self.cell_clip)
            hidden = projection(torch.sigmoid(o) * torch.tanh(cell))
            if self.projection_clip is not None:
                hidden = hidden.clamp(-self.projection_clip, self.projection_clip)
            hiddens.append(hidden)
            cells.append(cell)
        return torch.stack(hiddens, 1), torch.stack(cells, 1)

    def empty(self, rows: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """The state before anything was read: zeros, (B, P) and (B, D)."""
        return like.new_zeros(rows, self.d_model), like.new_zeros(rows, self.d_cell)
