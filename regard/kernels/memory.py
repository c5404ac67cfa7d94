"""Memory on large pages for tensors that every decoding step reads: weights and caches.

The processor translates the address of each page that it reads. Pages of the usual 4 KB are so many
that reading all weights waits for the translations; pages of 2 MB are few.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

PAGE = 2 << 20  # bytes of a large page
BLOCK = 32 << 20  # bytes that are reserved at once; only pages that are written to take memory
ALIGNMENT = 64
SMALLEST = 4 << 20  # bytes from which zeros are on large pages


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


def zeros(shape: Sequence[int], like: Tensor) -> Tensor:
    """See `ops.zeros`; of large tensors the system zeroes a page at its first write."""
    size = prod(shape) * like.element_size()
    if like.device.type != "cpu" or size < SMALLEST:
        return like.new_zeros(shape)
    try:
        block = _reserve(size + PAGE)
    except (AttributeError, OSError):
        return like.new_zeros(shape)
    tensor = torch.frombuffer(block.memory, dtype=torch.uint8, count=size, offset=block.used)
    tensor[::PAGE] = 0  # threads that write to a new page at the same time wait for each other
    return tensor.view(like.dtype).view(shape)


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
    address = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
    return _Block(memory, -address % PAGE)
