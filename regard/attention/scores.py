"""How well a key answers a query: the parts that `attend` takes as `score`.

Each gives (..., T, S) from a query (..., T, ·) and a key (..., S, ·).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.layers.linear import Linear

Score = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Dot:
    """q · k times `scale`; None means 1/sqrt(d_k) (Vaswani et al. 2017), 1.0 is Luong's dot."""

    scale: float | None = None

    def prepare(self, memory: Tensor) -> Tensor:
        """The source is its own key."""
        return memory

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        scale = query.size(-1) ** -0.5 if self.scale is None else self.scale
        return (query * scale) @ key.transpose(-2, -1)


PLAIN = Dot(scale=1.0)


class General(nn.Module):
    """q W k, the bilinear score (Luong et al. 2015, "general")."""

    def __init__(self, d_query: int, d_key: int):
        super().__init__()
        self.key = Linear(d_key, d_query, bias=False)

    def prepare(self, memory: Tensor) -> Tensor:
        """What depends on the source alone, computed once: (B, S, d_key) -> (B, S, d_query)."""
        return self.key(memory)

    def forward(self, query: Tensor, prepared: Tensor) -> Tensor:
        return PLAIN(query, prepared)


class Additive(nn.Module):
    """v · tanh(W q + U k) (Bahdanau et al. 2014, section A.1.2)."""

    def __init__(self, d_query: int, d_key: int, d_score: int):
        super().__init__()
        self.query = Linear(d_query, d_score, bias=False)
        self.key = Linear(d_key, d_score)
        self.weigh = nn.Linear(d_score, 1, bias=False)

    def prepare(self, memory: Tensor) -> Tensor:
        """What depends on the source alone, computed once: (B, S, d_key) -> (B, S, d_score)."""
        return self.key(memory)

    def forward(self, query: Tensor, prepared: Tensor) -> Tensor:
        # (B, T, 1, d) + (B, 1, S, d) -> (B, T, S, d) -> (B, T, S)
        both = torch.tanh(self.query(query).unsqueeze(-2) + prepared.unsqueeze(-3))
        return self.weigh(both).squeeze(-1)
