"""Soft and hard attention: how a context is made from the weights (Xu et al. 2015, section 4).

    soft            the context is the mean of the values by their weights
    hard            the context is one value, drawn with its weight as its probability; training is
                    by REINFORCE (`regard.tasks.reinforce`), which reads the log-probabilities
    hard-expected   training is by the expected context, the soft one (section 4.2); in evaluation
                    it is one value

In evaluation hard attention takes the value with the largest weight, or draws one by a seed. Random
numbers are functions of a sequence's key and of the step, so that a sequence draws the same alone
and in a batch, in a search and in one pass. Hard attention takes weights as probabilities: those of
a window that do not sum to one are normalized.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from regard.data.batches import Sequences
from regard.ops import at_least_float32, hashed, uniform, weighted_index

# Names in `Output.extras`, (B, T): of each draw its log-probability, 0 where nothing was drawn,
# and the entropy in nats of the distribution from which it was drawn.
CHOICE_LOG_PROBS, CHOICE_ENTROPY = "choice_log_probs", "choice_entropy"


@dataclass(frozen=True)
class Selected:
    """The weights after the selection, (..., S), and (...,) each:

    index: the selected position, where every sequence selects one.
    log_probs, entropy: of a draw in training, in nats.
    """

    weights: Tensor
    index: Tensor | None = None
    log_probs: Tensor | None = None
    entropy: Tensor | None = None


class WeightSelection(Protocol):
    """From attention weights to those of which the context is the sum."""

    training: bool
    extras: tuple[str, ...]
    """The auxiliaries of `Output` in training: both names above where REINFORCE needs them."""

    def keys(self, source: Sequences) -> Tensor:
        """The keys of the random numbers of each sequence: (B,) int64."""
        ...

    def __call__(self, weights: Tensor, keys: Tensor, steps: Tensor, /) -> Selected:
        """The selection by weights (..., S), for sequences with keys (...,) at steps (...,)."""
        ...


class Soft(nn.Module):
    """The weights as they are."""

    extras: tuple[str, ...] = ()

    def keys(self, source: Sequences) -> Tensor:
        """None are needed: zeros."""
        return torch.zeros_like(source.lengths)

    def forward(self, weights: Tensor, keys: Tensor, steps: Tensor) -> Selected:
        return Selected(weights)


class HardInEvaluation(nn.Module):
    """One value in evaluation; in training the expected one.

    Args:
        seed: of the draws in evaluation; None: the largest weight is selected.
    """

    extras: tuple[str, ...] = ()

    def __init__(self, seed: int | None = None):
        super().__init__()
        self.seed = seed

    def keys(self, source: Sequences) -> Tensor:
        """A function of the seed and of the sequence's own tokens."""
        position = torch.arange(1, source.ids.size(1) + 1, device=source.ids.device)
        words = hashed(source.ids * (1 << 32) + position).masked_fill(~source.keep, 0)
        return hashed(words.sum(1) + (self.seed or 0))

    def forward(self, weights: Tensor, keys: Tensor, steps: Tensor) -> Selected:
        if not self.training:
            return self.choose(weights, keys, steps)
        return Selected(normalized(weights).to(weights.dtype))

    def choose(self, weights: Tensor, keys: Tensor, steps: Tensor) -> Selected:
        """One value, as in evaluation."""
        if self.seed is None:
            index = weights.argmax(-1)
        else:
            index = weighted_index(weights, uniform(keys, steps + 1))
        return Selected(_one_hot(index, weights), index)

    def extra_repr(self) -> str:
        return "" if self.seed is None else f"seed={self.seed}"


class Hard(HardInEvaluation):
    """One value in training, too.

    Args:
        seed: as of `HardInEvaluation`.
        expected_share: the fraction of sequences in training that take the expected value at all
            steps, which reduces the variance of the gradient (Xu et al. 2015, section 4.1: 0.5).
    """

    extras: tuple[str, ...] = (CHOICE_LOG_PROBS, CHOICE_ENTROPY)

    def __init__(self, seed: int | None = None, expected_share: float = 0.5):
        super().__init__(seed)
        self.expected_share = expected_share

    def keys(self, source: Sequences) -> Tensor:
        """In training drawn from torch's default generator."""
        if not self.training:
            return super().keys(source)
        return torch.empty(len(source), dtype=torch.int64).random_().to(source.ids.device)

    def forward(self, weights: Tensor, keys: Tensor, steps: Tensor) -> Selected:
        if not self.training:
            return self.choose(weights, keys, steps)
        probs = normalized(weights)
        index = weighted_index(probs.detach(), uniform(keys, steps + 1))
        drawn = uniform(keys, torch.zeros_like(steps)) >= self.expected_share
        drawn = drawn & (probs > 0).any(-1)
        least = torch.finfo(probs.dtype).tiny  # of a weight of 0 the gradient would be NaN
        log_probs = probs.clamp_min(least).log()
        log_prob = log_probs.gather(-1, index[..., None])[..., 0].masked_fill(~drawn, 0.0)
        entropy = -(probs * log_probs).sum(-1)
        chosen = torch.where(drawn[..., None], _one_hot(index, probs), probs)
        return Selected(chosen.to(weights.dtype), log_probs=log_prob, entropy=entropy)

    def extra_repr(self) -> str:
        share = f"expected_share={self.expected_share}"
        return share if self.seed is None else f"{super().extra_repr()}, {share}"


def normalized(weights: Tensor) -> Tensor:
    """Weights (..., S) divided by their sum, at least float32; zeros where all are 0."""
    wide = weights.to(at_least_float32(weights.dtype))
    total = wide.sum(-1, keepdim=True)
    return wide / (total + (total == 0))


def _one_hot(index: Tensor, weights: Tensor) -> Tensor:
    """1 at the index (...,), 0 elsewhere: (..., S); only zeros where all weights are 0."""
    chosen = torch.zeros_like(weights).scatter_(-1, index[..., None], 1.0)
    return chosen * (weights > 0).any(-1, keepdim=True)
