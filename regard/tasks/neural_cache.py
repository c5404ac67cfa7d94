"""The neural cache: recent words become more probable where the model was in a similar state.

Grave et al. 2017, "Improving Neural Language Models with a Continuous Cache", equations 2 and 3:

    p_cache(w | h_t)  ~  sum over i < t with x_{i+1} = w of exp(theta h_t h_i)
    p(w)  =  (1 - lambda) p_vocab(w) + lambda p_cache(w)

It learns nothing and is an option of evaluation alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.errors import ConfigError
from regard.ops import KeyMask, attention_weights


@dataclass(frozen=True)
class NeuralCache:
    """size: positions that it remembers.  theta: how peaked its distribution is.

    weight: lambda, the share of the cache in the mixture.

    Raises:
        ConfigError: a number is out of range.
    """

    size: int
    theta: float = 0.3
    weight: float = 0.1

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigError(f"`neural_cache` must be at least 1 position, but is {self.size}.")
        if not 0 <= self.theta < float("inf"):
            raise ConfigError(f"`neural_cache_theta` must be at least 0, but is {self.theta}.")
        if not 0 <= self.weight < 1:
            raise ConfigError(f"`neural_cache_weight` must be in [0, 1), but is {self.weight}.")


@dataclass
class CacheState:
    """The last positions of one text: hidden states (N, D), and the token after each, (N,)."""

    hidden: Tensor
    tokens: Tensor

    @classmethod
    def empty(cls, like: Tensor) -> CacheState:
        """None yet; `like` are hidden states (T, D)."""
        return cls(like[:0], torch.zeros(0, dtype=torch.long, device=like.device))


def mixed_nats(
    cache: NeuralCache, state: CacheState, hidden: Tensor, targets: Tensor, nats: Tensor
) -> tuple[Tensor, CacheState]:
    """-log p of the next positions of a text, (T,), and the state after them.

    Args:
        hidden, targets: (T, D) and (T,), the token after each position.
        nats: -log p_vocab(target), (T,).
    """
    before, count = len(state.tokens), len(targets)
    every = torch.cat([state.hidden, hidden])  # (N + T, D)
    tokens = torch.cat([state.tokens, targets])  # (N + T,)
    positions = torch.arange(before + count, device=hidden.device)
    distance = positions[before:, None] - positions  # (T, N + T)
    seen = (distance > 0) & (distance <= cache.size)
    scores = cache.theta * (hidden @ every.T)
    weights = attention_weights(scores.double(), KeyMask(seen))
    cache_probability = (weights * (tokens == targets[:, None])).sum(-1)  # p_cache(target)
    weight = cache.weight * seen.any(-1).double()  # 0 where there is nothing to remember yet
    # In logarithms: exp(-nats) is 0 for a token that the model holds to be less likely than e^-745.
    mixed = torch.logaddexp(
        torch.log1p(-weight) - nats.double(), torch.log(weight * cache_probability)
    )
    return -mixed, CacheState(every[-cache.size :], tokens[-cache.size :])
