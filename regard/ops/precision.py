"""The type in which an operation computes: under autocast, and at least float32 where it sums."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

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


def cached_copy(weight: Tensor) -> Tensor | None:
    """The copy that `weight_copies` has of a parameter as it is now, or None."""
    copies = _copies.get()
    version, copy = (None, None) if copies is None else copies.get(weight, (None, None))
    return copy if version == weight._version else None
