"""Vectors of words from their characters: convolutions, the maximum over positions, highways.

y = max over positions of conv_w(characters), for each width w      (Kim et al. 2016, eq. 2, 3)
z = t * relu(W y + b) + (1 - t) * y,  t = sigmoid(W_t y + b_t)      (Srivastava et al. 2015)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

FilterActivation = Literal["relu", "tanh"]
FILTER_ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh}


class CharacterConvolution(nn.Module):
    """The largest value of every filter over the characters of a word.

    Args:
        characters: the number of character ids; id 0 has a zero vector.
        d_character: the width of a character's vector.
        filters: (width in characters, number of filters).
        activation: applied to the maxima.
    """

    def __init__(
        self,
        characters: int,
        d_character: int,
        filters: Sequence[tuple[int, int]],
        activation: FilterActivation,
    ):
        super().__init__()
        self.embedding = nn.Embedding(characters, d_character, padding_idx=0)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(d_character, count, width) for width, count in filters
        )
        self.activation = FILTER_ACTIVATIONS[activation]
        nn.init.uniform_(self.embedding.weight[1:], -1.0, 1.0)

    def forward(self, characters: Tensor) -> Tensor:
        """(N, C) ids -> (N, F), the filters of all widths concatenated."""
        vectors = self.embedding(characters).transpose(1, 2)  # (N, C, D) -> (N, D, C)
        largest = [conv(vectors).amax(2) for conv in self.convolutions]  # (N, F_w, C') -> (N, F_w)
        return self.activation(torch.cat(largest, 1))


class Highway(nn.Module):
    """z = t * relu(W x + b) + (1 - t) * x,  t = sigmoid(W_t x + b_t)   (Srivastava et al. 2015)

    b_t starts at -2, so that the layer is close to the identity.
    """

    def __init__(self, d_model: int):
        super().__init__()
        self.gate = nn.Linear(d_model, d_model)
        self.transform = nn.Linear(d_model, d_model)
        for part in (self.gate, self.transform):
            nn.init.normal_(part.weight, std=d_model**-0.5)
            nn.init.zeros_(part.bias)
        nn.init.constant_(self.gate.bias, -2.0)

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)"""
        gate = torch.sigmoid(self.gate(x))
        return gate * torch.relu(self.transform(x)) + (1 - gate) * x
