"""Attention weights that are recorded, and heads that are multiplied by numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

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


class MultiHead(Protocol):
    """An attention whose heads can be gated: `output` reads the heads side by side, (B, T, H K)."""

    heads: int
    head_dim: int
    output: Any  # a module
    capture: CapturePoint


# The gates, (H) or (B, H), of an attention that computes this tensor, (B, ...).
Gate = Callable[[Tensor], Tensor]

_active: ContextVar[frozenset[object]] = ContextVar("active", default=frozenset())


@contextmanager
def gated(gates: Mapping[MultiHead, Gate]) -> Iterator[None]:
    """Multiply the heads of these attentions by their gates inside the block.

    Where blocks stand in one another, the gates of all of them multiply.
    """
    block = object()
    with ExitStack() as hooks:
        for attention, gate in gates.items():
            for handle in _hooked(attention, gate, block):
                hooks.callback(handle.remove)
        token = _active.set(_active.get() | {block})
        try:
            yield
        finally:
            _active.reset(token)


def _hooked(attention: MultiHead, gate: Gate, block: object) -> tuple[Any, Any]:
    shape = attention.heads, attention.head_dim

    def context(module: nn.Module, args: tuple[Tensor]) -> Tensor | None:
        if block not in _active.get():
            return None
        heads = args[0].unflatten(-1, shape)  # (B, T, H * K) -> (B, T, H, K)
        # In the type of the gates, so that their gradients are not rounded to 16 bits.
        return (heads * gate(heads)[..., None, :, None]).flatten(-2).to(heads.dtype)

    def captured(module: nn.Module, args: tuple[Tensor]) -> Tensor | None:
        return args[0] * gate(args[0])[..., None, None] if block in _active.get() else None

    output, capture = attention.output, attention.capture
    return output.register_forward_pre_hook(context), capture.register_forward_pre_hook(captured)


def captured_or_gated() -> bool:
    """Whether attention weights are captured or heads are gated here: then the model's own layers
    must compute, on padded batches, and nothing may be taken from a cache.
    """
    return listening.get() is not None or bool(_active.get())
