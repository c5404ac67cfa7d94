"""Distances between distributions, in nats; `bits=True` gives bits.

All take probabilities over the last dimension (..., V), tensors or anything that becomes one, and
give float64 tensors (...,). By continuity, 0 log 0 = 0.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from regard.errors import RegardError


def entropy(p: Any, *, bits: bool = False) -> Tensor:
    """H(p) = - sum p log p"""
    p = _distribution(p, "p")
    return _unit(-_xlogy(p, p).sum(-1), bits)


def cross_entropy(p: Any, q: Any, *, bits: bool = False) -> Tensor:
    """H(p, q) = - sum p log q. Infinite where q is 0 and p is not."""
    p, q = _pair(p, q)
    return _unit(-_xlogy(p, q).sum(-1), bits)


def kl_divergence(p: Any, q: Any, *, bits: bool = False) -> Tensor:
    """KL(p || q) = sum p log(p / q) >= 0. Infinite where q is 0 and p is not."""
    p, q = _pair(p, q)
    # As one logarithm of the ratio: the difference of two sums would lose digits where p = q.
    ratio = torch.where(p > 0, p / q, torch.ones_like(p))
    return _unit(_xlogy(p, ratio).sum(-1), bits)


def jensen_shannon(p: Any, q: Any, *, bits: bool = False) -> Tensor:
    """JS(p, q) = KL(p || m) / 2 + KL(q || m) / 2 with m = (p + q) / 2; at most log 2.

    The divergence, not its square root, which is the distance.
    """
    p, q = _pair(p, q)
    middle = (p + q) / 2
    return (kl_divergence(p, middle, bits=bits) + kl_divergence(q, middle, bits=bits)) / 2


def _xlogy(x: Tensor, y: Tensor) -> Tensor:
    return torch.special.xlogy(x, y)  # 0 where x is 0, even where y is 0


def _unit(nats: Tensor, bits: bool) -> Tensor:
    return nats / math.log(2) if bits else nats


def _pair(p: Any, q: Any) -> tuple[Tensor, Tensor]:
    p, q = _distribution(p, "p"), _distribution(q, "q")
    if p.size(-1) != q.size(-1):
        raise RegardError(
            f"`p` and `q` must have equally many outcomes, but they have {p.size(-1)} and "
            f"{q.size(-1)}."
        )
    return torch.broadcast_tensors(p, q)


def _distribution(values: Any, name: str) -> Tensor:
    p = torch.as_tensor(values).double()
    if p.dim() == 0 or p.size(-1) == 0:
        raise RegardError(f"`{name}` must have at least one outcome, but is {values!r}.")
    if not bool((p >= 0).all()):
        raise RegardError(f"`{name}` must be probabilities, but one is {float(p.min())}.")
    sums = p.sum(-1)
    if bool(((sums - 1).abs() > 1e-3).any()):  # rounding of half precision
        worst = sums.flatten()[int((sums - 1).abs().argmax())]
        raise RegardError(f"`{name}` must sum to 1, but sums to {float(worst):.6g}.")
    return p
