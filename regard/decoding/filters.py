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

from regard.decoding.option_types import check

NEG_INF = float("-inf")
FINE = 16  # bits of a float32 by which probabilities of one bin may differ: 128 bins an octave


@dataclass(frozen=True, eq=False)
class Prefix:
    """tokens: (R, T) read so far, the first token included; where prompts have different lengths
    they stand to the right and -1 fills the left. new: how many of them were generated.
    eos: the tokens that end a sequence.  limits: (R,) how many tokens may be generated."""

    tokens: Tensor
    new: int
    eos: tuple[int, ...] = ()
    limits: Tensor | None = None

    def ends_below(self, vocabulary: int) -> list[int]:
        """The ends that a model with this vocabulary can give."""
        return [token for token in self.eos if token < vocabulary]


class Filter(Protocol):
    def __call__(self, scores: Tensor, prefix: Prefix) -> Tensor: ...


def apply(filters: Sequence[Filter], scores: Tensor, prefix: Prefix) -> Tensor:
    """The scores (R, V) after all filters, first to last."""
    for change in filters:
        scores = change(scores, prefix)
    return scores


@dataclass(frozen=True)
class MinTokens:
    """No end before `count` tokens have been generated."""

    count: int

    def __post_init__(self) -> None:
        check("min_new_tokens", self.count, "min_tokens")

    def __call__(self, scores: Tensor, prefix: Prefix) -> Tensor:
        ends = prefix.ends_below(scores.size(-1))
        if not ends or prefix.new >= self.count:
            return scores
        return scores.index_fill(-1, torch.tensor(ends, device=scores.device), NEG_INF)


@dataclass(frozen=True)
class NoRepeatNGram:
    """No `size` tokens in a row occur twice, the prompt included (Paulus et al. 2017)."""

    size: int

    def __post_init__(self) -> None:
        check("no_repeat_ngram_size", self.size, "no_repeat_ngram")

    def __call__(self, scores: Tensor, prefix: Prefix) -> Tensor:
        tokens = prefix.tokens
        if tokens.size(1) < self.size:
            return scores
        windows = tokens.unfold(1, self.size, 1)  # (R, T) -> (R, T - size + 1, size)
        begun = tokens[:, tokens.size(1) + 1 - self.size :]  # (R, size - 1)
        repeated = (windows[..., :-1] == begun[:, None]).all(-1) & (windows[..., -1] >= 0)
        row, window = repeated.nonzero(as_tuple=True)
        banned = (row, windows[row, window, -1])
        return scores.index_put(banned, torch.tensor(NEG_INF, dtype=scores.dtype).to(scores.device))


@dataclass(frozen=True)
class Temperature:
    """scores / value: below 1 sharpens the distribution, above 1 flattens it."""

    value: float

    def __post_init__(self) -> None:
        hint = "For the most probable token at every step, decode greedily."
        check("temperature", self.value, "temperature", hint)

    def __call__(self, scores: Tensor, prefix: Prefix) -> Tensor:
        return scores / float(self.value)


@dataclass(frozen=True)
class TopK:
    """Only the `count` best tokens, and those as good as the last of them (Fan et al. 2018)."""

    count: int

    def __post_init__(self) -> None:
        check("top_k", self.count, "top_k")

    def __call__(self, scores: Tensor, prefix: Prefix) -> Tensor:
        worst = scores.topk(min(self.count, scores.size(-1))).values[:, -1:]
        return scores.where(~(scores < worst), NEG_INF)


@dataclass(frozen=True)
class TopP:
    """The fewest best tokens whose probabilities sum to `mass` (Holtzman et al. 2019)."""

    mass: float

    def __post_init__(self) -> None:
        check("top_p", self.mass, "top_p")

    def __call__(self, scores: Tensor, prefix: Prefix) -> Tensor:
        probs = scores.softmax(-1)
        if probs.dtype == torch.float32 and probs.device.type == "cpu" and probs.numel():
            least = torch.tensor([[self._least(row)] for row in probs])
            allowed, sure = probs >= least, least[:, 0] > 0
            if not bool(sure.all()):
                allowed[~sure] = self._sorted(scores[~sure], probs[~sure])
        else:
            allowed = self._sorted(scores, probs)
        return scores.where(allowed, NEG_INF)

    def _least(self, probs: Tensor) -> float:
        """The least probability (V,) that is allowed; 0 where a token that is not has it too.

        Only tokens about as probable as that are sorted: to sort all takes ten times as long.
        """
        bins, best = _bins(probs), int(_bins(probs.max()))
        sums = torch.bincount(bins, probs.double(), best + 1)
        below = sums.cumsum(0)
        last = min(int((below <= 1 - self.mass).sum()), best)  # the lowest bin that is allowed
        left = 1 - self.mass - float(below[last] - sums[last])
        near = probs[bins == last]
        if len(near) > len(probs) // 2:
            return 0.0
        near = near.sort().values
        cut = min(int((near.double().cumsum(0) <= left).sum()), len(near) - 1)
        return 0.0 if cut and near[cut - 1] == near[cut] else float(near[cut])

    def _sorted(self, scores: Tensor, probs: Tensor) -> Tensor:
        ascending, order = scores.sort(-1)
        tail = probs.gather(-1, order).double().cumsum(-1) <= 1 - self.mass
        tail[:, -1] = False
        return ~tail.scatter(-1, order, tail)


def _bins(probs: Tensor) -> Tensor:
    """Numbers in the order of the probabilities."""
    return probs.view(torch.int32).clamp(min=0) >> FINE  # NaN may have a sign
