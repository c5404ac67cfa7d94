"""The one key softmax. Every attention in the library ends here.

    context = softmax(score(query, key) + bias) value         over the keys that the mask allows

The leading dimensions are free: heads, blocks, streams. Dot-product scores have a fused twin
(torch's scaled_dot_product_attention); it runs unless somebody is looking, and it is left where it
cannot honour what is asked (another score, a reweighting after the softmax).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.attention.learning import Attend, AttendJoined, apart, asked
from regard.attention.scores import Dot
from regard.attention.tap import Laid, Tap
from regard.layers.dropout import dropout as drop
from regard.masks import Allowed
from regard.native import training as native

Score = Callable[[Tensor, Tensor], Tensor]
Reweight = Callable[[Tensor], Tensor]


SCALED = Dot()
FREE = Allowed()


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    score: Score = SCALED,
    allowed: Allowed = FREE,
    bias: Tensor | None = None,
    reweight: Reweight | None = None,
    dropout: float = 0.0,
    tap: Tap | Laid | None = None,
) -> Tensor:
    """Weighted mean of the values, by how well each key answers the query.

    Attention(Q, K, V) = softmax(QK^T / sqrt(d_k)) V            (Vaswani et al. 2017, eq. 1)

    Args:
        query, key, value: (..., T, K), (..., S, K), (..., S, V).
        score: part that gives (..., T, S) from query and key.
        allowed: which keys each query may see. A query that may see none gets zeros.
        bias: (..., T, S) real numbers added to the scores.
        reweight: part that changes the weights after the softmax (Luong's Gaussian, a hard sample).
        dropout: probability with which a weight is dropped; give 0 in evaluation.
        tap: where the weights can be seen.

    Returns:
        The context, (..., T, V).

    Raises:
        ValueError: the grid or the bias has dimensions that the query has not.
    """
    _check_dimensions(query, allowed, bias)
    looking = tap is not None and tap.open
    if isinstance(score, Dot) and reweight is None and not looking:
        if bias is None and native.attends(query, key, value):
            return Attend.apply(query, key, value, asked(query, key, score, allowed, dropout))
        if allowed.packed is None and _fusible(query, key, dropout):
            return _fused(query, key, value, score, allowed, bias, dropout)
    if (packed := allowed.packed) is not None:
        asked_by = dict(score=score, bias=bias, reweight=reweight, dropout=dropout, tap=tap)
        heads = packed.apart(query, key, value)
        return packed.joined(attend(*heads, allowed=packed.padded, **asked_by))  # type: ignore
    weights = softmax_of_keys(score(query, key), allowed, bias)
    if reweight is not None:
        weights = reweight(weights)
    if looking and tap is not None:
        tap(weights)
    return drop(weights, dropout) @ value


def attend_joined(
    joined: Tensor,
    *,
    score: Score,
    allowed: Allowed,
    dropout: float,
    tap: Tap | Laid,
) -> Tensor:
    """The same for queries, keys and values of one projection: (B, T, 3, H, K) -> (B, H, T, K)."""
    query, key, value = apart(joined)
    if isinstance(score, Dot) and not tap.open and native.attends(query, key, value):
        _check_dimensions(query, allowed, None)
        return AttendJoined.apply(joined, asked(query, key, score, allowed, dropout))
    if (packed := allowed.packed) is not None:
        heads = apart(packed.queries.padded(joined))
        padded = packed.padded
        return packed.joined(attend(*heads, score=score, allowed=padded, dropout=dropout, tap=tap))
    return attend(query, key, value, score=score, allowed=allowed, dropout=dropout, tap=tap)


def _check_dimensions(query: Tensor, allowed: Allowed, bias: Tensor | None) -> None:
    # Broadcasting (B, 1, 1, S) against (B, T, S) would pair every row with every other, silently.
    for name, other in (("allowed", allowed.grid), ("bias", bias)):
        if other is not None and other.dim() > query.dim():
            raise ValueError(
                f"`{name}` must have no more dimensions than `query`, but has {other.dim()} and "
                f"`query` has {query.dim()}. One head is a dimension too: query[:, None]."
            )


def wider(kind: torch.dtype) -> torch.dtype:
    """Float32 for the 16-bit types, the type itself otherwise."""
    return torch.float32 if kind in (torch.bfloat16, torch.float16) else kind


def softmax_of_keys(scores: Tensor, allowed: Allowed = FREE, bias: Tensor | None = None) -> Tensor:
    """Weights (..., T, S) that sum to one over the allowed keys, or are all zero if there is none.

    The softmax is taken in float32 at least, whatever the scores' type: bfloat16 has 8 bits.
    """
    kind = scores.dtype
    if bias is not None:
        scores = scores + bias
    if allowed.blocked is not None:
        # The lowest finite number and not -inf: the gradient of a row of only -inf would be NaN.
        scores = scores.masked_fill(allowed.blocked, torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1, dtype=wider(scores.dtype)).to(kind)
    return weights if allowed.idle is None else weights.masked_fill(allowed.idle, 0.0)


# Up to this many keys the CPU's bfloat16 products beat its fused kernel: at 16 keys 14 times,
# forward and backward, at 256 still 1.2 times.
FEW_KEYS = 256


def _fusible(query: Tensor, key: Tensor, dropout: float) -> bool:
    if query.is_cuda or torch.compiler.is_compiling():
        return True
    # The CPU has no fused kernel with dropout; the explicit path's own dropout is faster.
    return dropout == 0.0 and not (query.dtype == torch.bfloat16 and key.size(-2) <= FEW_KEYS)


def _fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score: Dot,
    allowed: Allowed,
    bias: Tensor | None,
    dropout: float,
) -> Tensor:
    grid = None if allowed.is_causal and bias is None else allowed.grid
    if bias is not None:
        bias = bias.to(query.dtype)
        grid = bias if grid is None else bias.masked_fill(~grid, -torch.inf)
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=grid,
        dropout_p=dropout,
        is_causal=allowed.is_causal and bias is None,
        scale=score.scale,
    )
