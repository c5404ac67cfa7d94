"""The linear layers of a published model, and the rows and columns of our matrices that they are.

A packed matrix of this library holds several published ones, and the published Transformer has its
dimensions in another order. Both follow from the table of names: its transforms are applied to the
indices of a matrix.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.checkpoints.formats.layout import Layout
from regard.checkpoints.names import NameRow
from regard.layers.linear import Linear


@dataclass(frozen=True)
class Projection:
    """A linear layer under its published name.

    layer: the name of our layer that computes it, in a packed layer together with others.
    outputs: (N,), for each of its outputs the row of our matrix.
    inputs: (K,), for each of its inputs the column of our matrix.
    transposed: whether its matrix is published as (in, out), like that of GPT-2's Conv1D.
    """

    name: str
    layer: str
    outputs: Tensor
    inputs: Tensor
    transposed: bool

    @property
    def rows(self) -> slice:
        """The rows of our matrix that compute its outputs."""
        first = int(self.outputs.min())
        return slice(first, first + len(self.outputs))

    @property
    def label(self) -> str:
        """The last part of its name, such as "query"."""
        return self.name.rpartition(".")[2]

    def from_published(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """Published factors A (r, K) and B (N, r) in the order of our matrix's dimensions."""
        inputs, outputs = self.inputs.argsort(), self.outputs.argsort()
        return a[:, inputs.to(a.device)], b[outputs.to(b.device)]

    def to_published(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """The inverse of `from_published`."""
        outputs = self.outputs - self.rows.start
        return a[:, self.inputs.to(a.device)], b[outputs.to(b.device)]


def projections_of(layout: Layout, model: nn.Module) -> list[Projection]:
    """The linear layers of a model without those of its heads."""
    tensors = model.state_dict()
    return [
        projection
        for row, ours, theirs in layout.names_of(model).filled(tensors)
        if _is_linear(model, ours)
        for projection in _of_row(row, ours[0], theirs, tensors)
    ]


def _is_linear(model: nn.Module, ours: tuple[str, ...]) -> bool:
    layer, _, kind = ours[0].rpartition(".")
    weight = len(ours) == 1 and kind == "weight" and not layer.startswith("heads.")
    return weight and isinstance(model.get_submodule(layer), Linear)


def _of_row(
    row: NameRow, ours: str, theirs: tuple[str, ...], tensors: Mapping[str, Tensor]
) -> Iterator[Projection]:
    outputs, inputs = tensors[ours].shape
    numbers = torch.arange(max(outputs, inputs))
    by_row = row.transform.write([numbers[:outputs, None].expand(outputs, inputs)])
    by_column = row.transform.write([numbers[:inputs].expand(outputs, inputs)])
    for name, of_row, of_column in zip(theirs, by_row, by_column, strict=True):
        transposed = bool((of_row[0] != of_row[0, 0]).any())  # their rows are inputs
        if transposed:
            of_row, of_column = of_row.t(), of_column.t()
        layer, their = ours.removesuffix(".weight"), name.removesuffix(".weight")
        yield Projection(their, layer, of_row[:, 0].clone(), of_column[0].clone(), transposed)
