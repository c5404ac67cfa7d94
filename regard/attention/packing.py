"""Sequences one behind the other, (1, N, ...), instead of padded to the longest, (B, T, ...).

What a layer does to each token alone does not ask where sequences begin and end; attention does,
and reads it from `ops.Unpadded`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from regard.attention.gates import gating
from regard.attention.tap import listening
from regard.ops import KeyMask, Offsets, Unpadded

MULTIPLE = 16  # of tokens: products of few different sizes are prepared but once


class Packing:
    """How the tokens of padded rows (B, T) lie end to end.

    tokens: where each stands in the padded batch. places: (N,) these, and so that N is a multiple,
    some places of padding; they are a sequence of their own, which nobody reads and which is no
    longer than the others can be.
    """

    def __init__(self, lengths: Tensor, width: int, multiple: int = MULTIPLE):
        keep = torch.arange(width) < lengths[:, None]
        tokens, gaps = (part.flatten().nonzero()[:, 0] for part in (keep, ~keep))
        self.lengths, self.width, self.tokens = lengths, width, tokens
        self.places = torch.cat([tokens, gaps[: -len(tokens) % max(1, min(multiple, width))]])

    @cached_property
    def offsets(self) -> Offsets:
        """Where sequences begin, the last of which is that of padding."""
        ends = torch.cat([self.lengths.new_zeros(1), self.lengths.cumsum(0)])
        starts = torch.cat([ends, ends.new_full((1,), len(self.places))])
        return Offsets(starts, self.width, spare=1)

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
        starts = self.offsets.starts[:-2]
        return Some(starts, Packing(torch.ones_like(starts), 1, multiple=1))


class First:
    """Of padded rows, the first position alone."""

    def of(self, hidden: Tensor) -> Tensor:
        """(B, T, D) -> (B, 1, D)"""
        return hidden[:, :1]

    def seeing(self, mask: KeyMask) -> KeyMask:
        """What it may see, where all queries of a row may see the same."""
        return mask


@dataclass(frozen=True)
class Some:
    """Some tokens of rows end to end: their numbers (M,) in ascending order, and their rows."""

    tokens: Tensor
    packing: Packing

    def of(self, hidden: Tensor) -> Tensor:
        """(1, N, D) -> (1, M, D)"""
        return _Move.apply(hidden[0], self.tokens, None)[None]

    def seeing(self, mask: KeyMask) -> KeyMask:
        """The sequences that they stand in."""
        assert mask.unpadded is not None
        return KeyMask(unpadded=Unpadded(self.packing.offsets, mask.unpadded.keys))


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


def within(queries: Packing, keys: Packing | None = None, *, causal: bool = False) -> KeyMask:
    """Each query sees its own sequence of the keys, or of it the keys up to its own position."""
    keys = queries if keys is None else keys
    return KeyMask(unpadded=Unpadded(queries.offsets, keys.offsets, causal))
