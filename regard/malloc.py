"""Keeps memory that a step or a layer frees for the next one.

The C library of Linux gives large blocks back to the system at once and asks for them again, and
the system clears each of their pages: for the gradient of an embedding of 30,522 x 384 that is
16 ms a step, a twentieth of fine-tuning a model of 22 million parameters on one core. Hidden
states of 16,384 tokens are such blocks too: a BigBird of the base width took 1.6 times as long.

Training and the command line do this; a program that encodes long texts may call it.
"""

import ctypes
from contextlib import suppress

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of mallopt(3)
LARGEST = 1 << 30  # blocks up to this stay in the process
SMALLER = 1 << 25  # the most that older versions take


def keep_freed_blocks() -> None:
    """Tell the C library, where it is that of Linux."""
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(TRIM_THRESHOLD, -1)  # never
        if not mallopt(MMAP_THRESHOLD, LARGEST):
            mallopt(MMAP_THRESHOLD, SMALLER)
