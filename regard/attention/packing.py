"""Rows of different lengths end to end, (1, N, ...), instead of padded to the longest, (B, T, ...).

What a layer does to each token alone does not ask where rows begin and end; attention does, and is
told by `Packed`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from regard.attention.gates import gating
from regard.attention.tap import listening
from regard.masks import Allowed, causal, padding
from regard.native.training import Extent

MULTIPLE = 16  # of tokens: products of few different sizes are prepared but once


class Packing:
    """How the tokens of padded rows (B, T) lie end to end.

    places: (N,) where each stands in the padded batch. So that N is a multiple of 16, some places
    of padding come last; they are a row of their own, which nobody reads.
    """

    def __init__(self, lengths: Tensor, width: int):
        keep = torch.arange(width) < lengths[:, None]
        tokens, gaps = (part.flatten().nonzero()[:, 0] for part in (keep, ~keep))
        self.lengths, self.width = lengths, width
        self.places = torch.cat([tokens, gaps[: -len(tokens) % MULTIPLE]])

    @cached_property
    def extent(self) -> Extent:
        """Where rows begin, the last of which is that of padding."""
        ends = torch.cat([self.lengths.new_zeros(1), self.lengths.cumsum(0)])
        starts = torch.cat([ends, ends.new_full((1,), len(self.places))])
        return Extent(starts, self.width)

    def flat(self, x: Tensor) -> Tensor:
        """(B, T, ...) -> (1, N, ...)"""
        return _Move.apply(x.flatten(0, 1), self.places, None)[None]

    def padded(self, x: Tensor) -> Tensor:
        """(1, N, ...) -> (B, T, ...), zeros where nothing is."""
        shape = len(self.lengths), self.width
        return _Move.apply(x[0], self.places, shape[0] * shape[1]).unflatten(0, shape)


class Firsts(Packing):
    """Of these rows, none of which is empty, the first tokens alone, (1, B, ...)."""

    def __init__(self, packing: Packing):
        starts = packing.extent.starts[:-2]
        self.lengths, self.width = torch.ones_like(starts), 1
        self.places = torch.arange(len(starts))


class _Move(torch.autograd.Function):
    """To (N, ...) from these places of (M, ...), or to these of `count` places; each is used once.

    An own function since torch's gradient of the former allows for places that are used twice.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Tensor, count: int | None) -> Tensor:
        ctx.save_for_backward(places)
        ctx.back = x.size(0) if count is None else None
        if count is None:
            return x.index_select(0, places)
        return x.new_zeros(count, *x.shape[1:]).index_copy_(0, places, x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return _Move.apply(grads[0], ctx.saved_tensors[0], ctx.back), None, None


@dataclass(frozen=True)
class Packed:
    """Which queries see which keys: those of their own row, or of it those before them."""

    queries: Packing
    keys: Packing
    causal: bool = False

    @cached_property
    def padded(self) -> Allowed:
        """The same for padded rows."""
        mask = causal() if self.causal else padding(self.keys.lengths)
        return mask.resolve(self.queries.width, self.keys.width, rows=len(self.keys.lengths))

    def apart(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        """Heads of rows end to end (1, H, N, K) -> of padded rows, (B, H, T, K)."""
        pairs = ((self.queries, query), (self.keys, key), (self.keys, value))
        return tuple(side.padded(x.transpose(1, 2)).transpose(1, 2) for side, x in pairs)

    def joined(self, context: Tensor) -> Tensor:
        """(B, H, T, K) -> (1, H, N, K)"""
        return self.queries.flat(context.transpose(1, 2)).transpose(1, 2)

    @property
    def extents(self) -> tuple[Extent, Extent]:
        """Of queries and keys."""
        return self.queries.extent, self.keys.extent


def first_of(hidden: Tensor, allowed: Allowed) -> Tensor:
    """The first position of each row: (B, T, D) -> (B, 1, D), or (1, N, D) -> (1, B, D)."""
    if allowed.packed is None:
        return hidden[:, :1]
    starts = allowed.packed.queries.extent.starts[:-2]
    return _Move.apply(hidden[0], starts, None)[None]


def seen_by_first(allowed: Allowed) -> Allowed:
    """What the first positions see; of padded rows all queries see the same."""
    packed = allowed.packed
    if packed is None:
        return allowed
    return Allowed(packed=Packed(Firsts(packed.queries), packed.keys))


def packings_of(*padded: tuple[Tensor, int]) -> tuple[Packing, ...] | None:
    """For rows of lengths (B,) that are padded to a width; None where padded rows are as good.

    They are where there is little padding; where somebody looks at rows or weighs their heads; and
    on other devices than a CPU, which would have to wait for the number of tokens.
    """
    on_cpu = all(lengths.device.type == "cpu" for lengths, _ in padded)
    if not on_cpu or listening.get() is not None or gating.get() is not None:
        return None
    if not any(len(n) * width - int(n.sum()) >= MULTIPLE for n, width in padded):
        return None
    return tuple(Packing(lengths, width) for lengths, width in padded)


def within(packing: Packing, *, causal: bool = False) -> Allowed:
    """Each token sees its row, or of it what stands before."""
    return Allowed(packed=Packed(packing, packing, causal))
