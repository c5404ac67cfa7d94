"""FLOPs and what is kept for a backward pass, counted over tensors that have no numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from regard.models.features import Features
from regard.models.headed import Headed, assembled
from regard.models.protocols import Generator
from regard.training.activation_checkpointing import activation_checkpointing, blocks_of


def twin(model: Any, device: str) -> Any:
    """A model of the same shape on another device, with new weights: costs do not depend on them.

    On "meta" a tensor has a shape and no numbers.
    """
    with torch.device(device):
        if not isinstance(model, Headed):
            return type(model)(model.config)
        encoder: Any = type(model.encoder)
        made = assembled(encoder(model.config), model.outputs())
    made.labels = model.labels
    return made


def count(task: Any, batch: Any, *, checkpointing: bool = False) -> tuple[int, int, int]:
    """What is counted (tokens, examples), FLOPs, and bytes kept for the backward pass, of a batch.

    `task.model` is on the meta device.
    """
    blocks = blocks_of(task.model) if checkpointing else []
    counts, head = task.counts(batch), _over_words(task)
    task.model.train()
    with _without_targets(head, list(counts.values())[-1]):
        with FlopCounterMode(display=False) as counter:
            kept = kept_by(task.model, lambda: task.losses(batch.to("meta"), None), blocks)
    # A backward pass is twice as much as a forward pass, but none goes through what is frozen.
    flops = 3 * counter.get_total_flops() - 2 * _frozen_flops(task.model, batch)
    return next(iter(counts.values())), flops, kept + (bytes_of(head) if head else 0)


def _over_words(task: Any) -> Any:
    """The head that is trained to predict words, if there is one."""
    if task.next_words is not None:
        return task.next_words.head
    return task.model.head if isinstance(task.model, Generator) else None


@contextmanager
def _without_targets(head: Any, words: int) -> Iterator[None]:
    """The loss of a head over words looks at the targets, which have no numbers here.

    It takes the same product slice by slice, and keeps its gradients instead of what they are made
    from.
    """

    def loss(
        hidden: Tensor, targets: Tensor, smoothing: float = 0.0, count: int | None = None
    ) -> tuple[Tensor, int]:
        return head.logits(hidden[:words]).sum(), words

    if head is None:
        yield
        return
    head.loss = loss
    try:
        yield
    finally:
        del head.loss


def _frozen_flops(model: Any, batch: Any) -> int:
    """Of the forward pass through an encoder of which nothing is learned."""
    features = model.encoder if isinstance(model, Headed) else None
    if not isinstance(features, Features):
        return 0
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        features.choice(features.encoder.layers(batch.texts.to("meta")))
    return counter.get_total_flops()


def kept_by(
    model: nn.Module, forward: Callable[[], Any], checkpointed: Sequence[nn.Module] = ()
) -> int:
    """Bytes that a forward pass keeps for the backward pass, beside the model's own.

    checkpointed: blocks with activation checkpointing.
    """
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage()._cdata] = tensor
        return tensor

    def note(tensor: Tensor) -> None:
        keep(tensor)

    entering = [
        block.register_forward_pre_hook(lambda block, inputs: note(inputs[0]))
        for block in checkpointed
    ]
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        with activation_checkpointing(checkpointed):
            forward()
    for hook in entering:
        hook.remove()
    for parameter in model.parameters():
        kept.pop(parameter.untyped_storage()._cdata, None)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def bytes_of(module: nn.Module, *, trained: bool = False) -> int:
    """Of its parameters; of those alone that are trained."""
    parameters = (one for one in module.parameters() if one.requires_grad or not trained)
    return sum(parameter.numel() * parameter.element_size() for parameter in parameters)
