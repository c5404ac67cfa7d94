"""Embedding lookup, output layer and losses by the kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.kernels import build
from regard.kernels.arguments import address, checked_shape, contiguous, is_cpu_strided
from regard.kernels.products import packed_matrix, threads_for
from regard.layers.panels import Panels, check_range
from regard.ops import TopKTokens

WORK_PER_LOGIT = 40  # multiplications that take as long as one term of the log-sum-exp


def reads_rows(ids: Tensor, matrix: Panels) -> bool:
    """Whether there are kernels for this lookup."""
    return is_cpu_strided(ids, torch.int64) and matrix.packed.is_cpu and build.available()


def quantized_rows(ids: Tensor, matrix: Panels) -> Tensor:
    """Rows of a quantized embedding table, in float32."""
    ids = contiguous(ids)
    out = torch.empty(*ids.shape, matrix.shape[1])
    missing = build.library().regard_rows(
        *packed_matrix(*matrix),
        *(address("ids", ids, torch.int64, ids.shape), ids.numel()),
        address("out", out, torch.float32, out.shape),
    )
    if missing:
        check_range("ids", ids, matrix.shape[0])
    return out


def argmax(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The best token of each row and its log-probability."""
    rows, vocab_size = checked_shape("logits", logits)
    logits = contiguous(logits)
    token, log_prob = torch.empty(rows, dtype=torch.int64), torch.empty(rows)
    build.library().regard_argmax(
        *(address("logits", logits, torch.float32, (rows, vocab_size)), rows, vocab_size),
        address("token", token, torch.int64, (rows,)),
        address("log_prob", log_prob, torch.float32, (rows,)),
        threads_for(rows * vocab_size * WORK_PER_LOGIT),
    )
    return token, log_prob


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
        address("losses", losses, torch.float64, (rows,)),
        threads_for(rows * vocab_size * WORK_PER_LOGIT),
    )
    if missing:
        check_range("targets", targets, vocab_size)
    return losses


def topk(logits: Tensor, count: int) -> TopKTokens:
    """See `ops.topk`.

    Raises:
        RegardError: `count` is below 1.
    """
    rows, vocab_size = checked_shape("logits", logits)
    check_count(count)
    logits = contiguous(logits)
    tokens, log_probs = torch.empty(rows, count, dtype=torch.int64), torch.empty(rows, count)
    build.library().regard_topk(
        *(address("logits", logits, torch.float32, (rows, vocab_size)), rows, vocab_size, count),
        address("tokens", tokens, torch.int64, (rows, count)),
        address("log_probs", log_probs, torch.float32, (rows, count)),
        threads_for(rows * vocab_size * WORK_PER_LOGIT),
    )
    return TopKTokens(tokens, log_probs, vocab_size)


def check_count(count: int) -> None:
    """Raises RegardError: no tokens are asked for."""
    if count < 1:
        raise RegardError(f"`count` must be at least 1, but is {count}.")
