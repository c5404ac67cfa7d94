"""Models by their names, with weights under which mistakes show."""

from __future__ import annotations

from typing import Any

import torch

from regard.attention.attend import PLAIN
from regard.attention.multihead import CrossAttention, SelfAttention
from regard.models import model_class


def new_model(name: str, vocab_size: int, **options: Any) -> Any:
    """A model of the table of all models, with the options of its config."""
    kind = model_class(name)
    return kind(kind.Config(vocab_size=vocab_size, **options))


def randomized(model: Any, scale: float = 0.2) -> Any:
    """The same model, every parameter away from its start: zeros and ones would hide a mistake."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * scale)
    return model


def spread(model: Any) -> Any:
    """The same model in use, with weights so large that its answers differ from word to word."""
    torch.manual_seed(1)
    for parameter in model.parameters():
        std, mean = (0.15, 0.0) if parameter.dim() > 1 else (0.1, parameter.mean().item())
        torch.nn.init.normal_(parameter, mean=mean, std=std)
    for part in model.modules():
        if isinstance(part, SelfAttention) and part.score is PLAIN:  # not divided by sqrt(K)
            part.query_key_value.weight.data.chunk(3)[0].mul_(part.head_dim**-0.5)
        elif isinstance(part, CrossAttention) and part.score is PLAIN:
            part.query.weight.data.mul_(part.head_dim**-0.5)
    return model.eval()
