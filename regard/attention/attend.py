"""The attention of every model: scores, mask, softmax, weighted mean, capture of the weights.

    context = softmax(score(query, key) + bias) value         over the keys that the mask allows

The leading dimensions are free: heads, blocks, streams. Dot-product attention is `ops.attention`,
which may be fused. Another score, a reweighting after the softmax, terms added to the values and
attention capture take the explicit path on the same weights.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from regard import ops
from regard.attention.capture import CapturePoint, ReshapedCapture, listening
from regard.attention.scores import SCALED as SCALED
from regard.attention.scores import Dot
from regard.attention.scores import Score as Score
from regard.layers.dropout import draw
from regard.ops import ALL_KEYS, NO_DROP, Drop, KeyMask

Reweight = Callable[[Tensor], Tensor]
ValueTerm = Callable[[Tensor], Tensor]


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    score: Score = SCALED,
    mask: KeyMask = ALL_KEYS,
    bias: Tensor | None = None,
    reweight: Reweight | None = None,
    value_term: ValueTerm | None = None,
    dropout: float = 0.0,
    capture: CapturePoint | ReshapedCapture | None = None,
) -> Tensor:
    """The mean of the values, weighted by the softmax of the scores of their keys.

    Args:
        query, key, value: (..., T, K), (..., S, K), (..., S, K').
        score: the scores (..., T, S) of query and key.
        mask: the keys that each query may see. A query that may see none gets zeros.
        bias: (..., T, S), added to the scores.
        reweight: from the weights after the softmax to those that are used instead, both
            (..., T, S): Luong's Gaussian, a hard sample.
        value_term: from the weights (..., T, S) after dropout to a term (..., T, K') that is added
            to the context: Shaw's relative positions.
        dropout: probability of dropping a weight; 0 in evaluation.
        capture: the capture point that receives the weights; None: they are never recorded.

    Returns:
        The context, (..., T, K').

    Raises:
        ValueError: the mask or the bias has more dimensions than the query.
    """
    _check_dimensions(query, mask, bias)
    plain = reweight is None and value_term is None
    if plain and isinstance(score, Dot) and not is_captured(capture):
        return ops.attention(query, key, value, mask, bias, score.scale, draw(dropout, query))
    count = query.size(-2)
    if (rows := mask.unpadded) is not None:
        query, key, value = rows.queries.pad(query), rows.keys.pad(key), rows.keys.pad(value)
        mask = rows.padded
    if mask.sparse is not None:
        mask = mask.sparse.dense
    weights = ops.attention_weights(score(query, key), mask, bias)
    if reweight is not None:
        weights = reweight(weights)
    if capture is not None and is_captured(capture):
        capture(weights if rows is None else weights[: rows.queries.count])
    weights = ops.dropout(weights, draw(dropout, query))
    context = weights @ value
    if value_term is not None:
        context = context + value_term(weights)
    return context if rows is None else rows.queries.unpad(context, count)


def attend_qkv(
    projected: Tensor,
    *,
    score: Score,
    mask: KeyMask,
    dropout: float,
    capture: CapturePoint | ReshapedCapture,
) -> Tensor:
    """`attend` for one projection to queries, keys, values: (B, T, 3, H, K) -> (B, H, T, K)."""
    if isinstance(score, Dot) and not is_captured(capture):
        return ops.qkv_attention(projected, mask, score.scale, draw(dropout, projected))
    heads = ops.unstack_qkv(projected)
    return attend(*heads, score=score, mask=mask, dropout=dropout, capture=capture)


def is_captured(capture: CapturePoint | ReshapedCapture | None) -> bool:
    """Whether a listener wants the weights of this capture point."""
    # Compiled blocks are for passes without capture; see regard/training/compiling.py.
    if capture is None or torch.compiler.is_compiling() or listening.get() is None:
        return False
    return capture.is_wanted


def _check_dimensions(query: Tensor, mask: KeyMask, bias: Tensor | None) -> None:
    # Broadcasting (B, 1, 1, S) against (B, T, S) would pair every row with every other, silently.
    for name, other in (("mask", mask.grid), ("bias", bias)):
        if other is not None and other.dim() > query.dim():
            raise ValueError(
                f"`{name}` must have no more dimensions than `query`, but has {other.dim()} and "
                f"`query` has {query.dim()}. One head is a dimension too: query[:, None]."
            )


# ---------------------------------------------------------- an implementation of ops.attention

# Up to this many keys the CPU's bfloat16 products beat its fused kernel: at 16 keys 14 times,
# forward and backward, at 256 still 1.2 times.
FEW_KEYS = 256


def _takes_fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: KeyMask = ALL_KEYS,
    bias: Tensor | None = None,
    scale: float | None = None,
    drop: Drop = NO_DROP,
) -> bool:
    if mask.unpadded is not None or mask.sparse is not None:
        return False
    if query.is_cuda or query.is_meta or torch.compiler.is_compiling():
        return True
    # The CPU has no fused kernel with dropout; `ops.dropout` is faster than torch's substitute.
    return not drop.threshold and not (query.dtype == torch.bfloat16 and key.size(-2) <= FEW_KEYS)


def _fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: KeyMask = ALL_KEYS,
    bias: Tensor | None = None,
    scale: float | None = None,
    drop: Drop = NO_DROP,
) -> Tensor:
    """PyTorch's scaled_dot_product_attention."""
    is_causal = mask.is_causal and bias is None
    grid = None if is_causal else mask.grid
    if bias is not None:
        bias = bias.to(query.dtype)
        grid = bias if grid is None else bias.masked_fill(~grid, -torch.inf)
    if query.is_meta and query.dim() == 4:
        return _fused_on_meta(query, key, value, grid, is_causal)
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=grid,
        dropout_p=drop.probability,
        is_causal=is_causal,
        scale=scale,
    )


def _fused_on_meta(
    query: Tensor, key: Tensor, value: Tensor, grid: Tensor | None, is_causal: bool
) -> Tensor:
    """The context on the meta device, which counts what fused kernels save for the backward pass.

    PyTorch's function would keep all weights there, which no device with a fused kernel does.
    """
    if grid is not None:
        grid = grid.to(query.dtype).expand(*query.shape[:-1], key.size(-2))
    kernel = torch.ops.aten._scaled_dot_product_efficient_attention
    return kernel(query, key, value, grid, True, 0.0, is_causal)[0]


ops.register(ops.attention, "torch", _fused, when=_takes_fused)
