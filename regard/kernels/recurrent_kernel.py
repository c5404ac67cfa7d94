"""A quantized recurrent layer by the compiled kernels: see cpp/recurrent.h."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.kernels import build
from regard.kernels.arguments import address, contiguous, is_cpu_strided, optional_address
from regard.kernels.products import packed_matrix, threads_for
from regard.layers.panels import Panels, check_recurrence

CELLS = {1: 0, 3: 1, 4: 2}  # the number that recurrent.h gives a cell with so many gates


def fits(below: Tensor, matrix: Panels, bias: Tensor | None, hidden: Tensor, cell: Tensor) -> bool:
    """Whether there are kernels for these."""
    numbers = (below, hidden, cell, *(() if bias is None else (bias,)))
    plain = all(map(is_cpu_strided, numbers)) and matrix.packed.is_cpu and build.available()
    return plain and below.numel() > 0 and not below.requires_grad


def quantized_recurrence(
    below: Tensor, matrix: Panels, bias: Tensor | None, hidden: Tensor, cell: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """All steps of a layer: hidden states, and the last hidden and cell states."""
    check_recurrence(below, hidden, cell)
    (rows, tokens, gates), width = below.shape, hidden.size(1)
    below = contiguous(below)
    hidden, cell = (
        state.resolve_neg().clone(memory_format=torch.contiguous_format) for state in (hidden, cell)
    )
    out, real = below.new_empty(rows, tokens, width), torch.float32
    matrix = matrix._replace(shape=(gates, width))
    build.library().regard_recur(
        *(CELLS[gates // width], *packed_matrix(*matrix)),
        optional_address("bias", bias, real, (gates,)),
        *(address("below", below, real, (rows, tokens, gates)), rows, tokens),
        address("hidden", hidden, real, (rows, width)),
        address("cell", cell, real, (rows, width)) if cell.numel() else None,
        address("out", out, real, (rows, tokens, width)),
        threads_for(rows * matrix.packed.numel()),
    )
    return out, hidden, cell
