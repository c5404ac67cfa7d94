"""Layer normalization of a sum, and batch normalization of vectors."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from regard import ops
from regard.layers.dropout import check_probability, draw


class AddNorm(nn.LayerNorm):
    """norm(hidden + drop(update)), the box "Add & Norm" in figure 1 of Vaswani et al. 2017 with the
    dropout of section 5.4; see `ops.add_norm`."""

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


class BatchNorm(nn.BatchNorm1d):
    """Batch normalization (Ioffe & Szegedy 2015), in float32.

    A single vector has no variance: in training it is normalized by the running statistics, which
    it leaves as they are.
    """

    def forward(self, x: Tensor) -> Tensor:
        """(B, D) -> (B, D)"""
        y = x.to(self.weight.dtype)
        if self.training and x.size(0) > 1:
            return super().forward(y).to(x.dtype)
        return F.batch_norm(
            y, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
        ).to(x.dtype)
