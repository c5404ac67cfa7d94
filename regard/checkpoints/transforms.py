"""Transforms of a name table: transposed, packed and padded tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Tensors = list[Tensor]


@dataclass(frozen=True)
class Transform:
    """Two inverse functions: `read` published -> ours, `write` ours -> published.

    Both take and give a list, because one published tensor may hold several of ours.
    """

    read: Callable[[Tensors], Tensors]
    write: Callable[[Tensors], Tensors]

    def then(self, after: Transform) -> Transform:
        """Reading applies this transform and then `after`; writing applies the inverses."""
        return Transform(
            read=lambda tensors: after.read(self.read(tensors)),
            write=lambda tensors: self.write(after.write(tensors)),
        )

    def reversed(self) -> Transform:
        """The inverse: ours and published exchanged."""
        return Transform(read=self.write, write=self.read)


def _transposed(tensors: Tensors) -> Tensors:
    return [tensor.t() for tensor in tensors]


def only_read(read: Callable[[Tensors], Tensors]) -> Transform:
    """The transform of a layout that is not written."""

    def write(tensors: Tensors) -> Tensors:
        raise NotImplementedError("this layout is not written")

    return Transform(read, write)


keep = Transform(read=list, write=list)  # the tensors are equal on both sides

# Matrices stored (in, out) there and (out, in) here, as in GPT-2's Conv1D.
transpose = Transform(read=_transposed, write=_transposed)


def split(parts: int, dim: int = 0) -> Transform:
    """One published tensor holds `parts` equal blocks along `dim`, each a tensor of ours.

    `split(3)` reads a packed query-key-value matrix; `split(3).reversed()` is for a model whose own
    tensor is packed while there are three published ones.

    Raises:
        ValueError: when read, the dimension has no such parts; when written, shapes differ.
    """

    def read(tensors: Tensors) -> Tensors:
        (packed,) = tensors
        if packed.shape[dim] % parts:
            raise ValueError(f"dimension {dim} of {tuple(packed.shape)} has no {parts} equal parts")
        return list(packed.chunk(parts, dim))

    def write(tensors: Tensors) -> Tensors:
        shapes = {tuple(tensor.shape) for tensor in tensors}
        if len(shapes) > 1:  # the size of the packed tensor may be right all the same
            raise ValueError(f"the parts must have one shape, but have {sorted(shapes)}")
        return [torch.cat(tensors, dim)]

    return Transform(read, write)


def reorder(order: Sequence[int], dim: int = 0) -> Transform:
    """Equal blocks along `dim` come in another order: block i of ours is their block `order[i]`.

    A gate order of (input, forget, cell, output) against (input, forget, output, cell) is
    `reorder((0, 1, 3, 2))`.
    """
    inverse = [order.index(i) for i in range(len(order))]

    def permuted(tensors: Tensors, blocks: Sequence[int]) -> Tensors:
        (tensor,) = tensors
        chunks = tensor.chunk(len(blocks), dim)
        return [torch.cat([chunks[i] for i in blocks], dim)]

    return Transform(lambda given: permuted(given, order), lambda given: permuted(given, inverse))


def interleave(dim: int = 0) -> Transform:
    """Their order (s1 s2 … c1 c2 …) along `dim` becomes ours (s1 c1 s2 c2 …)."""

    def reordered(tensor: Tensor, sizes: tuple[int, int]) -> Tensor:
        return tensor.unflatten(dim, sizes).transpose(dim, dim + 1).flatten(dim, dim + 1)

    return Transform(
        read=lambda tensors: [reordered(t, (2, -1)) for t in tensors],
        write=lambda tensors: [reordered(t, (-1, 2)) for t in tensors],
    )
