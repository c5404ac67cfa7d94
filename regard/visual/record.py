"""`with regard.look(model) as seen:` opens the taps of a model and keeps what passes.

Opening a tap selects attention's explicit path on the same weights; nothing else changes. What is
seen is kept as plain tensors on the CPU:

    seen.views                      one a forward pass of the model
    view.sites["decoder.3.cross"]   one an attention of the model: its kind and weights (B, H, T, S)
    view.source, view.target        the words of each row, where they are known
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from regard.attention.tap import Labels, Tap, listening

if TYPE_CHECKING:
    from regard.visual.heads import Heads


@dataclass
class Site:
    """One attention of a model in one forward pass."""

    name: str
    kind: str
    pieces: list[Tensor] = field(default_factory=list)

    @property
    def weights(self) -> Tensor:
        """(B, H, T, S), float32, on the CPU; a decoder that runs word by word is put together."""
        keys = max(piece.size(-1) for piece in self.pieces)
        padded = [nn.functional.pad(piece, (0, keys - piece.size(-1))) for piece in self.pieces]
        return torch.cat(padded, dim=2)


@dataclass
class View:
    """One forward pass: its attentions by name, in the order in which they ran."""

    sites: dict[str, Site] = field(default_factory=dict)
    source: Labels | None = None
    target: Labels | None = None


class Seen:
    """What was seen. It is the listener that the taps speak to."""

    def __init__(self, module: nn.Module):
        self.views: list[View] = []
        self._next = View()
        self._names = {
            id(tap): name.removesuffix(".tap")
            for name, tap in module.named_modules()
            if isinstance(tap, Tap)
        }

    def wants(self, tap: Tap) -> bool:
        return id(tap) in self._names

    def take(self, tap: Tap, weights: Tensor) -> None:
        if not self.views:
            self.begin()
        name = self._names[id(tap)]
        site = self.views[-1].sites.setdefault(name, Site(name, tap.kind))
        site.pieces.append(weights.detach().float().cpu())

    def label(self, source: Labels | None, target: Labels | None) -> None:
        self._next = View(source=source, target=target)

    def begin(self) -> None:
        """A forward pass starts: what comes now is another view."""
        self.views.append(self._next)
        self._next = View()

    def heads(
        self, kind: str | None = None, layer: int | None = None, example: int | None = None
    ) -> Heads:
        """Every head that was seen, as a picture: `seen.heads(layer=5).save("it.png")`.

        `kind`, `layer` (from 1) and `example` (a row, counted through all views from 0) narrow it.
        """
        from regard.visual.heads import Heads

        return Heads.of(self.views).select(kind, layer, example)


@contextmanager
def look(model: Any) -> Iterator[Seen]:
    """See the attention weights of every forward pass in the block.

    Args:
        model: a model, or what `regard.load` returns.

    Raises:
        ValueError: the model has no attention to look at.
    """
    module = model if isinstance(model, nn.Module) else model.model
    seen = Seen(module)
    if not seen._names:
        raise ValueError(f"{type(module).__name__} has no attention: there is nothing to look at.")

    def begin(*_: Any) -> None:
        if listening.get() is seen:
            seen.begin()

    hook = module.register_forward_pre_hook(begin)
    token = listening.set(seen)
    try:
        yield seen
    finally:
        listening.reset(token)
        hook.remove()
