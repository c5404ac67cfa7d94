"""Numbers that multiply what heads say: 0 silences a head, 1 leaves it as it is.

MultiHead = Concat(xi_1 head_1, ..., xi_h head_h) W^O                   (Michel et al. 2019, eq. 1)

A gate multiplies a head's context, which is to multiply its weights: it acts behind the fused
kernel as behind the explicit path. The gates in force are a context variable and not a part of the
model, so that two requests which share a model do not silence each other's heads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn

# The gates of an attention, (H) or (B, H), for the rows (B, T, D) that it reads; None: all are 1.
Gates = Callable[[nn.Module, Tensor], Tensor | None]

gating: ContextVar[Gates | None] = ContextVar("gating", default=None)


def gate_of(attention: nn.Module, hidden: Tensor) -> Tensor | None:
    """What multiplies weights or context (B, H, T, ·) of an attention: (..., H, 1, 1), or None."""
    # Blocks are compiled for when nobody weighs heads; see regard/training/compiling.py.
    gates = None if torch.compiler.is_compiling() else gating.get()
    found = None if gates is None else gates(attention, hidden)
    return None if found is None else found[..., None, None]


@contextmanager
def gated(gates: Gates) -> Iterator[None]:
    """These gates are in force inside the block, times those of the blocks around it."""
    outer = gating.get()

    def both(attention: nn.Module, hidden: Tensor) -> Tensor | None:
        first = None if outer is None else outer(attention, hidden)
        second = gates(attention, hidden)
        return second if first is None else first if second is None else first * second

    token = gating.set(both)
    try:
        yield
    finally:
        gating.reset(token)
