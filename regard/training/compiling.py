"""How a forward pass is computed: its precision, blocks that torch compiles, and blocks whose input
alone is kept for the backward pass."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from regard.attention.capture import captured_or_gated
from regard.errors import ConfigError
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.models.protocols import Model

Forwards = Mapping[nn.Module, Callable[..., Any]]  # of modules
SMALL = 500_000  # parameters of a model that bfloat16 hardly makes faster


def casting(precision: str, device: torch.device) -> AbstractContextManager:
    """The context of a forward pass; each batch needs its own."""
    if precision == "bfloat16":
        return torch.autocast(device.type, torch.bfloat16)
    return nullcontext()


def resolve(precision: str, model: nn.Module) -> str:
    """The precision of a training, "float32" or "bfloat16".

    "auto" is bfloat16 where the processor has instructions for it and the model at least 500,000
    parameters. Nothing is timed, so that the same training has the same precision again.
    """
    if precision != "auto":
        return precision
    device = next(model.parameters()).device
    large = sum(parameter.numel() for parameter in model.parameters()) >= SMALL
    return "bfloat16" if large and computes_bfloat16(device) else "float32"


def computes_bfloat16(device: torch.device) -> bool:
    """Whether a device has instructions for matrix products in bfloat16."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu" and (
        torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    )


def blocks_of(model: nn.Module, option: str = "activation_checkpointing") -> list[nn.Module]:
    """The blocks of a model.

    option: the option of [training] that needs them, for the error.

    Raises:
        ConfigError: the model has none.
    """
    blocks = model.repeated_blocks if isinstance(model, Model | EncoderWithHeads) else []
    if not blocks:
        name = type(model).__name__
        raise ConfigError(f"[training] `{option}` needs a model of blocks, which {name} is not.")
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
def replaced(calls: Forwards) -> Iterator[None]:
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


HAS_KERNELS = ("cpu",)  # devices whose kernels in Regard are faster than torch's code
BACKEND = "inductor"
RECOMPILATIONS = 4  # of each block, for other shapes or modes


def compiled_blocks(
    model: nn.Module, device: torch.device, *, checkpointing: bool = False
) -> Forwards:
    """The compiled forward of each block of a model; it is compiled when it is first called.

    checkpointing: with activation checkpointing.

    Raises:
        ConfigError: the model has no blocks, or they are not on a GPU.
    """
    blocks = blocks_of(model, "compile")
    if device.type in HAS_KERNELS:
        raise ConfigError("[training] `compile` is for a GPU: on the CPU leave it out.")
    calls = [checkpointed(block) if checkpointing else block.forward for block in blocks]
    compiled = [torch.compile(call, backend=BACKEND) for call in calls]
    return dict(zip(blocks, compiled, strict=True))


@contextmanager
def compiling(compiled: Forwards) -> Iterator[None]:
    """Forward passes inside use the compiled blocks, unless capture or head gating is on."""
    if not compiled or captured_or_gated():
        yield
        return
    limit = max(torch._dynamo.config.recompile_limit, RECOMPILATIONS * len(compiled))
    with torch._dynamo.config.patch(recompile_limit=limit):
        with replaced(compiled):
            yield
