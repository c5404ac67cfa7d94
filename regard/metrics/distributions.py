"""Distances between distributions, in nats; `bits=True` gives bits.

All take probabilities over the last dimension (..., V), tensors or anything that becomes one, and
give float64 tensors (...,). By continuity, 0 log 0 = 0, which is what `torch.xlogy` gives.
"""

import math
from typing import Any

import torch
from torch import Tensor

from regard.errors import RegardError


def entropy(p: Any, *, bits: bool = False) -> Tensor:
    """H(p) = - sum p log p"""
    p = _distribution(p, "p")
    return _unit(-torch.xlogy(p, p).sum(-1), bits)


def cross_entropy(p: Any, q: Any, *, bits: bool = False) -> Tensor:
    """H(p, q) = - sum p log q. Infinite where q is 0 and p is not."""
    p, q = _pair(p, q)
    return _unit(-torch.xlogy(p, q).sum(-1), bits)


def kl_divergence(p: Any, q: Any, *, bits: bool = False) -> Tensor:
    """KL(p || q) = sum p log(p / q) >= 0. Infinite where q is 0 and p is not."""
    p, q = _pair(p, q)
    # As one logarithm of the ratio: the difference of two sums would lose digits where p = q.
    ratio = torch.where(p > 0, p / q, torch.ones_like(p))
    return _unit(torch.xlogy(p, ratio).sum(-1), bits)


def jensen_shannon(p: Any, q: Any, *, bits: bool = False) -> Tensor:
    """JS(p, q) = KL(p || m) / 2 + KL(q || m) / 2 with m = (p + q) / 2; at most log 2.

    The divergence, not its square root, which is the distance.
    """
    p, q = _pair(p, q)
    middle = (p + q) / 2
    return (kl_divergence(p, middle, bits=bits) + kl_divergence(q, middle, bits=bits)) / 2


def _unit(nats: Tensor, bits: bool) -> Tensor:
    return nats / math.log(2) if bits else nats


def _pair(p: Any, q: Any) -> tuple[Tensor, Tensor]:
    return torch.broadcast_tensors(_distribution(p, "p"), _distribution(q, "q"))


def _distribution(values: Any, name: str) -> Tensor:
    p = torch.as_tensor(values).double()
    # The sum has the rounding of half precision.
    if not bool((p >= 0).all()) or bool(((p.sum(-1) - 1).abs() > 1e-3).any()):
        raise RegardError(f"`{name}` must be probabilities that sum to 1, but is {values!r:.80}.")
    return p
