"""The attention of every model: scores, mask, softmax, weighted mean, capture of the weights.

    context = softmax(score(query, key) + bias) value         over the keys that the mask allows

The leading dimensions are free: heads, blocks, streams. Dot-product attention is `ops.attention`,
which may be fused. Another score, a reweighting after the softmax, terms added to the values and
attention capture take the explicit path on the same weights.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import ops
from regard.attention.capture import CapturePoint, ReshapedCapture, listening
from regard.errors import RegardError
from regard.layers.dropout import draw
from regard.layers.linear import Linear
from regard.ops import ALL_KEYS, NO_DROP, Drop, KeyMask

# ------------------------------------------------------------------------------------------- scores
#
# Scores of queries and keys: the functions and modules that `attend` takes as `score`.
#
# Each gives (..., T, S) from a query (..., T, ·) and a key (..., S, ·).
#
#     dot            q · k                                            (Luong et al. 2015)
#     scaled dot     q · k / sqrt(K)                                  (Vaswani et al. 2017)
#     general        q W k                                            (Luong et al. 2015)
#     additive       v · tanh(W q + U k)                              (Bahdanau et al. 2014)
#     location       (W q)_s, whatever the keys are                   (Luong et al. 2015)
#     cosine         q · k / (‖q‖ ‖k‖)                                (Graves et al. 2014)
#     content-based  the cosine times a strength, softplus(w · q + b) (Graves et al. 2014)
#     equal          0: the context is the mean of all values


Score = Callable[[Tensor, Tensor], Tensor]


class SourceScore(Protocol):
    """A score whose keys are computed from a source once, before the steps of a decoder."""

    def prepare(self, memory: Tensor) -> Tensor:
        """What depends on the source alone: (B, S, d_key) -> (B, S, ·)."""
        ...

    def __call__(self, query: Tensor, key: Tensor, /) -> Tensor:
        """(..., T, d_query) and prepared keys (..., S, ·) -> (..., T, S)."""
        ...


@dataclass(frozen=True)
class Dot:
    """q · k times `scale`; None means 1/sqrt(d_k) (Vaswani et al. 2017), 1.0 is Luong's dot."""

    scale: float | None = None

    def prepare(self, memory: Tensor) -> Tensor:
        """The source itself: (B, S, d_key), same."""
        return memory

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        scale = query.size(-1) ** -0.5 if self.scale is None else self.scale
        return (query * scale) @ key.transpose(-2, -1)


PLAIN, SCALED = Dot(scale=1.0), Dot()


class General(nn.Module):
    """q W k, the bilinear score (Luong et al. 2015, "general")."""

    def __init__(self, d_query: int, d_key: int):
        super().__init__()
        self.key = Linear(d_key, d_query, bias=False)

    def prepare(self, memory: Tensor) -> Tensor:
        """What depends on the source alone, computed once: (B, S, d_key) -> (B, S, d_query)."""
        return self.key(memory)

    def forward(self, query: Tensor, prepared: Tensor) -> Tensor:
        return PLAIN(query, prepared)


class Additive(nn.Module):
    """v · tanh(W q + U k) (Bahdanau et al. 2014, section A.1.2)."""

    def __init__(self, d_query: int, d_key: int, d_score: int):
        super().__init__()
        self.query = Linear(d_query, d_score, bias=False)
        self.key = Linear(d_key, d_score)
        self.weigh = nn.Linear(d_score, 1, bias=False)

    def prepare(self, memory: Tensor) -> Tensor:
        """What depends on the source alone, computed once: (B, S, d_key) -> (B, S, d_score)."""
        return self.key(memory)

    def forward(self, query: Tensor, prepared: Tensor) -> Tensor:
        # (B, T, 1, d) + (B, 1, S, d) -> (B, T, S, d) -> (B, T, S)
        summed = torch.tanh(self.query(query).unsqueeze(-2) + prepared.unsqueeze(-3))
        return self.weigh(summed).squeeze(-1)


class Location(nn.Module):
    """(W q)_s: the scores depend on the query alone, not on the keys (Luong et al. 2015, eq. 8).

    Args:
        positions: rows of W, and so the most positions that a source may have.
    """

    def __init__(self, d_query: int, positions: int):
        super().__init__()
        self.positions = positions
        self.weigh = Linear(d_query, positions, bias=False)

    def prepare(self, memory: Tensor) -> Tensor:
        """The memory itself, (B, S, d_key): only its number of positions is used.

        Raises:
            RegardError: there are more positions than rows of W.
        """
        if memory.size(-2) > self.positions:
            raise RegardError(
                f"The source has {memory.size(-2)} positions, but this location attention has "
                f"weights for {self.positions} (`max_length`). Shorten the source."
            )
        return memory

    def forward(self, query: Tensor, prepared: Tensor) -> Tensor:
        scores = self.weigh(query)  # (..., T, D) -> (..., T, positions)
        # A source may be padded to more positions than there are rows; the mask excludes those.
        more = max(0, prepared.size(-2) - scores.size(-1))
        return F.pad(scores, (0, more))[..., : prepared.size(-2)]


@dataclass(frozen=True)
class Cosine:
    """q · k / (‖q‖ ‖k‖), from -1 to 1: of two keys one weighs at most e^2 times the other."""

    def prepare(self, memory: Tensor) -> Tensor:
        """Keys of length 1, (B, S, K), same; a zero vector stays zero."""
        return F.normalize(memory, dim=-1)

    def __call__(self, query: Tensor, prepared: Tensor) -> Tensor:
        return PLAIN(F.normalize(query, dim=-1), prepared)


COSINE = Cosine()


@dataclass(frozen=True)
class Equal:
    """0 for every query and key."""

    def prepare(self, memory: Tensor) -> Tensor:
        """(B, S, d_key) -> (B, S, 1): the values of keys are not used."""
        return memory[..., :1]

    def __call__(self, query: Tensor, prepared: Tensor) -> Tensor:
        return query.new_zeros(*query.shape[:-1], prepared.size(-2))


EQUAL = Equal()


class ContentBased(nn.Module):
    """b cos(q, k) with the key strength b > 0 (Graves et al. 2014, eq. 5 and 6).

    The paper says of b that it is positive; here it is softplus(w · q + c).
    """

    def __init__(self, d_query: int):
        super().__init__()
        self.strength = nn.Linear(d_query, 1)

    def prepare(self, memory: Tensor) -> Tensor:
        """Keys of length 1, (B, S, K), same."""
        return COSINE.prepare(memory)

    def forward(self, query: Tensor, prepared: Tensor) -> Tensor:
        return F.softplus(self.strength(query)) * COSINE(query, prepared)  # (..., T, 1) (..., T, S)


# ---------------------------------------------------------------------------------------- attention
#
#


Reweight = Callable[[Tensor], Tensor]
ValueTerm = Callable[[Tensor], Tensor]


class Relation(ABC):
    """The relative-position terms of one layer for one batch."""

    @abstractmethod
    def scores(
        self, query: Tensor, key: Tensor, score: Score, remaining_heads: Sequence[int]
    ) -> Tensor:
        """What is added to the scores, (B, H, T, S) or what broadcasts to it.

        Args:
            query, key: (B, H, T, K) and (B, H, S, K).
            score: how queries and keys are compared.
            remaining_heads: the original indices of the H heads that are not pruned.
        """

    @property
    def value_term(self) -> ValueTerm | None:
        """From weights (B, H, T, S), what is added to the context (B, H, T, K); None: nothing."""
        return None


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
