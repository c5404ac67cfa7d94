"""`with regard.look(model) as seen:` opens the taps of a model and keeps what passes.

Opening a tap selects attention's explicit path on the same weights; nothing else changes. What is
seen is kept as plain tensors on the CPU:

    seen.views                      one a forward pass of the model
    view.sites["decoder.3.cross"]   one an attention of the model: its kind and weights (B, H, T, S)
    view.source, view.target        the words of each row, where they are known
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from regard.attention.multihead import CrossAttention, SelfAttention
from regard.attention.tap import Labels, Tap, label, listening
from regard.errors import ConfigError

if TYPE_CHECKING:
    from regard.data.encoder_inputs import InputFormat
    from regard.visual.head_grid import HeadGrid
    from regard.visual.picture import Picture


@dataclass
class RecordedAttention:
    """One attention of a model in one forward pass."""

    name: str
    kind: str
    heads: tuple[int, ...] = ()  # their numbers, from 1, where some were pruned; else 1, 2, 3, ...
    pieces: list[Tensor] = field(default_factory=list)

    @property
    def weights(self) -> Tensor:
        """(B, H, T, S), float32, on the CPU; a decoder that runs word by word is put together."""
        keys = max(piece.size(-1) for piece in self.pieces)
        padded = [nn.functional.pad(piece, (0, keys - piece.size(-1))) for piece in self.pieces]
        return torch.cat(padded, dim=2)


@dataclass
class ForwardPass:
    """One forward pass: its attentions by name, in the order in which they ran."""

    sites: dict[str, RecordedAttention] = field(default_factory=dict)
    source: Labels | None = None
    target: Labels | None = None


class AttentionRecord:
    """What was seen. It is the listener that the taps speak to."""

    def __init__(self, module: nn.Module):
        self.views: list[ForwardPass] = []
        self._next, self._announced = ForwardPass(), False
        self._names = {
            id(tap): name.removesuffix(".tap")
            for name, tap in module.named_modules()
            if isinstance(tap, Tap)
        }
        self._heads = {
            id(attention.tap): tuple(head + 1 for head in attention.kept)
            for attention in module.modules()
            if isinstance(attention, SelfAttention | CrossAttention)
            and attention.kept != tuple(range(attention.heads))
        }

    def wants(self, tap: Tap) -> bool:
        return id(tap) in self._names

    def take(self, tap: Tap, weights: Tensor) -> None:
        name = self._names[id(tap)]
        if self._starts(name, tap, weights):
            self.begin()
        site = RecordedAttention(name, tap.kind, self._heads.get(id(tap), ()))
        site = self.views[-1].sites.setdefault(name, site)
        site.pieces.append(weights.detach().float().cpu())

    def _starts(self, name: str, tap: Tap, weights: Tensor) -> bool:
        """Whether another pass began without the model itself being called (`encode`, `scores`,
        `start`): words were announced, or the first queries of a text come again."""
        seen = bool(self.views) and name in self.views[-1].sites
        first = tap.kind != "cross" and weights.size(-1) == weights.size(-2)
        return not self.views or self._announced or (seen and first)

    def label(self, source: Labels | None, target: Labels | None) -> None:
        self._next, self._announced = ForwardPass(source=source, target=target), True

    def begin(self) -> None:
        """A forward pass starts: what comes now is another view."""
        self.views.append(self._next)
        self._next, self._announced = ForwardPass(), False

    def heads(
        self, kind: str | None = None, layer: int | None = None, example: int | None = None
    ) -> HeadGrid:
        """Every head that was seen, as a picture: `seen.heads(layer=5).save("it.png")`.

        `kind`, `layer` (from 1) and `example` (a row, counted through all views from 0) narrow it.
        """
        from regard.visual.head_grid import HeadGrid

        return HeadGrid.of(self.views).select(kind, layer, example)

    def from_word(
        self,
        word: str | int,
        layer: int | None = None,
        head: int | None = None,
        kind: str | None = None,
        example: int | None = None,
    ) -> Picture:
        """What one word looks at: `seen.from_word("it", layer=5).save("it.png")`.

        See `HeadGrid.from_word`.
        """
        heads = self.heads(kind, example=example)
        return heads.from_word(word, layer=layer, head=head)


@contextmanager
def look(model: Any) -> Iterator[AttentionRecord]:
    """See the attention weights of every forward pass in the block.

    Args:
        model: a model, or what `regard.load` returns.

    Raises:
        ConfigError: the model has no attention.
    """
    module = model if isinstance(model, nn.Module) else model.model
    seen = AttentionRecord(module)
    if not seen._names:
        raise ConfigError(f"{type(module).__name__} has no attention: there is nothing to look at.")

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


def run_encoder(model: Any, texts: Sequence[Any], pieces: InputFormat | None = None) -> None:
    """One pass of an encoder over texts, or pairs (a, b), in evaluation mode, for whoever looks.

    with regard.look(model) as seen:
        run_encoder(model, ["The animal didn't cross the street because it was too tired."])

    Args:
        model: a task on an encoder, or an encoder with `pieces`: how its texts become rows.

    Raises:
        ConfigError: a text is longer than the model reads.
    """
    module: Any
    module, pieces = as_encoder(model, pieces)
    rows = pieces.encode([(text,) if isinstance(text, str) else tuple(text) for text in texts])
    if long := pieces.too_long(rows):
        raise ConfigError(
            f"Text {long[0] + 1} has {len(rows[long[0]])} tokens, more than `max_length`, "
            f"{pieces.max_length}. Shorten it."
        )
    label([[pieces.tokenizer.label(i) for i in row.ids] for row in rows])
    was = module.training
    module.eval()
    with torch.no_grad():
        run = module.encode if hasattr(module, "encode") else module
        run(pieces.batch(rows).to(next(module.parameters()).device))
    module.train(was)


def as_encoder(model: Any, pieces: InputFormat | None) -> tuple[nn.Module, InputFormat]:
    """The model itself, and how its texts become rows.

    Raises:
        ConfigError: neither the model nor the caller says it.
    """
    bare = isinstance(model, nn.Module)
    given = None if pieces is None and bare else pieces or model.pieces
    if given is None:
        raise ConfigError(
            f"`pieces` must be given: {type(model).__name__} does not say how texts become rows. "
            "Use regard.data.encoder_inputs.InputFormat(tokenizer, template, limit, pad)."
        )
    return (model if bare else model.model), given
