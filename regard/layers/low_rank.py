"""Low-rank adapters of linear layers (Hu et al. 2021, "LoRA", section 4.1).

y = W x + b + (alpha / r) B A x

W (d_out, d_in) and b (d_out,) are frozen. A (r, d_in) is random and B (d_out, r) zero at first, so
training starts from the function of the layer. After training, (alpha / r) B A can be added to W:
the result is a plain layer.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from regard.layers.dropout import Dropout
from regard.layers.linear import Linear
from regard.ops import linear


class LowRankUpdate(nn.Module):
    """(alpha / r) B A dropout(x), the update of N rows of a matrix W.

    Args:
        weight: W, (d_out, d_in), whose dtype and device A and B get.
        rows: the rows of W that are updated: the outputs of one projection.
        rank: r.
        scale: alpha / r.
        dropout: the dropout probability of the input, in training.
    """

    def __init__(
        self, weight: Tensor, rows: slice, rank: int, *, scale: float, dropout: float = 0.0
    ):
        super().__init__()
        self.rows, self.scale = rows, scale
        self.dropout = Dropout(dropout)
        self.A = nn.Parameter(weight.new_empty(rank, weight.size(1)))
        self.B = nn.Parameter(weight.new_zeros(rows.stop - rows.start, rank))
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))  # bound 1 / sqrt(d_in), as in `nn.Linear`

    @property
    def rank(self) -> int:
        """r."""
        return self.A.size(0)

    def forward(self, x: Tensor) -> Tensor:
        """(..., d_in) -> (..., N)"""
        return linear(linear(self.dropout(x), self.A) * self.scale, self.B)

    def delta(self) -> Tensor:
        """(alpha / r) B A, (N, d_in)."""
        return self.scale * (self.B @ self.A)

    def extra_repr(self) -> str:
        return f"rows {self.rows.start}:{self.rows.stop}, rank {self.rank}, scale {self.scale:g}"


class LowRankLinear(nn.Module):
    """A `Linear` with low-rank updates.

    A packed matrix holds the rows of several projections; each projection may have its own update,
    which is added to the outputs of its rows.

    Args:
        base: the layer.
        updates: the updates of its projections, by name; their rows do not overlap.
    """

    def __init__(self, base: Linear, updates: Mapping[str, LowRankUpdate]):
        super().__init__()
        self.base = base
        self.in_features, self.out_features = base.in_features, base.out_features
        ordered = sorted(updates.items(), key=lambda item: item[1].rows.start)
        self.updates = nn.ModuleDict(dict(ordered))

    def forward(self, x: Tensor) -> Tensor:
        """(..., d_in) -> (..., d_out)"""
        y, parts, end = self.base(x), [], 0
        for update in self.ordered_updates():
            rows = update.rows
            parts += [y[..., end : rows.start], y[..., rows] + update(x)]
            end = rows.stop
        return torch.cat([*parts, y[..., end:]], -1)

    def ordered_updates(self) -> list[LowRankUpdate]:
        """The updates in the order of their rows."""
        return list(self.updates.values())  # type: ignore[arg-type]

    @torch.no_grad()
    def merged(self) -> Linear:
        """A new plain layer with the matrix W + (alpha / r) B A."""
        merged = copy.deepcopy(self.base)
        for update in self.ordered_updates():
            merged.weight[update.rows] += update.delta()
        return merged

    def new_around(self, base: Linear) -> LowRankLinear:
        """Another layer of the same size with new updates of the same rows, ranks and options."""
        updates = {
            name: LowRankUpdate(
                base.weight,
                update.rows,
                update.rank,
                scale=update.scale,
                dropout=update.dropout.probability,
            )
            for name, update in zip(self.updates, self.ordered_updates(), strict=True)
        }
        return LowRankLinear(base, updates)
