"""What may come next: small parts that change scores, applied in the order in which they stand.

    filters = (NoRepeatNGram(3), Temperature(0.8), TopK(40), TopP(0.95))

A filter is called with scores (R, V), log-probabilities up to a constant, and the prefix decoded
so far, and gives new scores; what it forbids becomes minus infinity. A further filter is one
more class of this shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from regard.errors import ConfigError

NEVER = float("-inf")
BEST = 1024  # tokens, which hold most of the mass nearly always


@dataclass(frozen=True, eq=False)
class Prefix:
    """tokens: (R, T) read so far, the first token included; where prompts have different lengths
    they stand to the right and -1 fills the left. new: how many of them were generated."""

    tokens: Tensor
    new: int
    eos: int | None


class Filter(Protocol):
    def __call__(self, scores: Tensor, prefix: Prefix) -> Tensor: ...


def apply(filters: Sequence[Filter], scores: Tensor, prefix: Prefix) -> Tensor:
    """The scores (R, V) after all filters, first to last."""
    for change in filters:
        scores = change(scores, prefix)
    return scores


@dataclass(frozen=True)
class MinTokens:
    """No `eos` before `count` tokens have been generated."""

    count: int

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ConfigError(f"`min_tokens` must be at least 0, but is {self.count}.")

    def __call__(self, scores: Tensor, prefix: Prefix) -> Tensor:
        if prefix.eos is None or prefix.new >= self.count:
            return scores
        return scores.index_fill(-1, torch.tensor([prefix.eos], device=scores.device), NEVER)


@dataclass(frozen=True)
class NoRepeatNGram:
    """No `size` tokens in a row occur twice, the prompt included (Paulus et al. 2017)."""

    size: int

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigError(f"`no_repeat_ngram` must be at least 1, but is {self.size}.")

    def __call__(self, scores: Tensor, prefix: Prefix) -> Tensor:
        tokens = prefix.tokens
        if tokens.size(1) < self.size:
            return scores
        windows = tokens.unfold(1, self.size, 1)  # (R, T) -> (R, T - size + 1, size)
        begun = tokens[:, tokens.size(1) + 1 - self.size :]  # (R, size - 1)
        repeated = (windows[..., :-1] == begun[:, None]).all(-1) & (windows[..., -1] >= 0)
        row, window = repeated.nonzero(as_tuple=True)
        banned = (row, windows[row, window, -1])
        return scores.index_put(banned, torch.tensor(NEVER, dtype=scores.dtype).to(scores.device))


@dataclass(frozen=True)
class Temperature:
    """scores / value: below 1 sharpens the distribution, above 1 flattens it."""

    value: float

    def __post_init__(self) -> None:
        if not self.value > 0:
            raise ConfigError(
                f"`temperature` must be above 0, but is {self.value}. "
                "For the most probable token at every step, decode greedily."
            )

    def __call__(self, scores: Tensor, prefix: Prefix) -> Tensor:
        return scores / self.value


@dataclass(frozen=True)
class TopK:
    """Only the `count` best tokens, and those as good as the last of them (Fan et al. 2018)."""

    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ConfigError(f"`top_k` must be at least 1, but is {self.count}.")

    def __call__(self, scores: Tensor, prefix: Prefix) -> Tensor:
        worst = scores.topk(min(self.count, scores.size(-1))).values[:, -1:]
        return scores.where(~(scores < worst), NEVER)


@dataclass(frozen=True)
class TopP:
    """The fewest best tokens whose probabilities sum to `mass` (Holtzman et al. 2019)."""

    mass: float

    def __post_init__(self) -> None:
        if not 0 < self.mass <= 1:
            raise ConfigError(f"`top_p` must be above 0 and at most 1, but is {self.mass}.")

    def __call__(self, scores: Tensor, prefix: Prefix) -> Tensor:
        probs = scores.softmax(-1)
        allowed, sure = self._among_the_best(probs)
        if not bool(sure.all()):
            allowed[~sure] = self._sorted(scores[~sure], probs[~sure])
        return scores.where(allowed, NEVER)

    def _among_the_best(self, probs: Tensor) -> tuple[Tensor, Tensor]:
        """Which tokens (R, V) are allowed, where some hundred are enough, and none of those that
        are not is as probable as one that is: (R,) bool. To sort all takes ten times as long.
        """
        best = probs.topk(min(BEST, probs.size(-1))).values  # (R, K)
        wide = best.double()
        more = probs.sum(-1, keepdim=True, dtype=torch.float64) - (1 - self.mass)
        kept = wide.cumsum(-1) - wide < more
        count = kept.sum(-1, keepdim=True).clamp(min=1)
        last = best.gather(-1, count - 1)
        after = best.gather(-1, count.clamp(max=best.size(-1) - 1))
        return probs >= last, (after < last)[:, 0]

    def _sorted(self, scores: Tensor, probs: Tensor) -> Tensor:
        ascending, order = scores.sort(-1)
        tail = probs.gather(-1, order).double().cumsum(-1) <= 1 - self.mass
        tail[:, -1] = False
        return ~tail.scatter(-1, order, tail)
