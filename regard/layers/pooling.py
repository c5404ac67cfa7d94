"""From the hidden states of an encoder to vectors: of the tokens of a text, and of the layers.

Texts are unpadded: hidden states (N, D) of the tokens of all texts, and the lengths (B,) of the
texts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from sys import maxsize
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag, normalize

from regard.data.batches import Sequences
from regard.errors import ConfigError, check_choice


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
            check_choice("pooling", kind, KINDS)
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


# ------------------------------------------------------------------------------------------- layers
#
# Features from the layers of an encoder: one layer, or several that are combined.
#
#     choice = choice_of([-4, -3, -2, -1], combine="concat")
#     feature = choice(encoder.states(texts))       (B, T, 4 D); only four layers are in memory
#
# Layers are numbered as in BERT's paper (section 5.3, table 7): 0 is the embeddings, 1 to L are the
# layers. A choice takes the hidden states one by one as they are computed, and does not compute the
# layers after the last one that it needs.


Combine = Literal["concat", "sum", "mean"]
States = Iterator[Tensor]  # hidden states (B, T, D) of the embeddings, then of each layer


class LayerChoice(Protocol):
    """From the hidden states of all layers, each (B, T, D), to one feature (B, T, D')."""

    def __call__(self, states: States) -> Tensor: ...

    def width(self, d_model: int) -> int:
        """D', the width of the feature, for layers of width `d_model`."""
        ...


@dataclass(frozen=True)
class SingleLayer:
    """One layer: 0 the embeddings, 1 the first layer; -1 the last, -2 the one before."""

    number: int

    def __call__(self, states: States) -> Tensor:
        return _numbered(states, [self.number])[0]

    def width(self, d_model: int) -> int:
        return d_model


@dataclass(frozen=True)
class CombinedLayers:
    """Several layers: one after another ("concat"), their sum or mean, or a sum with weights.

    numbers: as in `SingleLayer`.
    """

    numbers: tuple[int, ...]
    combine: Combine | tuple[float, ...]

    def __call__(self, states: States) -> Tensor:
        layers = _numbered(states, self.numbers)
        if self.combine == "concat":
            return torch.cat(layers, -1)
        if len(widths := {layer.size(-1) for layer in layers}) > 1:
            raise ConfigError(
                "These layers cannot be added up: they are "
                f'{" and ".join(map(str, sorted(widths)))} wide. Use combine="concat".'
            )
        weights = [1.0] * len(layers) if isinstance(self.combine, str) else self.combine
        total = layers[0] * weights[0]
        for layer, weight in zip(layers[1:], weights[1:], strict=True):
            total = total + weight * layer
        return total / len(layers) if self.combine == "mean" else total

    def width(self, d_model: int) -> int:
        return len(self.numbers) * d_model if self.combine == "concat" else d_model


class ScalarMix(nn.Module):
    """gamma * sum_j softmax(s)_j h_j over the embeddings and all layers (Peters et al. 2018, eq. 1)

    scalars: s, (L + 1,), initialized with zeros, which give the mean of the layers.
    """

    def __init__(self, layers: int):
        super().__init__()
        self.scalars = nn.Parameter(torch.zeros(layers + 1))
        self.gamma = nn.Parameter(torch.ones(()))

    @classmethod
    def of(cls, scalars: Sequence[float], gamma: float = 1.0) -> ScalarMix:
        """A frozen mix of given scalars, one for the embeddings and one for each layer."""
        mix = cls(len(scalars) - 1).requires_grad_(False)
        mix.scalars.copy_(torch.tensor(scalars))
        mix.gamma.fill_(gamma)
        return mix

    def forward(self, states: States) -> Tensor:
        """L + 1 times (B, T, D) -> (B, T, D)"""
        weights = self.scalars.softmax(0) * self.gamma
        total, count = weights.new_zeros(()), 0
        for state in states:
            if total.dim() and state.size(-1) != total.size(-1):
                raise ConfigError(
                    f"The layers of this model cannot be mixed: they are {total.size(-1)} and "
                    f"{state.size(-1)} wide. Choose one of them, such as layers=-1."
                )
            if count < len(weights):
                total = total + weights[count].to(state.device) * state
            count += 1
        if count != len(weights):
            raise ConfigError(
                f"A mix of {len(weights)} scalars does not fit this model, which has its "
                f"embeddings and {count - 1} layers."
            )
        return total

    def width(self, d_model: int) -> int:
        return d_model


def choice_of(
    layers: int | Sequence[int] | LayerChoice = -1, combine: Combine | Sequence[float] = "concat"
) -> LayerChoice:
    """The choice of one layer, or of several layers and how they become one vector.

    Args:
        layers: a number or several, as in `SingleLayer`; or a choice, such as a trained mix.
        combine: "concat", "sum", "mean", or a weight for each of several layers.

    Raises:
        ConfigError: `combine` is unknown, or there is not one weight for each layer.
    """
    if callable(layers):
        return layers
    numbers = tuple(layers) if isinstance(layers, Sequence) else (layers,)
    if isinstance(combine, str):
        check_choice("combine", combine, get_args(Combine))
        return SingleLayer(numbers[0]) if len(numbers) == 1 else CombinedLayers(numbers, combine)
    if len(combine) != len(numbers):
        raise ConfigError(
            f"`combine` must have a weight for each of the {len(numbers)} layers, but is {combine}."
        )
    return CombinedLayers(numbers, tuple(combine))


def _numbered(states: States, numbers: Sequence[int]) -> list[Tensor]:
    """The states of these numbers; states after the last of them are not computed."""
    if min(numbers) >= 0:
        states = islice(states, min(max(numbers) + 1, maxsize))
    chosen: dict[int, Tensor] = {}
    last: deque[Tensor] = deque(maxlen=min(max(0, -min(numbers)), maxsize))
    count = 0
    for state in states:
        if count in numbers:
            chosen[count] = state
        last.append(state)
        count += 1
    chosen |= {number: last[number] for number in numbers if -len(last) <= number < 0}
    if missing := [number for number in numbers if number not in chosen]:
        raise _no_layer(missing[0], count - 1)
    return [chosen[number] for number in numbers]


def _no_layer(number: int, count: int) -> ConfigError:
    return ConfigError(
        f"This model has no layer {number}, but {count} layers. They are counted from 1, 0 is the "
        "embeddings; from the end -1 is the last."
    )
