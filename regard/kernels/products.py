"""Products with quantized matrices by the compiled kernels: see cpp/products.h."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.kernels import build
from regard.kernels.arguments import address, contiguous, is_cpu_strided, optional_address
from regard.layers.panels import GROUP, PANEL, Panels

WEIGHTS = {torch.uint8: 0, torch.bfloat16: 1}  # the numbers that products.h gives them
A_THREADS_WORK = 100_000  # multiplications of one row that pay for a further thread
AT_ONCE = 12  # rows that are multiplied while the matrix comes from memory


def threads_for(work: int, rows: int = 1) -> int:
    """How many threads should share so many multiplications, which are those of so many rows."""
    return max(1, min(torch.get_num_threads(), work // min(rows, AT_ONCE) // A_THREADS_WORK))


def quantized_linear(x: Tensor, matrix: Panels, bias: Tensor | None = None) -> Tensor:
    """See `panels.quantized_linear`; a row gives the same bits alone and among others."""
    x = contiguous(x)
    lines, columns = matrix.shape
    size = x.shape[:-1]
    out = x.new_empty(*size, lines)
    rows = x.numel() // columns
    numbers = (
        *packed_matrix(*matrix),
        optional_address("bias", bias, torch.float32, (lines,)),
    )
    if rows:
        build.library().regard_linear(
            *(*numbers, address("x", x, torch.float32, (*size, columns)), rows),
            *(address("out", out, torch.float32, (*size, lines)),),
            threads_for(rows * matrix.packed.numel(), rows),
        )
    return out


def packed_matrix(
    packed: Tensor, scale: Tensor | None, shape: tuple[int, int]
) -> tuple[int, int, int, int, int | None]:
    """A matrix (N, K) in panels as kernels take it: type, N, K, and where numbers and scales lie.

    Raises:
        RegardError: `packed` and `scale` are not those of a matrix of this shape.
    """
    lines, columns = shape
    if packed.dtype not in WEIGHTS:
        raise RegardError(f"`packed` must be uint8 or bfloat16, but is {packed.dtype}.")
    side = 4 if packed.dtype is torch.uint8 else 2
    panels = -(-lines // PANEL), -(-columns // GROUP) * GROUP // side, PANEL, side
    data = address("packed", packed, packed.dtype, panels)
    if side == 4:
        return 0, lines, columns, data, address("scale", scale, torch.float32, (lines,))
    if scale is not None:
        raise RegardError("`scale` must be None where the weights are bfloat16.")
    return 1, lines, columns, data, None


def fits(x: Tensor, matrix: Panels, bias: Tensor | None = None) -> bool:
    """Whether there are kernels for this product."""
    plain = is_cpu_strided(x) and matrix.packed.is_cpu and not x.requires_grad
    plain = plain and (bias is None or bias.dtype == torch.float32) and build.available()
    return plain and x.dim() > 0 and x.size(-1) == matrix.shape[1] and 0 not in matrix.shape
