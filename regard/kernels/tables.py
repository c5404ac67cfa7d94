"""Tables that kernels look up: vectors of tokens and positions, and biases by distance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.attention.relative_bias import RelativeBias
from regard.kernels.tracer import CannotCompile
from regard.layers.positions import RobertaPositions, SinusoidalPositions

MAX_DISTANCES = 2**14  # of which a table has the biases, for each head


def table_of(positions: Any) -> Tensor:
    """The vectors of positions, (N, D), from the first; of RoBERTa's, those of padding, too."""
    if isinstance(positions, SinusoidalPositions):
        return positions.table
    weight: Tensor = positions.vectors.weight
    counted = isinstance(positions, RobertaPositions)
    return weight if counted else weight[positions.offset :]


def readable_table(table: Tensor) -> Tensor:
    """The same, where kernels can read it.

    Raises:
        CannotCompile: they cannot.
    """
    if table.dtype != torch.float32 or not table.is_contiguous():
        raise CannotCompile("a table of embeddings or positions must be contiguous, in float32")
    return table


def bias_table(bias: RelativeBias, heads: Sequence[int], scale: float) -> Tensor:
    """What is added to the scores of these heads before they are scaled, by distance: (H, 2 N - 1);
    from N - 1 positions on the biases on a side are equal. See `Op.table`.

    Raises:
        CannotCompile: too many distances have a bias of their own.
    """
    if bias.max_distance > MAX_DISTANCES:
        raise CannotCompile(f"more than {MAX_DISTANCES:,} distances with a bias of their own")
    most = bias.max_distance
    with torch.no_grad():
        biases = bias.by_distance(torch.arange(most, -most - 1, -1))  # (2 N - 1, H)
    return readable_table((biases[:, list(heads)].t() / scale).contiguous())
