"""The type in which an operation computes, under autocast and where it sums; and random numbers
that are a function of a seed and an index.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """Float32 for the 16-bit types, the type itself otherwise."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def autocast_dtype(x: Tensor) -> torch.dtype:
    """The type of `x @ weight`: that of autocast where it is enabled, but float64 stays float64."""
    if x.dtype == torch.float64:
        return x.dtype
    device = x.device.type
    is_available = torch.amp.is_autocast_available(device)  # not on the meta device
    enabled = is_available and torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if enabled else x.dtype


def state_prototype(weight: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """An empty tensor (0,), whose device and type are those of the states of a model.

    weight: of that model.  dtype: None: the type in which the model computes, see `autocast_dtype`.
    """
    return weight.new_empty(0, dtype=dtype or autocast_dtype(weight))


def autocasts_to_bfloat16(x: Tensor) -> bool:
    """Whether autocast computes products with x, on the CPU, in bfloat16."""
    if x.device.type != "cpu" or x.dtype == torch.float64:
        return False
    return torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16


# The low-precision copy of each parameter, with the version of the values it was made from.
WeightCopies = WeakTensorKeyDictionary
_copies: ContextVar[WeightCopies | None] = ContextVar("copies", default=None)


@contextmanager
def weight_copies(copies: WeightCopies) -> Iterator[None]:
    """Inside, the low-precision copy of a parameter is made once, and again when it has changed.

    Do not change parameters through `.data` inside: that leaves no trace.
    """
    token = _copies.set(copies)
    try:
        yield
    finally:
        _copies.reset(token)


def cast(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """A detached copy in another type; cached for parameters inside `weight_copies`."""
    if weight.dtype == dtype:
        return weight.detach()
    copies = _copies.get()
    if copies is None or not weight.is_leaf:
        return weight.detach().to(dtype)
    version, copy = copies.get(weight, (None, None))
    if version != weight._version or copy.dtype != dtype:
        copy = weight.detach().to(dtype)
        copies[weight] = (weight._version, copy)
    return copy


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
