"""From the hidden states of a text's tokens to one vector.

Texts are unpadded: hidden states (N, D) of the tokens of all texts, and the lengths (B,) of the
    texts.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag, normalize

from regard.data.batches import Sequences
from regard.errors import ConfigError
from regard.layers.linear import Linear
from regard.suggest import nearest


def _starts(lengths: Tensor) -> Tensor:
    """The index of the first token of each text: (B,)"""
    return lengths.cumsum(0) - lengths


def _sum(states: Tensor, lengths: Tensor, weights: Tensor | None = None) -> Tensor:
    """The sum, or the weighted one, over the tokens of each text: (N, D) -> (B, D)."""
    # By far the fastest of torch's segment sums; a text does not change the rounding of others.
    tokens = torch.arange(len(states), device=states.device)
    return embedding_bag(tokens, states, _starts(lengths), mode="sum", per_sample_weights=weights)


def _counts(lengths: Tensor, states: Tensor) -> Tensor:
    """(B, 1) lengths as divisors; an empty text has 1."""
    return lengths.clamp(min=1)[:, None].to(states.dtype)


def mean(states: Tensor, lengths: Tensor) -> Tensor:
    """The mean over the tokens of each text: (N, D) -> (B, D); zeros for an empty text."""
    return _sum(states, lengths) / _counts(lengths, states)


def maximum(states: Tensor, lengths: Tensor) -> Tensor:
    """The maximum of each dimension over the tokens of each text: (N, D) -> (B, D)."""
    return torch.segment_reduce(states, "max", lengths=lengths)


def mean_by_root(states: Tensor, lengths: Tensor) -> Tensor:
    """The sum over the tokens of each text, over the root of their number: (N, D) -> (B, D)."""
    return _sum(states, lengths) / _counts(lengths, states).sqrt()


def weighted_mean(states: Tensor, lengths: Tensor) -> Tensor:
    """The mean with weights 1, 2, 3, … along each text: (N, D) -> (B, D)."""
    before = _starts(lengths).repeat_interleave(lengths)  # (N,)
    weights = torch.arange(1, len(states) + 1, device=states.device) - before
    sums = (lengths * (lengths + 1) / 2).clamp(min=1)
    return _sum(states, lengths, weights.to(states.dtype)) / sums[:, None].to(states.dtype)


def first(states: Tensor, lengths: Tensor) -> Tensor:
    """The first token of each text: (N, D) -> (B, D)."""
    return states[_starts(lengths)]


def last(states: Tensor, lengths: Tensor) -> Tensor:
    """The last token of each text: (N, D) -> (B, D)."""
    return states[lengths.cumsum(0) - 1]


# kind, as sentence-transformers names it -> its function: states (N, D), lengths (B,) -> (B, D). In
# the order in which its vectors are concatenated there.
KINDS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cls": first,
    "max": maximum,
    "mean": mean,
    "mean_sqrt_len_tokens": mean_by_root,
    "weightedmean": weighted_mean,
    "lasttoken": last,
}


@dataclass(frozen=True)
class Pooling:
    """How the hidden states of a text become one vector.

    kinds: of `KINDS`; the vectors of several are concatenated.
    normalize: whether the vector is scaled to length 1.
    max_length: the most tokens of a text, special ones included; None: the model's limit.

    Raises:
        ConfigError: there is no such kind, or none is given.
    """

    kinds: tuple[str, ...] = ("mean",)
    normalize: bool = False
    max_length: int | None = None

    def __post_init__(self) -> None:
        for kind in self.kinds:
            if kind not in KINDS:
                raise ConfigError(f"There is no pooling {kind!r}. {nearest(kind, KINDS)}")
        if not self.kinds:
            raise ConfigError(f"A pooling needs at least one kind of {', '.join(KINDS)}.")

    def __call__(self, hidden: Tensor, texts: Sequences) -> Tensor:
        """(B, T, D) -> (B, D), or (B, n * D) of n kinds."""
        return self.unpadded(hidden[texts.keep], texts.lengths)

    def unpadded(self, states: Tensor, lengths: Tensor) -> Tensor:
        """The same of unpadded texts: states (N, D), lengths (B,)."""
        vectors = [KINDS[kind](states, lengths) for kind in self.kinds]
        pooled = torch.cat(vectors, 1) if len(vectors) > 1 else vectors[0]
        return normalize(pooled, dim=1) if self.normalize else pooled


class MeanPooling(nn.Module):
    """The mean of the positions: (..., c, D) -> (..., D)."""

    def forward(self, positions: Tensor) -> Tensor:
        return positions.mean(-2)


class MaxPooling(nn.Module):
    """In each dimension the largest of the positions: (..., c, D) -> (..., D)."""

    def forward(self, positions: Tensor) -> Tensor:
        return positions.amax(-2)


class StridedConvolution(nn.Module):
    """A convolution whose kernel and stride are c: (..., c, D) -> (..., D).

    Windows of such a convolution do not overlap, so it is one matrix from c D to D.
    """

    def __init__(self, d_model: int, rate: int):
        super().__init__()
        self.kernel = Linear(rate * d_model, d_model)

    def forward(self, positions: Tensor) -> Tensor:
        return self.kernel(positions.flatten(-2))  # (..., c, D) -> (..., c D) -> (..., D)
