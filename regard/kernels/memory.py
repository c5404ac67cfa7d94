"""Memory for what is read from end to end at every step, on pages as large as there are: weights,
and what a decoder remembers.

The processor looks up the address of each page that it reads. Of the usual 4 KB there are so many
that a sweep over all weights waits for that; of 2 MB there are few.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

PAGE = 2 << 20  # bytes of a large page
BLOCK = 32 << 20  # bytes that are reserved at once; those that nobody writes to take no memory
ALIGNMENT = 64
LEAST = 4 << 20  # bytes for which pages of their own are asked


@dataclass
class _Block:
    """Reserved memory, of which the first bytes are in use. Tensors in it keep it alive."""

    room: mmap.mmap
    used: int


_last: _Block | None = None


def large_empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """See `ops.large_empty`; on large pages, where the system has them."""
    size = prod(shape) * dtype.itemsize
    block = _block_with(size) if size else None
    if block is None:
        return torch.empty(tuple(shape), dtype=dtype)
    place = torch.frombuffer(block.room, dtype=torch.uint8, count=size, offset=block.used)
    block.used += size + -size % ALIGNMENT
    return place.view(dtype).view(tuple(shape))


def zeros(shape: Sequence[int], like: Tensor) -> Tensor:
    """Zeros of the type of `like`, on its device; where they are many, the system makes them at the
    first write nearby."""
    size = prod(shape) * like.element_size()
    if like.device.type != "cpu" or size < LEAST:
        return like.new_zeros(shape)
    try:
        block = _reserve(size + PAGE)
    except (AttributeError, OSError):
        return like.new_zeros(shape)
    place = torch.frombuffer(block.room, dtype=torch.uint8, count=size, offset=block.used)
    place[::PAGE] = 0  # several threads that write to a new page first wait for each other
    return place.view(like.dtype).view(shape)


def _block_with(size: int) -> _Block | None:
    """A block with so much left, the last one if it has."""
    global _last
    if _last is None or len(_last.room) - _last.used < size:
        try:
            _last = _reserve(max(size, BLOCK) + PAGE)
        except (AttributeError, OSError):  # another system, or one that has no such pages
            return None
    return _last


def _reserve(size: int) -> _Block:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    room = mmap.mmap(-1, size, flags=flags)
    room.madvise(mmap.MADV_HUGEPAGE)
    address = torch.frombuffer(room, dtype=torch.uint8).data_ptr()
    return _Block(room, -address % PAGE)
