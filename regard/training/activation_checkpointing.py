"""Activation checkpointing: of each block only the input is stored for the backward pass.

The backward pass computes the rest again: less memory, more time (Chen et al. 2016, "Training Deep
Nets with Sublinear Memory Cost"). Random generators are restored for that, so that dropout draws
the same mask and the gradients are equal in every bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from regard.errors import ConfigError
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.models.protocols import Model


def blocks_of(model: nn.Module, option: str = "activation_checkpointing") -> list[nn.Module]:
    """The blocks of a model.

    option: the option of [training] that needs them, for the error.

    Raises:
        ConfigError: the model has none.
    """
    blocks = model.repeated_blocks if isinstance(model, Model | EncoderWithHeads) else []
    if not blocks:
        raise ConfigError(
            f"[training] `{option}` is for models that are made of blocks, such as bert, gpt2 or "
            f"transformer, but {type(model).__name__} has none. Leave it out."
        )
    return blocks


@contextmanager
def activation_checkpointing(blocks: Iterable[nn.Module]) -> Iterator[None]:
    """Forward passes inside keep the input of these blocks alone for the backward pass."""
    with replaced({block: checkpointed(block) for block in blocks}):
        yield


def checkpointed(block: nn.Module) -> Callable[..., Any]:
    """The forward of a block that keeps its input alone for the backward pass."""
    return partial(checkpoint, block.forward, use_reentrant=False)


@contextmanager
def replaced(calls: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Inside, these functions are called instead of the modules' own `forward`."""
    before = {module: vars(module).get("forward") for module in calls}
    for module, call in calls.items():
        module.forward = call
    try:
        yield
    finally:
        for module, forward in before.items():
            del module.forward  # that of the class is used again
            if forward is not None:
                module.forward = forward
