"""Position-wise feed-forward network (Vaswani et al. 2017, section 3.3).

FFN(x) = activation(x W1 + b1) W2 + b2
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from regard.layers.dropout import Dropout
from regard.layers.linear import Linear

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "swish": F.silu,
}


class FeedForward(nn.Module):
    """Two linear layers with an activation between them, at every position alike."""

    def __init__(self, d_model: int, d_ff: int, *, activation: str = "relu", dropout: float = 0.0):
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ValueError(
                f"`activation` must be one of {', '.join(ACTIVATIONS)}, but is {activation!r}."
            )
        self.inner = Linear(d_model, d_ff)
        self.outer = Linear(d_ff, d_model)
        self.activation = ACTIVATIONS[activation]
        self.dropout = Dropout(dropout)
        for linear in (self.inner, self.outer):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)"""
        return self.outer(self.dropout(self.activation(self.inner(hidden))))
