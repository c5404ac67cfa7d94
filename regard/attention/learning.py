"""Attention with a gradient by the compiled kernels, which store no weights; see attend.py."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.attention.scores import Dot
from regard.layers.dropout import decide
from regard.masks import Allowed
from regard.native import training as native


def asked(query: Tensor, key: Tensor, score: Dot, allowed: Allowed, dropout: float) -> Any:
    """What the kernels are told of one call over heads (B, H, T, K) and (B, H, S, K)."""
    scale = query.size(-1) ** -0.5 if score.scale is None else score.scale
    if allowed.packed is not None:
        packed = allowed.packed
        return native.Attending(None, packed.causal, scale, decide(dropout), packed.extents)
    grid = None if allowed.is_causal else allowed.grid
    if grid is not None:
        shape = (*query.shape[:3], key.size(2))
        grid = grid.expand(shape)
        if grid.stride(-1) != 1:
            grid = grid.contiguous()
    return native.Attending(grid, allowed.is_causal, scale, decide(dropout))


class Attend(torch.autograd.Function):
    """Queries (B, H, T, K), keys and values (B, H, S, K) -> (B, H, T, K)."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, asked: Any) -> Tensor:
        context, norms = native.attend(query, key, value, asked)
        ctx.save_for_backward(query, key, value, context, norms)
        ctx.asked = asked
        return context

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        *heads, norms = ctx.saved_tensors
        found = [torch.empty_like(x.transpose(1, 2)).transpose(1, 2) for x in heads[:3]]
        native.attend_back(grads[0], heads, norms, ctx.asked, found)
        return *found, None


class AttendJoined(torch.autograd.Function):
    """Queries, keys and values side by side, (B, T, 3, H, K) -> (B, H, T, K)."""

    @staticmethod
    def forward(ctx: Any, joined: Tensor, asked: Any) -> Tensor:
        context, norms = native.attend(*apart(joined), asked)
        ctx.save_for_backward(joined, context, norms)
        ctx.asked = asked
        return context

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        joined, context, norms = ctx.saved_tensors
        found = torch.empty_like(joined)
        heads = (*apart(joined), context)
        native.attend_back(grads[0], heads, norms, ctx.asked, apart(found))
        return found, None


def apart(joined: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(B, T, 3, H, K) -> 3 times (B, H, T, K)"""
    query, key, value = joined.transpose(1, 3).unbind(2)
    return query, key, value
