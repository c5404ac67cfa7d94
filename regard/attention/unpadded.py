"""Sequences one behind the other, (1, N, ...), instead of padded to the longest, (B, T, ...).

What a layer does to each token alone does not ask where sequences begin and end; attention does,
and reads it from `ops.UnpaddedMask`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from regard.attention.gates import gating
from regard.attention.tap import listening
from regard.ops import KeyMask, SequenceOffsets, UnpaddedMask

MULTIPLE = 16  # of tokens: oneDNN compiles a kernel for each new size, so there should be few


class UnpaddedLayout:
    """Which tokens of a padded batch (B, T) the unpadded one (1, N) holds, in which order.

    tokens: the index of each in the flattened batch (B * T). places: (N,) these, followed by up to
    15 indices of padding if there are as many, so that N is a multiple of 16. They are a sequence
    of their own at the end, which nobody reads and which is no longer than the others can be.
    """

    def __init__(self, lengths: Tensor, width: int, multiple: int = MULTIPLE):
        keep = torch.arange(width) < lengths[:, None]
        tokens, gaps = (part.flatten().nonzero()[:, 0] for part in (keep, ~keep))
        self.lengths, self.width, self.tokens = lengths, width, tokens
        self.places = torch.cat([tokens, gaps[: -len(tokens) % max(1, min(multiple, width))]])

    @cached_property
    def offsets(self) -> SequenceOffsets:
        """Where sequences begin; the last one is that of padding."""
        ends = torch.cat([self.lengths.new_zeros(1), self.lengths.cumsum(0)])
        starts = torch.cat([ends, ends.new_full((1,), len(self.places))])
        return SequenceOffsets(starts, self.width, spare=1)

    def flat(self, x: Tensor) -> Tensor:
        """(B, T, ...) -> (1, N, ...)"""
        return _Move.apply(x.flatten(0, 1), self.places, None)[None]

    def padded(self, x: Tensor) -> Tensor:
        """(1, N, ...) -> (B, T, ...), zeros at padding."""
        shape = len(self.lengths), self.width
        return _Move.apply(x[0], self.places, shape[0] * shape[1]).unflatten(0, shape)

    def at(self, places: Tensor) -> TokenSubset:
        """The tokens where (B, T) is true; nothing at padding may be."""
        numbers = torch.searchsorted(self.tokens, places.flatten().nonzero()[:, 0])
        counts = places.sum(1)
        return TokenSubset(
            numbers, UnpaddedLayout(counts, max(counts.tolist(), default=0), multiple=1)
        )

    def first_tokens(self) -> TokenSubset:
        """The first token of each sequence, none of which may be empty."""
        starts = self.offsets.starts[:-2]
        return TokenSubset(starts, UnpaddedLayout(torch.ones_like(starts), 1, multiple=1))


class FirstToken:
    """The first token of each padded sequence."""

    def of(self, hidden: Tensor) -> Tensor:
        """(B, T, D) -> (B, 1, D)"""
        return hidden[:, :1]

    def mask_of(self, mask: KeyMask) -> KeyMask:
        """Its mask, where all queries of a sequence have the same."""
        return mask


@dataclass(frozen=True)
class TokenSubset:
    """Some tokens of sequences without padding: their indices (M,), ascending, and their layout."""

    tokens: Tensor
    layout: UnpaddedLayout

    def of(self, hidden: Tensor) -> Tensor:
        """(1, N, D) -> (1, M, D)"""
        return _Move.apply(hidden[0], self.tokens, None)[None]

    def mask_of(self, mask: KeyMask) -> KeyMask:
        """Their mask: each query sees its own sequence."""
        assert mask.unpadded is not None
        return KeyMask(unpadded=UnpaddedMask(self.layout.offsets, mask.unpadded.keys))


class _Move(torch.autograd.Function):
    """`index_select`, or where `count` is given `index_copy` into so many rows of zeros.

    No index occurs twice, so the backward pass is the other of the two; torch's own gradient of
    `index_select` adds up, which is slower.
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


def unpadded_layouts(
    *padded: tuple[Tensor, int], least: int = MULTIPLE
) -> tuple[UnpaddedLayout, ...] | None:
    """The layouts of batches, each given by its lengths (B,) and its width; None: stay padded.

    They stay padded where there is less padding than `least`, while attention capture or head
    gating is on, and on other devices than a CPU: counting tokens would synchronize with them.
    """
    on_cpu = all(lengths.device.type == "cpu" for lengths, _ in padded)
    if not on_cpu or listening.get() is not None or gating.get() is not None:
        return None
    if not any(len(n) * width - int(n.sum()) >= least for n, width in padded):
        return None
    return tuple(UnpaddedLayout(lengths, width) for lengths, width in padded)


def unpadded_mask(
    queries: UnpaddedLayout, keys: UnpaddedLayout | None = None, *, causal: bool = False
) -> KeyMask:
    """Each query sees its own sequence, or where `causal` its keys up to its own position."""
    keys = queries if keys is None else keys
    return KeyMask(unpadded=UnpaddedMask(queries.offsets, keys.offsets, causal))
