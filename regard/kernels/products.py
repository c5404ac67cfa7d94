"""Products, rows and recurrences with quantized matrices, and likelihoods: compiled kernels."""

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.kernels import build
from regard.kernels.tensors import (
    address,
    checked_shape,
    contiguous,
    is_cpu_strided,
    optional_address,
    raw_address,
)
from regard.layers.quantized import GROUP, PANEL, Panels, check_range, check_recurrence

WEIGHTS = {torch.uint8: 0, torch.bfloat16: 1}  # the numbers that products.h gives them
WORK_PER_THREAD = 100_000  # multiplications of one row from which a further thread pays
AT_ONCE = 12  # rows for which the matrix is read once


def threads_for(work: int, rows: int = 1) -> int:
    """The number of threads for `work` multiplications, which are those of `rows` rows."""
    return max(1, min(torch.get_num_threads(), work // min(rows, AT_ONCE) // WORK_PER_THREAD))


def quantized_linear(x: Tensor, matrix: Panels, bias: Tensor | None = None) -> Tensor:
    """See `quantized_linear`; that of a row is bit-identical alone and in any batch."""
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
            raw_address(out),
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


CELLS = {1: 0, 3: 1, 4: 2}  # the number that recurrent.h gives a cell with so many gates


def fits_recurrence(
    below: Tensor, matrix: Panels, bias: Tensor | None, hidden: Tensor, cell: Tensor
) -> bool:
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
        raw_address(out),
        threads_for(rows * matrix.packed.numel()),
    )
    return out, hidden, cell


WORK_PER_LOGIT = 40  # multiplications that take as long as one term of the log-sum-exp


def negative_log_likelihood(logits: Tensor, targets: Tensor) -> Tensor:
    """See `ops.negative_log_likelihood`.

    Raises:
        IndexError: there is no such token.
        RegardError: there is not one target, int64, for each row.
    """
    rows, vocab_size = checked_shape("logits", logits)
    if targets.shape != (rows,) or targets.dtype != torch.int64:
        raise RegardError(
            f"`targets` must be int64 of shape ({rows},), but is {targets.dtype} of shape "
            f"{tuple(targets.shape)}."
        )
    logits, targets = contiguous(logits), contiguous(targets)
    losses = torch.empty(rows, dtype=torch.float64)
    missing = build.library().regard_nll(
        *(address("logits", logits, torch.float32, (rows, vocab_size)), rows, vocab_size),
        address("targets", targets, torch.int64, (rows,)),
        raw_address(losses),
        threads_for(rows * vocab_size * WORK_PER_LOGIT),
    )
    if missing:
        check_range("targets", targets, vocab_size)
    return losses


def topk(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """See `ops.topk`."""
    rows, vocab_size = checked_shape("logits", logits)
    logits = contiguous(logits)
    tokens, log_probs = torch.empty(rows, count, dtype=torch.int64), torch.empty(rows, count)
    build.library().regard_topk(
        *(address("logits", logits, torch.float32, (rows, vocab_size)), rows, vocab_size, count),
        raw_address(tokens),
        raw_address(log_probs),
        threads_for(rows * vocab_size * WORK_PER_LOGIT),
    )
    return tokens, log_probs
