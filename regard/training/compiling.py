"""Blocks compiled by torch, for a GPU: fewer and larger kernels between matrix products.

Blocks are compiled and not whole models: equal blocks share the compiled code, and there is little
to gain around them. Lengths that differ from batch to batch are compiled twice at the most. The
model is not changed: its parameters keep their names, and validation and decoding do not use the
compiled blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from regard.attention.head_gates import captured_or_gated
from regard.errors import ConfigError
from regard.training.activation_checkpointing import blocks_of, checkpointed, replaced

HAS_KERNELS = ("cpu",)  # devices whose kernels in Regard are faster than torch's code
BACKEND = "inductor"
RECOMPILATIONS = 4  # of each block, for other shapes or modes


@dataclass(frozen=True)
class CompiledBlock:
    """A block, and the compiled function that replaces its `forward`."""

    block: nn.Module
    forward: Callable[..., Any]


def compiled_blocks(
    model: nn.Module, device: torch.device, *, checkpointing: bool = False
) -> list[CompiledBlock]:
    """The blocks of a model; each is compiled when it is first called.

    checkpointing: with activation checkpointing.

    Raises:
        ConfigError: the model has no blocks, or they are not on a GPU.
    """
    blocks = blocks_of(model, "compile")
    if device.type in HAS_KERNELS:
        raise ConfigError(
            "[training] `compile` is for a GPU, but this training runs on the CPU, where Regard's "
            "own kernels are faster than what torch compiles. Leave it out: compile=false."
        )
    calls = [checkpointed(block) if checkpointing else block.forward for block in blocks]
    compiled = [torch.compile(call, backend=BACKEND) for call in calls]
    return [CompiledBlock(*both) for both in zip(blocks, compiled, strict=True)]


@contextmanager
def compiling(compiled: Sequence[CompiledBlock]) -> Iterator[None]:
    """Forward passes inside use the compiled blocks, unless capture or head gating is on."""
    if not compiled or captured_or_gated():
        yield
        return
    limit = max(torch._dynamo.config.recompile_limit, RECOMPILATIONS * len(compiled))
    with torch._dynamo.config.patch(recompile_limit=limit):
        with replaced(
            {compiled_block.block: compiled_block.forward for compiled_block in compiled}
        ):
            yield
