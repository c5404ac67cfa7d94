"""Checked addresses of the tensors that are passed to compiled kernels.

A kernel does not check the memory that it reads and writes. So the dtype, the shape and the layout
of every tensor are checked here first. No other module of regard/kernels passes the address of a
caller's tensor to a kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.errors import RegardError


def is_cpu_strided(tensor: Tensor, dtype: torch.dtype = torch.float32) -> bool:
    """Whether a tensor has this dtype and is a strided (dense) tensor on the CPU."""
    return tensor.dtype is dtype and tensor.is_cpu and tensor.layout is torch.strided


def is_contiguous(tensor: Tensor) -> bool:
    """Whether a strided CPU tensor is contiguous and aligned, without a lazy negation."""
    plain = tensor.is_contiguous() and not tensor.is_neg()
    return plain and tensor.data_ptr() % tensor.dtype.itemsize == 0


def contiguous(tensor: Tensor) -> Tensor:
    """The tensor itself if it is contiguous and aligned, else a contiguous copy."""
    if is_contiguous(tensor):
        return tensor
    return tensor.resolve_neg().clone(memory_format=torch.contiguous_format)


def address(name: str, tensor: Tensor | None, dtype: torch.dtype, shape: Sequence[int]) -> int:
    """The address of a contiguous, aligned CPU tensor of this dtype and shape.

    name: of the argument, for the error.

    Raises:
        RegardError: the tensor has another dtype, shape, layout or device.
    """
    if (
        isinstance(tensor, Tensor)
        and tensor.dtype is dtype
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and tensor.shape == shape
        and tensor.is_contiguous()
        and not tensor.is_neg()
    ):
        pointer = tensor.data_ptr()
        if pointer % dtype.itemsize == 0:
            return pointer
    raise argument_error(name, tensor, dtype, tuple(shape), "contiguous")


def raw_address(tensor: Tensor) -> int:
    """The address of a tensor that was made for the kernel or is checked already."""
    return tensor.data_ptr()


def optional_address(
    name: str, tensor: Tensor | None, dtype: torch.dtype, shape: Sequence[int]
) -> int | None:
    """The address of a tensor; None for None."""
    return None if tensor is None else address(name, tensor, dtype, shape)


def strided_address(name: str, tensor: Tensor, dtype: torch.dtype, shape: Sequence[int]) -> int:
    """As `address`, with any strides: for a kernel that takes the strides as arguments.

    Raises:
        RegardError: the tensor has another dtype, shape or device, or is not aligned.
    """
    if (
        isinstance(tensor, Tensor)
        and is_cpu_strided(tensor, dtype)
        and tensor.shape == shape
        and not tensor.is_neg()
    ):
        pointer = tensor.data_ptr()
        if pointer % dtype.itemsize == 0:
            return pointer
    raise argument_error(name, tensor, dtype, tuple(shape), "aligned")


def row_strided_address(name: str, tensor: Tensor, dtype: torch.dtype, shape: Sequence[int]) -> int:
    """As `strided_address`, for tensors that are contiguous in the last dimension.

    Raises:
        RegardError: the tensor has another dtype, shape or layout.
    """
    if isinstance(tensor, Tensor) and tensor.layout is torch.strided and tensor.dim():
        if tensor.stride(-1) == 1 or tensor.size(-1) == 1:
            return strided_address(name, tensor, dtype, shape)
    raise argument_error(name, tensor, dtype, tuple(shape), "contiguous in its last dimension")


def argument_error(
    name: str, tensor: object, dtype: torch.dtype, shape: tuple[int, ...], layout: str
) -> RegardError:
    """The error for an argument: what it must be, and what it is."""
    expected = f"`{name}` must be a tensor of {_name(dtype)} {shape}, {layout}, on the CPU"
    if not isinstance(tensor, Tensor):
        return RegardError(f"{expected}, but is {type(tensor).__name__}.")
    strides = tensor.stride() if tensor.layout is torch.strided else tensor.layout
    return RegardError(
        f"{expected}, but is {_name(tensor.dtype)} {tuple(tensor.shape)} with strides {strides} on "
        f"{tensor.device}."
    )


def checked_shape(name: str, tensor: Tensor, dimensions: int = 2) -> tuple[int, ...]:
    """The shape of a tensor with this number of dimensions and at least one column.

    Raises:
        RegardError: the tensor has another number of dimensions, or its last dimension is empty.
    """
    shape = tuple(tensor.shape)
    if len(shape) != dimensions or not shape[-1]:
        raise RegardError(
            f"`{name}` must have {dimensions} dimensions, the last of which is not empty, but is "
            f"{shape}."
        )
    return shape


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
