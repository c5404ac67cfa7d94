"""Initialization of weights, heads that several models have, and the error for a missing head."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from regard.errors import ConfigError
from regard.layers.task_heads import ClassificationHead, PoolingFunction, every_token
from regard.models.protocols import Encoder
from regard.suggest import nearest

TASK_HEADS = ("classes", "tags", "span", "multiple_choice")  # the heads that every encoder has
# Standard deviation of the initial matrices of task heads, of models without one in their config.
HEAD_INIT = 0.02


def init_weights(module: nn.Module, std: float) -> nn.Module:
    """Matrices and embeddings normal around 0, biases 0 (Radford et al. 2018, section 4.1)."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.normal_(part.weight, std=std)
            if isinstance(part, nn.Linear) and part.bias is not None:
                nn.init.zeros_(part.bias)
    return module


def linear_head(
    encoder: Encoder,
    kind: str,
    outputs: int,
    *,
    pooling: PoolingFunction,
    d_pooled: int | None = None,
) -> nn.Module:
    """A new head, a linear layer after dropout, for an encoder without a pooler.

    Args:
        outputs: of the heads "classes", "multiple_choice" and "tags"; "span" has 2.
        pooling: what "classes" and "multiple_choice" read of a text, (B, T, D) -> (B, `d_pooled`).
        d_pooled: None: D, the width of the encoder.

    Raises:
        ConfigError: there is no head of that kind.
    """
    width, dropout = encoder.config.d_model, encoder.config.dropout
    match kind:
        case "classes" | "multiple_choice":
            return ClassificationHead(d_pooled or width, outputs, pooling=pooling, dropout=dropout)
        case "tags":
            return ClassificationHead(width, outputs, pooling=every_token, dropout=dropout)
        case "span":
            return ClassificationHead(width, 2, pooling=every_token, dropout=dropout)
        case _:
            raise no_head(encoder, kind, TASK_HEADS)


def no_head(encoder: object, kind: str, known: Sequence[str]) -> ConfigError:
    """The error for a head that a family does not have; `known` are those that it has."""
    return ConfigError(f"{type(encoder).__name__} has no head {kind!r}. {nearest(kind, known)}")
