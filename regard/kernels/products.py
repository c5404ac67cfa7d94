"""Products with quantized matrices by the compiled kernels: see cpp/products.h."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.kernels import build
from regard.kernels.arguments import address, contiguous, is_cpu_strided, optional_address
from regard.layers.panels import GROUP, PANEL, Panels

WEIGHTS = {torch.uint8: 0, torch.bfloat16: 1}  # the numbers that products.h gives them
WORK_PER_THREAD = 100_000  # multiplications of one row from which a further thread pays
AT_ONCE = 12  # rows for which the matrix is read once


def threads_for(work: int, rows: int = 1) -> int:
    """The number of threads for `work` multiplications, which are those of `rows` rows."""
    return max(1, min(torch.get_num_threads(), work // min(rows, AT_ONCE) // WORK_PER_THREAD))


def quantized_linear(x: Tensor, matrix: Panels, bias: Tensor | None = None) -> Tensor:
    """See `panels.quantized_linear`; that of a row is bit-identical alone and in any batch."""
    x = contiguous(x)
    out_features, in_features = matrix.shape
    size = x.shape[:-1]
    out = x.new_empty(*size, out_features)
    rows = x.numel() // in_features
    numbers = (
        *packed_matrix(*matrix),
        optional_address("bias", bias, torch.float32, (out_features,)),
    )
    if rows:
        build.library().regard_linear(
            *(*numbers, address("x", x, torch.float32, (*size, in_features)), rows),
            *(address("out", out, torch.float32, (*size, out_features)),),
            threads_for(rows * matrix.packed.numel(), rows),
        )
    return out


def packed_matrix(
    packed: Tensor, scale: Tensor | None, shape: tuple[int, int]
) -> tuple[int, int, int, int, int | None]:
    """A matrix (N, K) in panels as kernels take it: type, N, K, addresses of numbers and scales.

    Raises:
        RegardError: `packed` and `scale` are not those of a matrix of this shape.
    """
    out_features, in_features = shape
    if packed.dtype not in WEIGHTS:
        raise RegardError(f"`packed` must be uint8 or bfloat16, but is {packed.dtype}.")
    side = 4 if packed.dtype is torch.uint8 else 2
    panels = -(-out_features // PANEL), -(-in_features // GROUP) * GROUP // side, PANEL, side
    data = address("packed", packed, packed.dtype, panels)
    if side == 4:
        return (
            0,
            out_features,
            in_features,
            data,
            address("scale", scale, torch.float32, (out_features,)),
        )
    if scale is not None:
        raise RegardError("`scale` must be None where the weights are bfloat16.")
    return 1, out_features, in_features, data, None


def fits(x: Tensor, matrix: Panels, bias: Tensor | None = None) -> bool:
    """Whether there are kernels for this product."""
    plain = is_cpu_strided(x) and matrix.packed.is_cpu and not x.requires_grad
    plain = plain and (bias is None or bias.dtype == torch.float32) and build.available()
    return plain and x.dim() > 0 and x.size(-1) == matrix.shape[1] and 0 not in matrix.shape
