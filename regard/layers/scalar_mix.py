"""Features from the layers of an encoder: one layer, a sum, a concatenation, a scalar mix.

    choice = choice_of("concat-last-4")
    feature = choice(encoder.states(texts))       (B, T, 4 D); only four layers are in memory

Layers are numbered as in BERT's paper (section 5.3, table 7): 0 is the embeddings, 1 to L are the
layers. A choice takes the hidden states one by one as they are computed, and does not compute the
layers after the last one that it needs.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import torch
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.suggest import nearest

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
        if self.number >= 0:
            layers = list(islice(states, self.number, self.number + 1))
        else:
            last = deque(states, maxlen=-self.number)
            layers = list(last)[:1] if len(last) == -self.number else []
        if not layers:
            raise ConfigError(
                f"This model has no layer {self.number}. Layers are counted from 0, the "
                "embeddings, or from the end: -1 is the last."
            )
        return layers[0]

    def width(self, d_model: int) -> int:
        return d_model


@dataclass(frozen=True)
class SumOfLayers:
    """The sum of the last `count` layers; None: of all layers above the embeddings."""

    count: int | None = None

    def __call__(self, states: States) -> Tensor:
        next(states)
        if self.count is not None:
            layers = iter(_last(states, self.count))
        else:
            layers = states
        total = next(layers)
        for state in layers:
            total = total + state
        return total

    def width(self, d_model: int) -> int:
        return d_model


@dataclass(frozen=True)
class ConcatLayers:
    """The last `count` layers concatenated, the lowest first: (B, T, `count` * D)."""

    count: int

    def __call__(self, states: States) -> Tensor:
        next(states)
        return torch.cat(_last(states, self.count), -1)

    def width(self, d_model: int) -> int:
        return self.count * d_model


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
                    f"{state.size(-1)} wide. Choose one of them, such as `last`."
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
        """See `LayerChoice`."""
        return d_model


CHOICES: dict[str, LayerChoice] = {
    "first": SingleLayer(0),
    "last": SingleLayer(-1),
    "second-to-last": SingleLayer(-2),
    "sum": SumOfLayers(),
    "sum-last-4": SumOfLayers(4),
    "concat-last-4": ConcatLayers(4),
}
MIX = "mix:"  # followed by scalars, with commas between


def choice_of(layers: str | int | LayerChoice) -> LayerChoice:
    """The choice of a name of `CHOICES`, of the number of a layer, or of scalars, `mix:1,0,-2`.

    Raises:
        ConfigError: there is no such choice.
    """
    if isinstance(layers, int):
        return SingleLayer(layers)
    if callable(layers):
        return layers
    if not isinstance(layers, str):
        raise ConfigError(f"Choose layers by a name, a number or a mix, not by {layers!r:.80}.")
    if layers in CHOICES:
        return CHOICES[layers]
    if layers.startswith(MIX):
        return _mix(layers.removeprefix(MIX))
    if layers.removeprefix("-").isdecimal():
        return SingleLayer(int(layers))
    raise ConfigError(
        f"There is no choice of layers {layers!r}. {nearest(layers, [*CHOICES, MIX])} The number "
        "of a layer and scalars of a mix (mix:0,0.5,1: one for the embeddings and each layer) are "
        "choices too."
    )


def _mix(scalars: str) -> ScalarMix:
    try:
        numbers = [float(scalar) for scalar in scalars.split(",")]
    except ValueError:
        numbers = [math.nan]
    if not bool(torch.tensor(numbers).isfinite().all()):
        raise ConfigError(
            f"A mix needs numbers with commas between, such as mix:0,0.5,1, but has {scalars!r}."
        )
    return ScalarMix.of(numbers)


def _last(states: States, count: int) -> list[Tensor]:
    """The last `count` states; no more are in memory at a time."""
    last = deque(states, maxlen=count)
    if len(last) < count:
        raise ConfigError(f"This model has {len(last)} layers: it has no last {count}.")
    return list(last)
