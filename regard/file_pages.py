"""Resident memory of mapped files: pages that were read and are no longer needed are dropped.

Weights are mapped into memory, not copied, so each page that was read counts as memory of the
process until it is dropped. If it is accessed again, it is read from the file again.
"""

import ctypes
import mmap
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from torch import Tensor

_releasing: ContextVar[bool] = ContextVar("releasing", default=False)


@contextmanager
def releasing() -> Iterator[None]:
    """Inside, weights are read to be quantized: their pages are dropped after reading."""
    token = _releasing.set(True)
    try:
        yield
    finally:
        _releasing.reset(token)


def is_releasing() -> bool:
    """Whether this is inside `releasing`."""
    return _releasing.get()


def release(tensor: Tensor) -> None:
    """Drop the pages of a tensor in a mapped file, with any changes; other memory stays."""
    if not sys.platform.startswith("linux") or not tensor.is_cpu or not tensor.numel():
        return
    first = tensor.data_ptr()
    extent = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    end = first + (extent + 1) * tensor.element_size()
    first, end = first + -first % mmap.PAGESIZE, end - end % mmap.PAGESIZE
    if first < end and _is_mapped(first, end):
        advise = ctypes.CDLL(None).madvise
        advise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), mmap.MADV_DONTNEED)


def _is_mapped(first: int, end: int) -> bool:
    """Whether an address range belongs to a private mapping of a file."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, permissions, _, _, inode, *_ = line.split(maxsplit=5)
        begin, stop = (int(number, 16) for number in addresses.split("-"))
        if begin <= first and end <= stop:
            return inode != "0" and permissions.endswith("p")
    return False
