"""Compression of a memory: c consecutive positions become one (Rae et al. 2019, section 3.1)."""

from __future__ import annotations

from torch import Tensor, nn

from regard.layers.linear import Linear


class MeanPooling(nn.Module):
    """The mean of the positions: (..., c, D) -> (..., D)."""

    def forward(self, positions: Tensor) -> Tensor:
        return positions.mean(-2)


class MaxPooling(nn.Module):
    """In each dimension the largest of the positions: (..., c, D) -> (..., D)."""

    def forward(self, positions: Tensor) -> Tensor:
        return positions.amax(-2)


class StridedConvolution(nn.Module):
    """A convolution whose kernel and stride are c: (..., c, D) -> (..., D).

    Windows of such a convolution do not overlap, so it is one matrix from c D to D.
    """

    def __init__(self, d_model: int, rate: int):
        super().__init__()
        self.kernel = Linear(rate * d_model, d_model)

    def forward(self, positions: Tensor) -> Tensor:
        return self.kernel(positions.flatten(-2))  # (..., c, D) -> (..., c D) -> (..., D)
