"""Gates multiply the output of attention heads: 0 masks a head, 1 leaves it as it is.

MultiHead = Concat(xi_1 head_1, ..., xi_h head_h) W^O                   (Michel et al. 2019, eq. 1)

A forward hook multiplies a head's context before the output projection; another multiplies the
captured attention weights, so that they show what reaches the result. Models know nothing of gates.
A context variable says which gates act, so that two requests which share a model do not gate each
other's heads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from torch import Tensor, nn

from regard.attention.capture import CapturePoint, listening


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
