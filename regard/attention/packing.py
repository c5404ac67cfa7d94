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

    tokens: where each stands in the padded batch. places: (N,) these, and so that N is a multiple,
    some places of padding; they are a row of their own, which nobody reads.
    """

    def __init__(self, lengths: Tensor, width: int, multiple: int = MULTIPLE):
        keep = torch.arange(width) < lengths[:, None]
        tokens, gaps = (part.flatten().nonzero()[:, 0] for part in (keep, ~keep))
        self.lengths, self.width, self.tokens = lengths, width, tokens
        self.places = torch.cat([tokens, gaps[: -len(tokens) % multiple]])

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

    def at(self, places: Tensor) -> Some:
        """Some places (B, T), boolean; none of padding."""
        numbers = torch.searchsorted(self.tokens, places.flatten().nonzero()[:, 0])
        counts = places.sum(1)
        return Some(numbers, Packing(counts, max(counts.tolist(), default=0), multiple=1))

    def firsts(self) -> Some:
        """The first tokens of rows, none of which is empty."""
        starts = self.extent.starts[:-2]
        return Some(starts, Packing(torch.ones_like(starts), 1, multiple=1))


class First:
    """Of padded rows, the first position alone."""

    def of(self, hidden: Tensor) -> Tensor:
        """(B, T, D) -> (B, 1, D)"""
        return hidden[:, :1]

    def seeing(self, allowed: Allowed) -> Allowed:
        """What it may see, where all queries of a row may see the same."""
        return allowed


@dataclass(frozen=True)
class Some:
    """Some tokens of rows end to end: their numbers (M,) in ascending order, and their rows."""

    tokens: Tensor
    packing: Packing

    def of(self, hidden: Tensor) -> Tensor:
        """(1, N, D) -> (1, M, D)"""
        return _Move.apply(hidden[0], self.tokens, None)[None]

    def seeing(self, allowed: Allowed) -> Allowed:
        """The rows that they stand in."""
        assert allowed.packed is not None
        return Allowed(packed=Packed(self.packing, allowed.packed.keys))


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


def packings_of(*padded: tuple[Tensor, int], least: int = MULTIPLE) -> tuple[Packing, ...] | None:
    """For rows of lengths (B,) that are padded to a width; None where padded rows are as good.

    They are where there are fewer places of padding than `least`; where somebody looks at rows or
    weighs their heads; and on other devices than a CPU, which would have to wait for the number of
    tokens.
    """
    on_cpu = all(lengths.device.type == "cpu" for lengths, _ in padded)
    if not on_cpu or listening.get() is not None or gating.get() is not None:
        return None
    if not any(len(n) * width - int(n.sum()) >= least for n, width in padded):
        return None
    return tuple(Packing(lengths, width) for lengths, width in padded)


def within(packing: Packing, *, causal: bool = False) -> Allowed:
    """Each token sees its row, or of it what stands before."""
    return Allowed(packed=Packed(packing, packing, causal))
