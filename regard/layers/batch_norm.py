"""Batch normalization of vectors, and the inner layer of ULMFiT's classifier."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from regard.layers.dropout import Dropout
from regard.layers.linear import Linear


class BatchNorm(nn.BatchNorm1d):
    """Batch normalization (Ioffe & Szegedy 2015), in float32.

    A batch of one vector has no variance: in training it is normalized by the running statistics,
    which are not updated.
    """

    def forward(self, x: Tensor) -> Tensor:
        """(B, D) -> (B, D)"""
        y = x.to(self.weight.dtype)
        if self.training and x.size(0) > 1:
            return super().forward(y).to(x.dtype)
        return F.batch_norm(
            y, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
        ).to(x.dtype)


class BatchNormDense(nn.Module):
    """norm(relu(U drop(norm(h)) + b)), the inner layer of ULMFiT's classifier (Howard & Ruder 2018,
    section 3.3); both norms are batch norms.
    """

    def __init__(self, d_in: int, d_out: int, dropout: float):
        super().__init__()
        self.norm_in, self.norm_out = BatchNorm(d_in), BatchNorm(d_out)
        self.dropout = Dropout(dropout)
        self.dense = Linear(d_in, d_out)

    def forward(self, pooled: Tensor) -> Tensor:
        """(B, d_in) -> (B, d_out)"""
        hidden = self.dense(self.dropout(self.norm_in(pooled)))
        return self.norm_out(hidden.relu())
