"""Attention capture: points in a model through which attention weights pass, and their listener.

Capture changes no result. Without a listener a capture point only reads a context variable. The
listener is a context variable and not an attribute of a module, so that two requests which share a
model do not capture each other's weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

Labels = list[list[str]]  # the tokens of each sequence of the batch, as text


class Listener(Protocol):
    """Records attention weights.

    wants: whether the weights of a capture point are recorded.
    take: record the weights (B, H, T, S) of a capture point.
    label: the tokens of the next forward pass, as `label` describes them.
    """

    def wants(self, point: CapturePoint) -> bool: ...

    def take(self, point: CapturePoint, weights: Tensor) -> None: ...

    def label(self, source: Labels | None, target: Labels | None) -> None: ...


NEXT = "…"  # the token behind the last one, where none was generated

listening: ContextVar[Listener | None] = ContextVar("listening", default=None)


class CapturePoint(nn.Module):
    """Where a listener receives attention weights; a module, so that it has a name in its model.

    kind: which attention this is: "encoder" (self-attention of an encoder), "decoder" (masked
        self-attention), "cross" (decoder to encoder), "query" (XLNet's query stream).
    uses: how many layers share this attention (more than 1 in ALBERT).
    """

    def __init__(self, kind: str, uses: int = 1):
        super().__init__()
        self.kind, self.uses = kind, uses

    @property
    def is_wanted(self) -> bool:
        """Whether a listener wants these weights."""
        listener = listening.get()
        return listener is not None and listener.wants(self)

    def forward(self, weights: Tensor) -> None:
        """Pass weights (B, H, T, S) to the listener."""
        listener = listening.get()
        if listener is not None:
            listener.take(self, weights)

    def extra_repr(self) -> str:
        return self.kind


@dataclass(frozen=True)
class ReshapedCapture:
    """A capture point for weights that were computed in another shape.

    reshape: from that shape to (B, H, T, S); of hypotheses that share a memory it is `unshare`.
    """

    capture: CapturePoint
    reshape: Callable[[Tensor], Tensor]

    @property
    def is_wanted(self) -> bool:
        """Whether a listener wants these weights."""
        return self.capture.is_wanted

    def __call__(self, weights: Tensor) -> None:
        self.capture(self.reshape(weights))


@contextmanager
def muted() -> Iterator[None]:
    """Capture is off inside the block, such as for the hypotheses of a search."""
    token = listening.set(None)
    try:
        yield
    finally:
        listening.reset(token)


def label(source: Labels | None = None, target: Labels | None = None) -> bool:
    """Tell the listener the tokens of the next forward pass, as text.

    Args:
        source: the tokens of each source; None: the model has no source.
        target: without a source the tokens that the model reads; with a source the whole target,
            bos ... eos, of which the decoder reads all but the last and predicts all but the first.

    Returns:
        Whether there is a listener.
    """
    listener = listening.get()
    if listener is not None:
        listener.label(source, target)
    return listener is not None
