"""Parameters, steps and memory of a training."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import nn

from regard.errors import ConfigError
from regard.models import model_class, name_of, size_of
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.models.features import Features
from regard.models.protocols import Generator, Model
from regard.training.flops import bytes_of
from regard.training.options import TrainingOptions


@dataclass(frozen=True)
class PublishedFigure:
    """A published number, and its source."""

    quantity: str
    value: float
    source: str


def parameters_of(model: nn.Module) -> dict[str, int]:
    """Parameters by part; those that parts share are counted in the first of them."""
    parts: dict[str, int] = {}
    inside = isinstance(model, EncoderWithHeads) and isinstance(model.encoder, Features)
    for name, parameter in model.named_parameters():
        # In `Features`, the frozen encoder and the LSTM are parts of their own.
        part = name.removeprefix("encoder.").split(".")[0] if inside else name.split(".")[0]
        part += "" if parameter.requires_grad else " (frozen)"
        parts[part] = parts.get(part, 0) + parameter.numel()
    tied = isinstance(model, Generator) and "head" not in parts
    return {**parts, "head (tied)": 0} if tied else parts


def memory_of(model: nn.Module, options: TrainingOptions, activations: int) -> dict[str, int]:
    """Bytes of a training at its peak, by use."""
    trained, chosen = bytes_of(model, trained=True), options.optimizer
    tables = 2 if chosen.name in ("adam", "adamw") else int(chosen.momentum > 0)
    return {
        "weights": bytes_of(model),
        "gradients": trained,
        f"{chosen.name}'s tables": tables * trained,
        "activations": activations,
    }


def sharded_memory(
    model: nn.Module, options: TrainingOptions, activations: int, rows: int, devices: int
) -> dict[str, int]:
    """Bytes on the device that has the most, by use, where `devices` share a training.

    Each reads a part of the `rows` of a batch and keeps a part of the rows of every parameter, of
    its gradient and of the optimizer's tables, as torch's FSDP2 cuts them (ZeRO's third stage:
    Rajbhandari et al. 2020). What it computes with is gathered: the parameters outside the blocks,
    a block and the next one, and a block's gradients before they are added up.

    Raises:
        ConfigError: there are fewer rows than devices.
    """
    if rows < devices:
        raise ConfigError(
            f"`devices` must be at most {rows:,}, the rows of a batch, but is {devices:,}: each "
            "device reads at least one row. Ask for fewer, or for larger batches in [data]."
        )
    whole = memory_of(model, options, activations * -(-rows // devices) // rows)
    kept = {one: _shard(one, devices) for one in model.parameters()}
    trained = sum(size for one, size in kept.items() if one.requires_grad)
    weights, gradients, tables, activated = whole
    factor = whole[tables] // max(1, whole[gradients])
    return {
        weights: sum(kept.values()),
        gradients: trained,
        tables: factor * trained,
        "gathered": _gathered(model),
        activated: whole[activated],
    }


def _shard(parameter: nn.Parameter, devices: int) -> int:
    """Bytes of the largest part of a parameter that is cut between rows."""
    rows = parameter.size(0) if parameter.dim() else 1
    return -(-rows // devices) * (parameter.numel() // max(1, rows)) * parameter.element_size()


def _gathered(model: nn.Module) -> int:
    """The most bytes of parameters and gradients that a device gathers from others at a time."""
    blocks = model.sharded_parts if isinstance(model, Model | EncoderWithHeads) else []
    largest = max(map(bytes_of, blocks), default=0)
    gradients = max((bytes_of(block, trained=True) for block in blocks), default=0)
    return bytes_of(model) - sum(map(bytes_of, blocks)) + 2 * largest + gradients


def steps_of(options: TrainingOptions, batches_per_epoch: int | None, items: float) -> int | None:
    """Steps until the first limit is reached; None where that depends on data that is missing.

    Early stopping is not considered.

    batches_per_epoch: None where it is unknown.  items: those of one step.
    """
    limits = []
    if options.max_steps is not None:
        limits.append(options.max_steps)
    if options.tokens is not None:
        limits.append(math.ceil(options.tokens / items))
    if options.epochs is not None and batches_per_epoch is not None:
        batches = options.gradient_accumulation_steps
        limits.append(options.epochs * math.ceil(batches_per_epoch / batches))
    return min(limits, default=None)


def published(model: nn.Module) -> tuple[PublishedFigure, ...]:
    """The published numbers for the size of this model, if it is one of the sizes with a name."""
    printed = model_class(name_of(model)).PUBLISHED.get(size_of(model), {})
    return tuple(PublishedFigure(quantity, *figure) for quantity, figure in printed.items())
