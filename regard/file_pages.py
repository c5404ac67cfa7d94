"""Memory of mapped files: what was read and is not needed any more is given back to the system.

Weights are mapped, not copied, so each page that was read counts as memory of the process until it
is given back. It is read again from the file where somebody needs it after all.
"""

from __future__ import annotations

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
    """Inside, weights are opened to be quantized: what was read of them is given back at once."""
    token = _releasing.set(True)
    try:
        yield
    finally:
        _releasing.reset(token)


def is_releasing() -> bool:
    """Whether this is inside `releasing`."""
    return _releasing.get()


def release(tensor: Tensor) -> None:
    """Give back the pages of a mapped file that a tensor lies in; other memory is not touched."""
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
    """Whether addresses are those of a file that is mapped privately."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, permissions, _, _, inode, *_ = line.split(maxsplit=5)
        begin, stop = (int(number, 16) for number in place.split("-"))
        if begin <= first and end <= stop:
            return inode != "0" and permissions.endswith("p")
    return False
