"""Blocks compiled by torch, for a GPU: between matrix products fewer and larger kernels.

Blocks are compiled and not whole models: those that are alike share what is compiled, and around
them stands little that would gain. Lengths that differ from batch to batch are compiled twice at
the most. The model itself is not touched: its parameters keep their names, and validation and
decoding run as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from regard.attention.gates import gating
from regard.attention.tap import listening
from regard.errors import ConfigError
from regard.training.activation_checkpointing import blocks_of, checkpointed, replaced

OWN = ("cpu",)  # devices for which there are kernels here that outrun what torch compiles
BACKEND = "inductor"
KINDS = 4  # times that the code of a block may be compiled again, for other shapes or modes


@dataclass(frozen=True)
class Compiled:
    """A block, and what computes the same."""

    block: nn.Module
    forward: Callable[..., Any]


def compiled_blocks(
    model: nn.Module, device: torch.device, *, checkpointing: bool = False
) -> list[Compiled]:
    """The blocks of a model; each is compiled when it is first called.

    checkpointing: with activation checkpointing.

    Raises:
        ConfigError: the model has no blocks, or they are not on a GPU.
    """
    blocks = blocks_of(model, "compile")
    if device.type in OWN:
        raise ConfigError(
            "[training] `compile` is for a GPU, but this training runs on the CPU, where Regard's "
            "own kernels are faster than what torch compiles. Leave it out: compile=false."
        )
    calls = [checkpointed(block) if checkpointing else block.forward for block in blocks]
    compiled = [torch.compile(call, backend=BACKEND) for call in calls]
    return [Compiled(*both) for both in zip(blocks, compiled, strict=True)]


@contextmanager
def compiling(compiled: Sequence[Compiled]) -> Iterator[None]:
    """Forward passes inside go through what is compiled, unless somebody looks or weighs heads."""
    if not compiled or listening.get() is not None or gating.get() is not None:
        yield
        return
    limit = max(torch._dynamo.config.recompile_limit, KINDS * len(compiled))
    with torch._dynamo.config.patch(recompile_limit=limit):
        with replaced({one.block: one.forward for one in compiled}):
            yield
