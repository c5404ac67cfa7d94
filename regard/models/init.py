"""Initialization of weights, and the error for a missing head."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from regard.errors import ConfigError
from regard.suggest import nearest

TASK_HEADS = ("classes", "tags", "span", "multiple_choice")  # the heads that every encoder has


def init_weights(module: nn.Module, std: float) -> nn.Module:
    """Matrices and embeddings normal around 0, biases 0 (Radford et al. 2018, section 4.1)."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.normal_(part.weight, std=std)
            if isinstance(part, nn.Linear) and part.bias is not None:
                nn.init.zeros_(part.bias)
    return module


def no_head(encoder: nn.Module, kind: str, known: Sequence[str]) -> ConfigError:
    """The error for a head that a family does not have; `known` are those that it has."""
    return ConfigError(f"{type(encoder).__name__} has no head {kind!r}. {nearest(kind, known)}")
