"""Attention over relations of positions, by its formula."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


def attend_by_formula(layer: Any, hidden: Tensor, read: Tensor, relations: Tensor) -> Tensor:
    """Section 3.3 of Dai et al. 2019 for one text: the hidden states (T, D) are the last of those
    that are read (S, D), and the vector of each pair is that of `relations` (T, S, D).
    """
    query, relation = (
        one.unflatten(-1, (layer.heads, -1))
        for one in (layer.query(hidden), layer.distance(relations))
    )
    key, value = (
        one.unflatten(-1, (layer.heads, -1)) for one in layer.key_value(read).chunk(2, -1)
    )
    scores = torch.einsum("thk,shk->hts", query + layer.content_bias[:, 0], key)
    scores = scores + torch.einsum("thk,tshk->hts", query + layer.position_bias[:, 0], relation)
    later = distances(len(hidden), len(read)) < 0
    weights = (scores / math.sqrt(key.size(-1))).masked_fill(later, -torch.inf).softmax(-1)
    return layer.output(torch.einsum("hts,shk->thk", weights, value).flatten(1))


def distances(queries: int, keys: int) -> Tensor:
    """How far each key stands before each query, the last of them at the end: (T, S)."""
    return torch.arange(keys - queries, keys)[:, None] - torch.arange(keys)
