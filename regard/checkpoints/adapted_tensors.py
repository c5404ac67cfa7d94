"""The published tensors of a model as an adapter of `peft` changes them.

    adapted = AdaptedTensors(layout, base, model, tensors)
    adapted.replace(complete)               by tensors that the adapter's file has completely
    adapted.add(updates, scale)             B A to matrices
    adapted.untie()                         where an output is no longer the embedding

A name counts without the prefix of its layout, which files may leave out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from regard.checkpoints.filling import Problems
from regard.checkpoints.formats.layout import Layout
from regard.checkpoints.projections import projections_of
from regard.models.encoder_with_heads import EncoderWithHeads

TITLE = "the adapter does not fit its base model"
Factors = tuple[Tensor | None, Tensor | None]  # A (r, K) and B (N, r); None: the file lacks it


class AdaptedTensors:
    """See the module.

    base: the model without the adapter.  model: it, under the heads of the adapter's architecture.
    tensors: those of `model` by their published names; they are replaced in this table.
    """

    def __init__(
        self, layout: Layout, base: nn.Module, model: nn.Module, tensors: dict[str, Tensor]
    ):
        self.tensors, self.prefix, self.predicts = tensors, layout.prefix, _predicts_tokens(model)
        duplicates = layout.names_of(model).duplicates
        self.full_names = {self._bare(name): name for name in tensors}
        self.of_base = {self._bare(name) for name in layout.write(base)[1]}
        # The output, or a second embedding -> the embedding that it is tied to.
        self.tied = {self._bare(name): self._bare(one) for name, one in duplicates.items()}
        self.tied_names = {self._bare(name): name for name in duplicates}
        of_linear = projections_of(layout, model)
        self.transposed = {self._bare(one.name) for one in of_linear if one.transposed}
        self.at_first = {name: self[name] for name in self.tied.values() if self.has(name)}
        self.of_tied: dict[str, Tensor] = {}  # what the adapter has for the names in `tied`

    def _bare(self, name: str) -> str:
        return name.removeprefix(self.prefix)

    def has(self, name: str) -> bool:
        """Whether the model has a tensor of this name."""
        return name in self.full_names

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[self.full_names[name]]

    def replace(self, complete: Mapping[str, Tensor]) -> None:
        """Replace tensors. Those that only the base reads, under another head, are ignored.

        Raises:
            CheckpointError: there is no tensor of this name, or a new head lacks a tensor.
        """
        problems = Problems(TITLE)
        found = {self._bare(name): tensor for name, tensor in complete.items()}
        known = self.full_names.keys() | self.of_base | self.tied.keys()
        problems.add("extra", *(name for name in found if name not in known))
        new = (name for name in self.full_names if name not in self.of_base)
        problems.add("missing", *(name for name in new if name not in found))
        problems.raise_any()
        for name, tensor in found.items():
            self._put(name, tensor)

    def _put(self, name: str, tensor: Tensor) -> None:
        if self.has(name):
            self.tensors[self.full_names[name]] = tensor
        elif name in self.tied:
            self.of_tied[name] = tensor

    def add(self, updates: Mapping[str, Factors], scale: Callable[[int], float]) -> None:
        """Add scale(r) B A to the matrices of linear layers, named without ".weight".

        Raises:
            CheckpointError: the model lacks a layer, a layer lacks a factor, or shapes differ.
        """
        problems = Problems(TITLE)
        for layer, (a, b) in updates.items():
            name = self._bare(layer)
            weight = self._matrix(f"{name}.weight")
            if weight is None:
                problems.add("extra", *([] if f"{name}.weight" in self.of_base else [layer]))
            elif a is None or b is None:
                problems.add("without one of A and B", layer)
            elif (wrong := _shape_problem(a, b, weight, name in self.transposed)) is not None:
                problems.add("wrong shape", f"{layer} {wrong}")
            else:
                delta = scale(a.size(0)) * (b.float() @ a.float())
                delta = delta.t() if name in self.transposed else delta
                self._put(f"{name}.weight", weight + delta)
        problems.raise_any()

    def _matrix(self, name: str) -> Tensor | None:
        if self.has(name):
            return self[name]
        return self.of_tied.get(name, self.at_first.get(self.tied.get(name, "")))

    def untie(self) -> bool:
        """Give the model a tensor for each that was tied, where the adapter changed one and not the
        others; whether it did.

        `peft` trains a copy of an embedding, of which an output that was tied to it knows nothing.
        """
        found = {
            name: self.of_tied.get(name, self.at_first[original])
            for name, original in self.tied.items()
            if name.endswith(".weight") and original in self.at_first
        }
        differ = [not torch.equal(one, self[self.tied[name]]) for name, one in found.items()]
        # Of a larger vocabulary the file has one tensor, which is for all of them.
        grown = any(one.shape != self[self.tied[name]].shape for name, one in found.items())
        if grown or not any(differ) or not (self.predicts or self.of_tied):
            return False
        self.tensors.update({self.tied_names[name]: one for name, one in found.items()})
        return True


def _predicts_tokens(model: nn.Module) -> bool:
    return not isinstance(model, EncoderWithHeads) or "masked_lm" in model.heads


def _shape_problem(a: Tensor, b: Tensor, weight: Tensor, transposed: bool) -> str | None:
    outputs, inputs = weight.t().shape if transposed else weight.shape
    must, got = (outputs, inputs), (b.size(0), a.size(-1))
    if must == got and a.dim() == 2 and b.shape[1:] == a.shape[:1]:
        return None
    return f"must be {must}, but B A is {got}"
