"""The precision of matrix products; weights and steps are always float32."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

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
