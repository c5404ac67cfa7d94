"""Low-rank adapters of linear layers (Hu et al. 2021, "LoRA", section 4.1).

y = W x + b + (alpha / r) B A x

W and b are frozen. A (r, K) starts random and B (N, r) at zero, so that training starts from the
layer as it was. B A can be added to W afterwards, and the layer is a plain one again.
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
    """(alpha / r) B A dropout(x), the update of some rows of a matrix W.

    Args:
        like: W, whose type and device A and B get.
        rows: which rows of W, the outputs of the projection that is adapted.
        rank: r.
        scale: alpha / r.
        dropout: of the input, in training.
    """

    def __init__(self, like: Tensor, rows: slice, rank: int, *, scale: float, dropout: float = 0.0):
        super().__init__()
        self.rows, self.scale = rows, scale
        self.dropout = Dropout(dropout)
        self.A = nn.Parameter(like.new_empty(rank, like.size(1)))
        self.B = nn.Parameter(like.new_zeros(rows.stop - rows.start, rank))
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))  # the bound 1 / sqrt(K), as of `nn.Linear`

    @property
    def rank(self) -> int:
        """r."""
        return self.A.size(0)

    def forward(self, x: Tensor) -> Tensor:
        """(..., K) -> (..., N)"""
        return linear(linear(self.dropout(x), self.A) * self.scale, self.B)

    def delta(self) -> Tensor:
        """(alpha / r) B A, (N, K)."""
        return self.scale * (self.B @ self.A)

    def extra_repr(self) -> str:
        return f"rows {self.rows.start}:{self.rows.stop}, rank {self.rank}, scale {self.scale:g}"


class LowRankLinear(nn.Module):
    """A `Linear` with low-rank updates.

    A packed matrix has several projections one below the other; each may have an update of its own,
    which is added to the outputs of its rows.

    Args:
        base: the layer.
        updates: of its projections, by name; their rows do not overlap.
    """

    def __init__(self, base: Linear, updates: Mapping[str, LowRankUpdate]):
        super().__init__()
        self.base = base
        self.in_features, self.out_features = base.in_features, base.out_features
        ordered = sorted(updates.items(), key=lambda item: item[1].rows.start)
        self.updates = nn.ModuleDict(dict(ordered))

    def forward(self, x: Tensor) -> Tensor:
        """(..., K) -> (..., N)"""
        y, parts, end = self.base(x), [], 0
        for update in self.parts():
            rows = update.rows
            parts += [y[..., end : rows.start], y[..., rows] + update(x)]
            end = rows.stop
        return torch.cat([*parts, y[..., end:]], -1)

    def parts(self) -> list[LowRankUpdate]:
        """The updates in the order of their rows."""
        return list(self.updates.values())  # type: ignore[arg-type]

    @torch.no_grad()
    def merged(self) -> Linear:
        """A new plain layer, its matrix W + (alpha / r) B A."""
        made = copy.deepcopy(self.base)
        for update in self.parts():
            made.weight[update.rows] += update.delta()
        return made

    def like(self, base: Linear) -> LowRankLinear:
        """New updates as this layer has them around another layer of the same size."""
        made = {
            name: LowRankUpdate(
                base.weight,
                update.rows,
                update.rank,
                scale=update.scale,
                dropout=update.dropout.probability,
            )
            for name, update in zip(self.updates, self.parts(), strict=True)
        }
        return LowRankLinear(base, made)
