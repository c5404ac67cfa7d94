"""What the constructors of several models share."""

from __future__ import annotations

from torch import nn

from regard.errors import ConfigError


def init_weights(module: nn.Module, std: float) -> nn.Module:
    """Matrices and embeddings normal around 0, biases 0 (Radford et al. 2018, section 4.1)."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.normal_(part.weight, std=std)
            if isinstance(part, nn.Linear) and part.bias is not None:
                nn.init.zeros_(part.bias)
    return module


def no_head(encoder: nn.Module, kind: str) -> ConfigError:
    """For a head that a family does not have."""
    return ConfigError(f"{type(encoder).__name__} has no head {kind!r}.")
