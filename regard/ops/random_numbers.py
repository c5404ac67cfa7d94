"""Random numbers that depend on a seed and a position alone, and what they choose."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Drop(NamedTuple):
    """Which elements a dropout sets to zero: those whose random number is below `threshold`.

    That number is a function of the seed and of the element's position. It is one of `DRAWS`
    values, so the probability is `threshold / DRAWS`.
    """

    seed: int
    threshold: int

    @property
    def probability(self) -> float:
        """p, with which an element is set to zero."""
        return self.threshold / DRAWS

    @property
    def scale(self) -> float:
        """The factor of the remaining elements, 1 / (1 - p), which keeps the mean."""
        return DRAWS / (DRAWS - self.threshold)


DRAWS = 1 << 15
NO_DROP = Drop(0, 0)


def keep_mask(shape: torch.Size, drop: Drop, device: torch.device | None = None) -> Tensor:
    """Which elements of a tensor (..., D) remain: bool, (..., D).

    Number r * ceil(D / 4) + i of the generator of Steele et al. 2014, "Fast splittable
    pseudorandom number generators", decides over elements 4i to 4i + 3 of row r, by 15 bits each.
    """
    width = shape[-1] if shape else 1
    rows = shape.numel() // max(1, width)
    numbers = (width + 3) // 4  # of 64 bits, for a row
    z = torch.arange(1, rows * numbers + 1, device=device) * GOLDEN + drop.seed
    draws = hashed(z).view(torch.int16).view(rows, 4 * numbers)[:, :width]  # (rows, D)
    return ((draws & (DRAWS - 1)) >= drop.threshold).view(shape)


def keep_at(row: Tensor, column: Tensor, width: int, drop: Drop) -> Tensor:
    """`keep_mask` of a tensor (rows, `width`), at the elements (`row`, `column`) alone.

    row, column: int64, broadcast together.
    """
    z = (row * ((width + 3) // 4) + column // 4 + 1) * GOLDEN + drop.seed
    draws = hashed(z) >> 16 * (column % 4)
    return (draws & (DRAWS - 1)) >= drop.threshold


def uniform(seeds: Tensor, numbers: Tensor) -> Tensor:
    """The i-th numbers, i in `numbers`, of the generators with these seeds, broadcast together.

    Both are int64; the result is float64, at least 0 and below 1.
    """
    return _shift_right(hashed(seeds + numbers * GOLDEN), 11).double() * 2.0**-53


def weighted_index(weights: Tensor, number: Tensor) -> Tensor:
    """Indices (...,) with probabilities proportional to weights (..., S), which are not negative.

    By the inverse of the cumulative distribution, so that zeros at the end change nothing. Its sums
    are float64: on a GPU those of float32 need not grow, and an index of weight 0 could be found.

    Args:
        number: (...,) float64, uniform in [0, 1).

    Returns:
        An index of positive weight; any index where all weights are 0.
    """
    cumulative = weights.double().cumsum(-1)
    total = cumulative[..., -1:]
    # Rounding must not lift the target to the total: the first sum above it has a positive weight.
    target = torch.minimum(number[..., None] * total, torch.nextafter(total, total.new_zeros(())))
    index = torch.searchsorted(cumulative, target.contiguous(), right=True)[..., 0]
    return index.clamp(max=weights.size(-1) - 1)


def hashed(z: Tensor) -> Tensor:
    """The finalizer of Steele et al. 2014: a bijection of 64-bit integers that look random."""
    z = (z ^ _shift_right(z, 30)) * _int64(0xBF58476D1CE4E5B9)
    z = (z ^ _shift_right(z, 27)) * _int64(0x94D049BB133111EB)
    return z ^ _shift_right(z, 31)


def _int64(number: int) -> int:
    """The int64 with the bits of an unsigned number of at least 2^63; products wrap around."""
    return number - (1 << 64)


GOLDEN = _int64(0x9E3779B97F4A7C15)  # what the generator of Steele et al. 2014 adds at each step


def _shift_right(z: Tensor, bits: int) -> Tensor:
    """The logical shift: zeros enter from the left, where `>>` repeats the sign."""
    return (z >> bits) & ((1 << 64 - bits) - 1)
