"""Position-wise feed-forward network (Vaswani et al. 2017, section 3.3).

FFN(x) = activation(x W1 + b1) W2 + b2
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import ops
from regard.errors import check_choice
from regard.layers.dropout import Dropout
from regard.layers.linear import Linear

Activation = Callable[[Tensor], Tensor]


def gelu(x: Tensor) -> Tensor:
    """x Phi(x) (Hendrycks & Gimpel 2016)."""
    return ops.gelu(x)


def gelu_tanh(x: Tensor) -> Tensor:
    """x Phi(x) with the tanh approximation of the same paper, as GPT and GPT-2 have it."""
    return ops.gelu(x, "tanh")


def quick_gelu(x: Tensor) -> Tensor:
    """x sigmoid(1.702 x), the other approximation of that paper."""
    return x * torch.sigmoid(1.702 * x)


def relu_squared(x: Tensor) -> Tensor:
    """max(0, x)^2 (So et al. 2021)."""
    return F.relu(x).square()


def gelu_10(x: Tensor) -> Tensor:
    """x Phi(x), clipped to [-10, 10] for 8-bit quantization."""
    return F.gelu(x).clamp(-10, 10)


def laplace(x: Tensor) -> Tensor:
    """P(z < x) with z ~ N(sqrt(1/2), 1 / (4 pi)), close to max(0, x)^2 (Ma et al. 2023)."""
    return 0.5 * (1 + torch.erf((x - 0.707107) / (0.282095 * 2**0.5)))


ACTIVATIONS: dict[str, Activation] = {
    "relu": F.relu,
    "gelu": gelu,
    "gelu-tanh": gelu_tanh,
    "gelu-10": gelu_10,
    "quick-gelu": quick_gelu,
    "swish": F.silu,
    "hard-swish": F.hardswish,
    "mish": F.mish,
    "relu-squared": relu_squared,
    "relu6": F.relu6,
    "leaky-relu": F.leaky_relu,
    "laplace": laplace,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "linear": nn.Identity(),
}


def activation_of(name: str) -> Activation:
    """The function of this name.

    Raises:
        ConfigError: there is no such function.
    """
    check_choice("activation", name, ACTIVATIONS)
    return ACTIVATIONS[name]


class FeedForward(nn.Module):
    """Two linear layers with an activation between them, at every position alike.

    Args:
        dropout: after the activation.
        bias: whether the layers have biases (T5's have none).
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        *,
        activation: str = "relu",
        dropout: float = 0.0,
        bias: bool = True,
    ):
        super().__init__()
        self.activation = activation_of(activation)
        self.inner = Linear(d_model, d_ff, bias=bias)
        self.outer = Linear(d_ff, d_model, bias=bias)
        self.dropout = Dropout(dropout)
        for linear in (self.inner, self.outer):
            nn.init.xavier_uniform_(linear.weight)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)"""
        return self.outer(self.dropout(self.activation(self.inner(hidden))))


class GatedFeedForward(nn.Module):
    """(activation(x W) * x V) W2, without biases (Shazeer 2020, "GLU Variants", section 2).

    W and V are one matrix, whose first half is W.

    Args:
        dropout: before W2.
        bias: whether the three products have biases.
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        *,
        activation: str = "gelu",
        dropout: float = 0.0,
        bias: bool = False,
    ):
        super().__init__()
        self.activation = activation_of(activation)
        self.inner = Linear(d_model, 2 * d_ff, bias=bias)
        self.outer = Linear(d_ff, d_model, bias=bias)
        self.dropout = Dropout(dropout)
        for weight in (*self.inner.weight.chunk(2), self.outer.weight):
            nn.init.xavier_uniform_(weight)
        for linear in (self.inner, self.outer):
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)"""
        gate, value = self.inner(hidden).chunk(2, -1)  # (B, T, 2 F) -> 2 times (B, T, F)
        return self.outer(self.dropout(self.activation(gate) * value))
