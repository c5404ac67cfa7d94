"""Tensors as kernels take them: their addresses, checked, and memory on large pages.

A kernel does not check the memory that it reads and writes. So the dtype, the shape and the layout
of every tensor are checked here first. No other module of regard/kernels passes the address of a
caller's tensor to a kernel.

The processor translates the address of each page that it reads. Pages of the usual 4 KB are so many
that reading all weights waits for the translations; pages of 2 MB are few.
"""

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

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


# ----------------------------------------------------------------------------- large pages

PAGE = 2 << 20  # bytes of a large page
BLOCK = 32 << 20  # bytes that are reserved at once; only pages that are written to take memory
ALIGNMENT = 64


@dataclass
class _Block:
    """Reserved memory, of which the first bytes are in use. Tensors in it keep it alive."""

    memory: mmap.mmap
    used: int


_last: _Block | None = None


def large_empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """See `ops.large_empty`; on large pages, where the system has them."""
    size = prod(shape) * dtype.itemsize
    block = _block_with(size) if size else None
    if block is None:
        return torch.empty(tuple(shape), dtype=dtype)
    tensor = torch.frombuffer(block.memory, dtype=torch.uint8, count=size, offset=block.used)
    block.used += size + -size % ALIGNMENT
    return tensor.view(dtype).view(tuple(shape))


def _block_with(size: int) -> _Block | None:
    """A block with `size` bytes left: the last one, if it has them, or a new one; one of its own
    for a tensor that would fill it, which is freed with the tensor.
    """
    global _last
    try:
        if size >= BLOCK:
            return _reserve(size + PAGE)
        if _last is None or len(_last.memory) - _last.used < size:
            _last = _reserve(BLOCK + PAGE)
    except (AttributeError, OSError):  # the system has no such pages
        return None
    return _last


def _reserve(size: int) -> _Block:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, size, flags=flags)
    memory.madvise(mmap.MADV_HUGEPAGE)
    first = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
    return _Block(memory, -first % PAGE)
