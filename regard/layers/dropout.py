"""Dropout by a seed: its mask is a function of the seed and of the indices of the elements.

On a CPU torch draws a random number for each element, serially. Here a call draws one number, the
seed. The compiled `ops.dropout` computes the mask in parallel, several times faster than torch, and
again in the backward pass instead of storing it. `AddNorm` is the box "Add & Norm" in figure 1 of
Vaswani et al. 2017, whose dropout is part of it.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import ops
from regard.ops import DRAWS, NO_DROP, Drop, is_disabled


def dropout(x: Tensor, probability: float) -> Tensor:
    """Zero each element with this probability, scale the others by 1 / (1 - p): (...), same.

    Draws from torch's default generator, so that a saved generator state repeats the run.
    """
    return ops.dropout(x, draw(probability, x)) if probability else x


def draw(probability: float, x: Tensor) -> Drop:
    """The `Drop` of this probability for x, with a new seed from torch's default generator.

    The seed is 0, and not drawn, where torch's own dropout is used, which draws itself.
    """
    check_probability(probability)
    if probability == 0.0:
        return NO_DROP
    threshold = min(round(probability * DRAWS), DRAWS - 1)
    if _draws_itself(x) and (torch.compiler.is_compiling() or not is_disabled("dropout.torch")):
        return Drop(0, threshold)
    return Drop(int(torch.empty((), dtype=torch.int64, device="cpu").random_()), threshold)


def check_probability(probability: float) -> None:
    """Check a dropout probability.

    Raises:
        ValueError: it is not in [0, 1).
    """
    if not 0.0 <= probability < 1.0:
        raise ValueError(f"`probability` must be in [0, 1), but is {probability}.")


class Dropout(nn.Module):
    """`dropout` in training, the identity in evaluation."""

    def __init__(self, probability: float):
        super().__init__()
        check_probability(probability)
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.probability) if self.training else x

    def extra_repr(self) -> str:
        return f"{self.probability}"


class VariationalDropout(Dropout):
    """One mask for all steps of a sequence, drawn for each pass (Gal & Ghahramani 2016)."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D); the mask is (B, 1, D)."""
        if not self.training or not self.probability:
            return x
        return x * dropout(x.new_ones(x.size(0), 1, x.size(2)), self.probability)


class EmbeddingDropout(Dropout):
    """Whole words of the vocabulary become zero, wherever they occur (Gal & Ghahramani 2016).

    That is dropout on the rows of the embedding matrix, computed for the rows that are read.
    """

    def __init__(self, vocab_size: int, probability: float):
        super().__init__(probability)
        self.vocab_size = vocab_size

    def forward(self, vectors: Tensor, ids: Tensor) -> Tensor:  # type: ignore[override]
        """(B, T, D), the vectors of the words with ids (B, T) -> (B, T, D)"""
        if not self.training or not self.probability:
            return vectors
        factors = dropout(vectors.new_ones(self.vocab_size, 1), self.probability)
        return vectors * factors[ids]


# ------------------------------------------------------------ implementations of ops.dropout


def _draws_itself(x: Tensor, drop: Drop = NO_DROP) -> bool:
    return x.device.type != "cpu" or torch.compiler.is_compiling()


def _by_torch(x: Tensor, drop: Drop) -> Tensor:
    """On a GPU: torch's generator draws the mask, which does not depend on the seed."""
    return F.dropout(x, drop.probability)


ops.register(ops.dropout, "torch", _by_torch, when=_draws_itself)


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
