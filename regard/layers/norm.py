"""Layer normalization of a sum: the box "Add & Norm" in figure 1 of Vaswani et al. 2017."""

from __future__ import annotations

from torch import Tensor, nn

from regard import ops
from regard.layers.dropout import check_probability, draw


class AddNorm(nn.LayerNorm):
    """norm(hidden + drop(update)), section 5.4; see `ops.add_norm`."""

    def __init__(self, d_model: int, *, eps: float = 1e-5, dropout: float = 0.0):
        super().__init__(d_model, eps=eps)
        check_probability(dropout)
        self.dropout = dropout

    def forward(self, hidden: Tensor, update: Tensor) -> Tensor:  # type: ignore[override]
        """(..., D) and (..., D) -> (..., D)"""
        drop = draw(self.dropout if self.training else 0.0, update)
        return ops.add_norm(hidden, update, self.weight, self.bias, self.eps, drop)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, dropout={self.dropout}"
