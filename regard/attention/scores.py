"""Scores of queries and keys: the functions and modules that `attend` takes as `score`.

Each gives (..., T, S) from a query (..., T, ·) and a key (..., S, ·).

    dot            q · k                                            (Luong et al. 2015)
    scaled dot     q · k / sqrt(K)                                  (Vaswani et al. 2017)
    general        q W k                                            (Luong et al. 2015)
    additive       v · tanh(W q + U k)                              (Bahdanau et al. 2014)
    location       (W q)_s, whatever the keys are                   (Luong et al. 2015)
    cosine         q · k / (‖q‖ ‖k‖)                                (Graves et al. 2014)
    content-based  the cosine times a strength, softplus(w · q + b) (Graves et al. 2014)
    equal          0: the context is the mean of all values
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.errors import RegardError
from regard.layers.linear import Linear

Score = Callable[[Tensor, Tensor], Tensor]


class SourceScore(Protocol):
    """A score whose keys are computed from a source once, before the steps of a decoder."""

    def prepare(self, memory: Tensor) -> Tensor:
        """What depends on the source alone: (B, S, d_key) -> (B, S, ·)."""
        ...

    def __call__(self, query: Tensor, key: Tensor, /) -> Tensor:
        """(..., T, d_query) and prepared keys (..., S, ·) -> (..., T, S)."""
        ...


@dataclass(frozen=True)
class Dot:
    """q · k times `scale`; None means 1/sqrt(d_k) (Vaswani et al. 2017), 1.0 is Luong's dot."""

    scale: float | None = None

    def prepare(self, memory: Tensor) -> Tensor:
        """The source itself: (B, S, d_key), same."""
        return memory

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        scale = query.size(-1) ** -0.5 if self.scale is None else self.scale
        return (query * scale) @ key.transpose(-2, -1)


PLAIN, SCALED = Dot(scale=1.0), Dot()


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
        summed = torch.tanh(self.query(query).unsqueeze(-2) + prepared.unsqueeze(-3))
        return self.weigh(summed).squeeze(-1)


class Location(nn.Module):
    """(W q)_s: the scores depend on the query alone, not on the keys (Luong et al. 2015, eq. 8).

    Args:
        positions: rows of W, and so the most positions that a source may have.
    """

    def __init__(self, d_query: int, positions: int):
        super().__init__()
        self.positions = positions
        self.weigh = Linear(d_query, positions, bias=False)

    def prepare(self, memory: Tensor) -> Tensor:
        """The memory itself, (B, S, d_key): only its number of positions is used.

        Raises:
            RegardError: there are more positions than rows of W.
        """
        if memory.size(-2) > self.positions:
            raise RegardError(
                f"The source has {memory.size(-2)} positions, but this location attention has "
                f"weights for {self.positions} (`max_length`). Shorten the source."
            )
        return memory

    def forward(self, query: Tensor, prepared: Tensor) -> Tensor:
        scores = self.weigh(query)  # (..., T, D) -> (..., T, positions)
        # A source may be padded to more positions than there are rows; the mask excludes those.
        more = max(0, prepared.size(-2) - scores.size(-1))
        return F.pad(scores, (0, more))[..., : prepared.size(-2)]


@dataclass(frozen=True)
class Cosine:
    """q · k / (‖q‖ ‖k‖), from -1 to 1: of two keys one weighs at most e^2 times the other."""

    def prepare(self, memory: Tensor) -> Tensor:
        """Keys of length 1, (B, S, K), same; a zero vector stays zero."""
        return F.normalize(memory, dim=-1)

    def __call__(self, query: Tensor, prepared: Tensor) -> Tensor:
        return PLAIN(F.normalize(query, dim=-1), prepared)


COSINE = Cosine()


@dataclass(frozen=True)
class Equal:
    """0 for every query and key."""

    def prepare(self, memory: Tensor) -> Tensor:
        """(B, S, d_key) -> (B, S, 1): the values of keys are not used."""
        return memory[..., :1]

    def __call__(self, query: Tensor, prepared: Tensor) -> Tensor:
        return query.new_zeros(*query.shape[:-1], prepared.size(-2))


EQUAL = Equal()


class ContentBased(nn.Module):
    """b cos(q, k) with the key strength b > 0 (Graves et al. 2014, eq. 5 and 6).

    The paper says of b that it is positive; here it is softplus(w · q + c).
    """

    def __init__(self, d_query: int):
        super().__init__()
        self.strength = nn.Linear(d_query, 1)

    def prepare(self, memory: Tensor) -> Tensor:
        """Keys of length 1, (B, S, K), same."""
        return COSINE.prepare(memory)

    def forward(self, query: Tensor, prepared: Tensor) -> Tensor:
        return F.softplus(self.strength(query)) * COSINE(query, prepared)  # (..., T, 1) (..., T, S)
