"""Capture points, which attention weights pass, and the listener that records them.

Nothing here changes a signature or a result. Without a listener a capture point costs one look at a
context variable. It is a context variable and not an attribute of a module, so that two requests
which share a model do not see each other's weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

Labels = list[list[str]]  # a row of words for each row of the batch


class Listener(Protocol):
    """Whoever looks: decides which taps it wants, and takes their weights."""

    def wants(self, tap: CapturePoint) -> bool: ...

    def take(self, tap: CapturePoint, weights: Tensor) -> None: ...

    def label(self, source: Labels | None, target: Labels | None) -> None: ...


listening: ContextVar[Listener | None] = ContextVar("listening", default=None)


class CapturePoint(nn.Module):
    """A module without parameters, so that it has a path in its model.

    `kind` says which attention this is: "encoder" (self-attention of an encoder), "decoder" (masked
    self-attention), "cross" (decoder to encoder).
    """

    def __init__(self, kind: str):
        super().__init__()
        self.kind = kind

    @property
    def open(self) -> bool:
        # Blocks are compiled for when nobody looks; see regard/training/compiling.py.
        listener = None if torch.compiler.is_compiling() else listening.get()
        return listener is not None and listener.wants(self)

    def forward(self, weights: Tensor) -> None:
        """Show weights (B, H, T, S) to whoever looks."""
        listener = listening.get()
        if listener is not None:
            listener.take(self, weights)

    def extra_repr(self) -> str:
        return self.kind


@dataclass(frozen=True)
class ReshapedCapture:
    """A tap behind a layout: weights that were computed in another shape (rows that share a memory,
    blocks of a sparse pattern) come out as (B, H, T, S).
    """

    tap: CapturePoint
    layout: Callable[[Tensor], Tensor]

    @property
    def open(self) -> bool:
        return self.tap.open

    def __call__(self, weights: Tensor) -> None:
        self.tap(self.layout(weights))


@contextmanager
def muted() -> Iterator[None]:
    """Nobody looks inside this block: a search tries many hypotheses that nobody asked to see."""
    token = listening.set(None)
    try:
        yield
    finally:
        listening.reset(token)


def label(source: Labels | None = None, target: Labels | None = None) -> bool:
    """Tell whoever looks which words the next forward pass reads; False when nobody looks.

    `target` of a model without a source is what it reads; with a source it is the whole row that
    the decoder reads but for its last word, and predicts but for its first: bos … eos.
    """
    listener = listening.get()
    if listener is not None:
        listener.label(source, target)
    return listener is not None
