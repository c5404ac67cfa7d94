"""Less memory for more time: a block's inner states are computed anew for its backward pass.

Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost". Only what enters each block is
kept. Random generators are put back, so that the same is dropped and the gradients are the same in
every bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint

from regard.errors import ConfigError
from regard.layers.blocks import Blocks, Stack


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The blocks whose inner states need not be kept.

    Raises:
        ConfigError: the model has none.
    """
    stacks = [part for part in model.modules() if isinstance(part, Blocks | Stack)]
    found = [block for stack in stacks for block in stack]
    if not found:
        raise ConfigError(
            f"[training] `recompute` is for models that are made of blocks, such as bert, gpt2 or "
            f"transformer, but {type(model).__name__} has none. Leave it out."
        )
    return found


@contextmanager
def recomputing(blocks: Iterable[nn.Module]) -> Iterator[None]:
    """Forward passes inside keep what enters these blocks, and nothing of what they compute."""
    blocks = list(blocks)
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    try:
        yield
    finally:
        for block in blocks:
            del block.forward  # that of the class comes to light again
