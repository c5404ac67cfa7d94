"""Rotary positions: "RoFormer: Enhanced Transformer with Rotary Position Embedding" (Su et al.).

The elements x_i and x_{i+K/2} of a query or a key are rotated by an angle proportional to its
position, so that the product of a query and a key depends only on the distance between them:

    (R_m q) . (R_n k) = q . R_{n-m} k                           (Su et al. 2021, eq. 16 and 34)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from regard.layers.positions import SinusoidalPositions

RotaryScaling = Literal["none", "linear", "llama3"]


@dataclass(frozen=True)
class RotaryAngles:
    """The frequencies of the K/2 pairs: frequency i is theta^(-2i/K).

    scaling: for texts longer than those of pre-training. "linear" divides all frequencies by
        `factor` (Chen et al. 2023, "Extending Context Window of Large Language Models via Position
        Interpolation", eq. 3). "llama3" divides those whose wavelength is above
        `original_length` / `low_factor`, leaves those below `original_length` / `high_factor` as
        they are, and interpolates between them (Llama 3.1's published program).
    """

    theta: float = 10_000.0
    scaling: RotaryScaling = "none"
    factor: float = 1.0
    low_factor: float = 1.0
    high_factor: float = 4.0
    original_length: int = 8192

    def frequencies(self, head_dim: int) -> Tensor:
        """The frequency of each pair, in radians per position: (K/2,) float64.

        Raises:
            ValueError: K is odd.
        """
        if head_dim % 2:
            raise ValueError(f"Rotary positions need heads of an even width, not {head_dim}.")
        pairs = torch.arange(0, head_dim, 2, dtype=torch.float64)
        plain = torch.exp(pairs * (-math.log(self.theta) / head_dim))
        match self.scaling:
            case "linear":
                return plain / self.factor
            case "llama3":
                # 0 where a wavelength is long, 1 where it is short
                turns = self.original_length * plain / (2 * math.pi)
                share = (turns - self.low_factor) / (self.high_factor - self.low_factor)
                share = share.clamp(0, 1)
                return (1 - share) * plain / self.factor + share * plain
            case _:
                return plain

    def __call__(self, positions: Tensor, head_dim: int) -> Tensor:
        """The cosines, then the sines of positions: (...,) -> (..., K), float32.

        The angles are computed in float64, as those of `sinusoid`.
        """
        frequencies = self.frequencies(head_dim).to(positions.device)
        angles = positions.double().unsqueeze(-1) * frequencies
        return torch.cat([angles.cos(), angles.sin()], -1).float()


class RotaryPositions(SinusoidalPositions):
    """The cosines and sines of each position, (T, K): what `rotate` takes."""

    def __init__(self, head_dim: int, angles: RotaryAngles):
        super().__init__(head_dim, angles)


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Rotate queries or keys, (B, H, T, K), same, by `RotaryPositions` (T, K) or (B, T, K)."""
    cos, sin = angles.unsqueeze(-3).to(x).chunk(2, -1)  # (T, K) -> 2 times (1, T, K/2)
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
