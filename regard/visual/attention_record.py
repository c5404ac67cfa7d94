"""`with regard.look(model) as record:` records the attention weights of a model.

Attention capture selects the explicit computation of attention on the same weights; nothing else
changes. The weights are kept as tensors on the CPU:

    record.passes                     one for each forward pass of the model
    one.attentions["decoder.3.cross"] one for each attention: its kind and weights (B, H, T, S)
    one.source, one.target            the tokens of each row, where they are known
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from torch import Tensor, nn

from regard.attention.capture import CapturePoint, Labels, label, listening
from regard.attention.multihead import CrossAttention, SelfAttention
from regard.errors import ConfigError
from regard.models.protocols import Encoder
from regard.visual.forward_pass import ForwardPass, RecordedAttention

if TYPE_CHECKING:
    from regard.data.encoder_inputs import InputFormat
    from regard.models.protocols import Model
    from regard.visual.head_grid import HeadGrid
    from regard.visual.picture import Picture


class TaskWithModel(Protocol):
    """What pictures ask of a task: its model, and how its texts become inputs of an encoder."""

    model: Any
    pieces: Any


class AttentionRecord:
    """What was recorded: a listener of the taps of a model, or of a part of it."""

    def __init__(self, module: nn.Module):
        self.passes: list[ForwardPass] = []
        self._next, self._announced = ForwardPass(), False
        self._names = {
            id(tap): name.removesuffix(".tap")
            for name, tap in module.named_modules()
            if isinstance(tap, CapturePoint)
        }
        self._heads = {
            id(attention.tap): tuple(head + 1 for head in attention.kept)
            for attention in module.modules()
            if isinstance(attention, SelfAttention | CrossAttention)
            and attention.kept != tuple(range(attention.heads))
        }
        if not self._names:
            raise ConfigError(f"{type(module).__name__} has no attention: nothing can be shown.")

    def wants(self, tap: CapturePoint) -> bool:
        """Whether the tap is one of this model."""
        return id(tap) in self._names

    def take(self, tap: CapturePoint, weights: Tensor) -> None:
        """Record weights (B, H, T, S)."""
        name = self._names[id(tap)]
        if self._starts_pass(name, tap, weights):
            self.start_pass()
        attention = RecordedAttention(name, tap.kind, self._heads.get(id(tap), ()))
        attention = self.passes[-1].attentions.setdefault(name, attention)
        attention.parts.append(weights.detach().float().cpu())

    def _starts_pass(self, name: str, tap: CapturePoint, weights: Tensor) -> bool:
        """Whether another pass began without a call of the model itself (`encode`, `scores`): its
        tokens were announced, or the first queries of a text come again."""
        known = bool(self.passes) and name in self.passes[-1].attentions
        first = tap.kind != "cross" and weights.size(-1) == weights.size(-2)
        return not self.passes or self._announced or (known and first)

    def label(self, source: Labels | None, target: Labels | None) -> None:
        """The tokens that the next pass reads."""
        self._next, self._announced = ForwardPass(source=source, target=target), True

    def start_pass(self) -> None:
        """A forward pass starts."""
        self.passes.append(self._next)
        self._next, self._announced = ForwardPass(), False

    def heads(
        self, kind: str | None = None, layer: int | None = None, example: int | None = None
    ) -> HeadGrid:
        """Every recorded head, as a picture: `record.heads(layer=5).save("it.png")`.

        kind: "encoder", "decoder" or "cross".  layer: from 1.  example: a row of a batch, counted
        over all passes from 0.

        Raises:
            ConfigError: there are no such heads.
        """
        from regard.visual.head_grid import HeadGrid

        return HeadGrid.of(self.passes).select(kind, layer, example)

    def from_word(
        self,
        word: str | int,
        layer: int | None = None,
        head: int | None = None,
        kind: str | None = None,
        example: int | None = None,
    ) -> Picture:
        """What one word attends to: `record.from_word("it", layer=5).save("it.png")`.

        See `HeadGrid.from_word`; `kind` and `example` as for `heads`.
        """
        return self.heads(kind, example=example).from_word(word, layer=layer, head=head)


@contextmanager
def look(model: nn.Module | TaskWithModel) -> Iterator[AttentionRecord]:
    """Record the attention weights of every forward pass in the block.

    Args:
        model: a model, or what `regard.load` returns.

    Raises:
        ConfigError: the model has no attention.
    """
    module = _module_of(model)
    record = AttentionRecord(module)

    def start_pass(*_: Any) -> None:
        if listening.get() is record:
            record.start_pass()

    hook = module.register_forward_pre_hook(start_pass)
    token = listening.set(record)
    try:
        yield record
    finally:
        listening.reset(token)
        hook.remove()


@contextmanager
def evaluation_mode(model: Model | nn.Module) -> Iterator[None]:
    """The model is in evaluation mode in the block, and nothing computes gradients."""
    module = cast("nn.Module", model)
    training = module.training
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        module.train(training)


def run_encoder(
    model: nn.Module | TaskWithModel,
    texts: Sequence[str | Sequence[str]],
    pieces: InputFormat | None = None,
) -> None:
    """Run an encoder over texts in evaluation mode, so that their attention is recorded.

    with regard.look(model) as record:
        run_encoder(model, ["The animal didn't cross the street because it was too tired."])

    Args:
        model: a task on an encoder, or an encoder with `pieces`.
        texts: texts or pairs of texts (a, b).
        pieces: how texts become inputs, for a model without a task.

    Raises:
        ConfigError: a text is longer than the model's limit, or `pieces` is missing.
    """
    module, pieces = as_encoder(model, pieces)
    rows = pieces.encode([(text,) if isinstance(text, str) else tuple(text) for text in texts])
    if long := pieces.too_long(rows):
        raise ConfigError(
            f"Text {long[0] + 1} has {len(rows[long[0]])} tokens, more than `max_length`, "
            f"{pieces.max_length}. Shorten it."
        )
    label([[pieces.tokenizer.label(i) for i in row.ids] for row in rows])
    batch = pieces.batch(rows).to(next(module.parameters()).device)
    with evaluation_mode(module):
        if isinstance(module, Encoder):
            module.encode(batch)
        else:
            module(batch)


def as_encoder(
    model: nn.Module | TaskWithModel, pieces: InputFormat | None
) -> tuple[nn.Module, InputFormat]:
    """The model itself, and how its texts become inputs.

    Raises:
        ConfigError: neither the model nor the caller says it.
    """
    bare = isinstance(model, nn.Module)
    given = pieces or (None if bare else cast("TaskWithModel", model).pieces)
    if given is None:
        raise ConfigError(
            f"`pieces` must be given: {type(model).__name__} does not say how texts become rows. "
            "Use regard.data.encoder_inputs.InputFormat(tokenizer, template, max_length, pad)."
        )
    return _module_of(model), given


def _module_of(model: nn.Module | TaskWithModel) -> nn.Module:
    return model if isinstance(model, nn.Module) else cast("TaskWithModel", model).model
