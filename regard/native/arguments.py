"""The memory of tensors, as it is handed to compiled kernels: nowhere else is an address taken.

A kernel reads and writes what it is told; so whatever is not of the type, the shape and the layout
that it expects must be found before.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.errors import RegardError


def is_plain(tensor: Tensor, kind: torch.dtype = torch.float32) -> bool:
    """Whether a tensor has this type and its numbers lie in this machine's memory."""
    return tensor.dtype is kind and tensor.is_cpu and tensor.layout is torch.strided


def is_laid(tensor: Tensor) -> bool:
    """Whether the numbers of a plain tensor lie side by side, at multiples of their size."""
    laid = tensor.is_contiguous() and not tensor.is_neg()
    return laid and tensor.data_ptr() % tensor.dtype.itemsize == 0


def laid(tensor: Tensor) -> Tensor:
    """A plain tensor whose numbers lie side by side: itself, or a copy."""
    if is_laid(tensor):
        return tensor
    return tensor.resolve_neg().clone(memory_format=torch.contiguous_format)


def address(name: str, tensor: Tensor | None, kind: torch.dtype, shape: Sequence[int]) -> int:
    """Where the first number of a tensor lies, that must be like this and lie side by side.

    Raises:
        RegardError: it is another one.
    """
    if (
        isinstance(tensor, Tensor)
        and tensor.dtype is kind
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and tensor.shape == shape
        and tensor.is_contiguous()
        and not tensor.is_neg()
    ):
        found = tensor.data_ptr()
        if found % kind.itemsize == 0:
            return found
    raise wrong(name, tensor, kind, tuple(shape), "contiguous")


def own(tensor: Tensor) -> int:
    """Where a tensor lies that was made for the kernel, or that was looked at before, just now."""
    return tensor.data_ptr()


def optional(
    name: str, tensor: Tensor | None, kind: torch.dtype, shape: Sequence[int]
) -> int | None:
    """The same; None where there is none."""
    return None if tensor is None else address(name, tensor, kind, shape)


def scattered(name: str, tensor: Tensor, kind: torch.dtype, shape: Sequence[int]) -> int:
    """As `address`, for a kernel that is told the strides.

    Raises:
        RegardError: it is another tensor.
    """
    if (
        isinstance(tensor, Tensor)
        and is_plain(tensor, kind)
        and tensor.shape == shape
        and not tensor.is_neg()
    ):
        found = tensor.data_ptr()
        if found % kind.itemsize == 0:
            return found
    raise wrong(name, tensor, kind, tuple(shape), "aligned")


def strided(name: str, tensor: Tensor, kind: torch.dtype, shape: Sequence[int]) -> int:
    """The same, where the numbers of the last dimension lie side by side.

    Raises:
        RegardError: it is another tensor.
    """
    if isinstance(tensor, Tensor) and tensor.layout is torch.strided and tensor.dim():
        if tensor.stride(-1) == 1 or tensor.size(-1) == 1:
            return scattered(name, tensor, kind, shape)
    raise wrong(name, tensor, kind, tuple(shape), "contiguous in its last dimension")


def wrong(
    name: str, tensor: object, kind: torch.dtype, shape: tuple[int, ...], laid: str
) -> RegardError:
    """What an argument must be, and what it is."""
    wanted = f"`{name}` must be a tensor of {_name(kind)} {shape}, {laid}, on the CPU"
    if not isinstance(tensor, Tensor):
        return RegardError(f"{wanted}, but is {type(tensor).__name__}.")
    lies = tensor.stride() if tensor.layout is torch.strided else tensor.layout
    return RegardError(
        f"{wanted}, but is {_name(tensor.dtype)} {tuple(tensor.shape)} with strides {lies} on "
        f"{tensor.device}."
    )


def of_rows(name: str, tensor: Tensor, dimensions: int = 2) -> tuple[int, ...]:
    """The shape of a tensor that must have so many dimensions, and some columns.

    Raises:
        RegardError: it has not.
    """
    shape = tuple(tensor.shape)
    if len(shape) != dimensions or not shape[-1]:
        raise RegardError(
            f"`{name}` must have {dimensions} dimensions, the last of which is not empty, but is "
            f"{shape}."
        )
    return shape


def _name(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.")
