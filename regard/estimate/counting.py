"""Parameters, FLOPs and memory: counted over tensors that have shapes and no numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from regard.models import model_class, name_of, size_of
from regard.models.features import Features
from regard.models.headed import Headed, assembled
from regard.training.options import TrainingOptions


@dataclass(frozen=True)
class Figure:
    """A printed number to compare with, and where it stands."""

    quantity: str
    value: float
    source: str


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


def count(task: Any, batch: Any) -> tuple[int, int, int]:
    """What is counted (tokens, examples), FLOPs, and bytes kept for the backward pass, of a batch.

    `task.model` is on the meta device.
    """
    counts, head = task.counts(batch), _over_words(task)
    task.model.train()
    with _without_targets(head, list(counts.values())[-1]):
        with FlopCounterMode(display=False) as counter:
            kept = kept_by(task.model, lambda: task.losses(batch.to("meta"), None))
    # A backward pass is twice as much as a forward pass, but none goes through what is frozen.
    flops = 3 * counter.get_total_flops() - 2 * _frozen_flops(task.model, batch)
    return next(iter(counts.values())), flops, kept + (bytes_of(head) if head else 0)


def _over_words(task: Any) -> Any:
    """The head that is trained to predict words, if there is one."""
    objective = getattr(task, "next_words", None)
    return objective.head if objective is not None else getattr(task.model, "head", None)


@contextmanager
def _without_targets(head: Any, words: int) -> Iterator[None]:
    """The loss of a head over words looks at the targets, which have no numbers here.

    It takes the same product slice by slice, and keeps its gradients instead of what they are made
    from.
    """

    def loss(hidden: Tensor, targets: Tensor, smoothing: float = 0.0) -> tuple[Tensor, int]:
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
    features = getattr(model, "encoder", None)
    if not isinstance(features, Features):
        return 0
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        features.choice(features.encoder.layers(batch.texts.to("meta")))
    return counter.get_total_flops()


def kept_by(model: nn.Module, forward: Callable[[], Any]) -> int:
    """Bytes that a forward pass keeps for the backward pass, beside the model's own."""
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage()._cdata] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        forward()
    for parameter in model.parameters():
        kept.pop(parameter.untyped_storage()._cdata, None)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def parameters_of(model: Any) -> dict[str, int]:
    """Numbers by part; what parts share is counted in the first of them."""
    parts: dict[str, int] = {}
    inside = isinstance(getattr(model, "encoder", None), Features)
    for name, parameter in model.named_parameters():
        # Features are the frozen encoder and what reads it: parts of their own.
        part = name.removeprefix("encoder.").split(".")[0] if inside else name.split(".")[0]
        part += "" if parameter.requires_grad else " (frozen)"
        parts[part] = parts.get(part, 0) + parameter.numel()
    untold = hasattr(model, "head") and "head" not in parts
    return {**parts, "head (tied)": 0} if untold else parts


def bytes_of(module: nn.Module, *, trained: bool = False) -> int:
    """Of its parameters; of those alone that are trained."""
    parameters = (one for one in module.parameters() if one.requires_grad or not trained)
    return sum(parameter.numel() * parameter.element_size() for parameter in parameters)


def memory_of(model: nn.Module, options: TrainingOptions, activations: int) -> dict[str, int]:
    """Bytes that a training holds at its peak."""
    trained, chosen = bytes_of(model, trained=True), options.optimizer
    tables = 2 if chosen.name in ("adam", "adamw") else int(chosen.momentum > 0)
    return {
        "weights": bytes_of(model),
        "gradients": trained,
        f"{chosen.name}'s tables": tables * trained,
        "activations": activations,
    }


def updates_of(options: TrainingOptions, an_epoch: int | None, items: float) -> int | None:
    """Updates until the first limit is reached; None where that depends on data that is not there.

    items: what is counted in one update. Early stopping is not foreseen.
    """
    limits = []
    if options.updates is not None:
        limits.append(options.updates)
    if options.tokens is not None:
        limits.append(math.ceil(options.tokens / items))
    if options.epochs is not None and an_epoch is not None:
        limits.append(options.epochs * math.ceil(an_epoch / options.accumulate))
    return min(limits, default=None)


def published(model: Any) -> tuple[Figure, ...]:
    """What was printed for this size, if it is a named one."""
    # Its own table: what a model inherits was printed for another one.
    table = vars(model_class(name_of(model))).get("PUBLISHED", {})
    printed = table.get(size_of(model), {})
    return tuple(Figure(quantity, *figure) for quantity, figure in printed.items())
