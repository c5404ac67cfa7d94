"""The attention weights of a call, as listeners are given them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from regard.attention.capture import CapturePoint, listening


class Recorder:
    """A listener that collects the kind and the weights of every capture point."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Tensor]] = []

    def wants(self, point: CapturePoint) -> bool:
        return True

    def take(self, point: CapturePoint, weights: Tensor) -> None:
        self.seen.append((point.kind, weights.detach()))

    def label(self, source: object, target: object) -> None: ...


@contextmanager
def heard_by(listener: Any) -> Iterator[None]:
    """A listener, or none, is told of all attention in this context."""
    token = listening.set(listener)
    try:
        yield
    finally:
        listening.reset(token)


def captured(call: Callable[[], Any]) -> tuple[Any, list[str], list[Tensor]]:
    """The result of a call, and the kinds and the weights of the attention in it."""
    recorder = Recorder()
    with heard_by(recorder):
        result = call()
    return result, [kind for kind, _ in recorder.seen], [weights for _, weights in recorder.seen]
