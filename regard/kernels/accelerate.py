"""The decoding step and the stacks of blocks of a quantized model, replaced by compiled calls."""

from __future__ import annotations

from torch import nn

from regard.kernels import build
from regard.kernels.compiled_decoder import FastBlocks, Step
from regard.kernels.compiled_encoder import FastStack
from regard.kernels.compiled_recurrent import RecurrentStep
from regard.layers.quantized import QuantizedRecurrent
from regard.models.blocks import Blocks, Stack


def fits(model: nn.Module) -> bool:
    """Whether kernels are loaded."""
    return build.available()


def compiled_steps(model: nn.Module) -> nn.Module:
    """See `regard.models.quantize.compiled_steps`."""
    _replace(model)
    for part in list(model.modules()):
        recurrent = any(isinstance(layer, QuantizedRecurrent) for layer in part.modules())
        if recurrent and hasattr(part, "step"):
            part.__dict__["step"] = part.compiled = RecurrentStep(part)
    return model.eval()


def _replace(parent: nn.Module) -> None:
    for name, child in list(parent.named_children()):
        _replace(child)
        if type(child) is Stack:
            setattr(parent, name, FastStack(child))
        if type(child) is Blocks:
            blocks = FastBlocks(child)
            setattr(parent, name, blocks)
            if hasattr(parent, "step"):
                parent.__dict__["step"] = Step(parent, blocks)
