"""Layouts of a batch: padded to the longest sequence, (B, T), or unpadded, (1, N).

What a layer computes of each token alone does not depend on where sequences begin and end.
Attention does, and reads it from `ops.UnpaddedMask`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from regard.ops import KeyMask, SequenceOffsets, UnpaddedMask

MULTIPLE = 16  # of tokens: oneDNN compiles a kernel for each new size, so there should be few


class TokenSubset(Protocol):
    """The tokens whose hidden states are wanted; the last block computes no others."""

    def of(self, hidden: Tensor) -> Tensor:
        """Their hidden states: (B, T, D) -> (B, T', D), or (1, N, D) -> (1, M, D)."""

    def mask_of(self, mask: KeyMask) -> KeyMask:
        """The keys that they may attend to."""


class AllTokens:
    """Every token."""

    def of(self, hidden: Tensor) -> Tensor:
        """(B, T, D) as it is."""
        return hidden

    def mask_of(self, mask: KeyMask) -> KeyMask:
        """As it is."""
        return mask


ALL = AllTokens()


class FirstTokens:
    """The first token of each padded sequence."""

    def of(self, hidden: Tensor) -> Tensor:
        """(B, T, D) -> (B, 1, D)"""
        return hidden[:, :1]

    def mask_of(self, mask: KeyMask) -> KeyMask:
        """That of the first query of each sequence."""
        if mask.sparse is not None:
            return KeyMask(mask.sparse.grid(1))
        if mask.grid is None or mask.grid.size(-2) == 1:
            return mask
        return KeyMask(mask.grid[..., :1, :])


@dataclass(frozen=True)
class UnpaddedTokens:
    """Some tokens of sequences without padding: their indices (M,), ascending, and their layout."""

    tokens: Tensor
    layout: UnpaddedLayout

    def of(self, hidden: Tensor) -> Tensor:
        """(1, N, D) -> (1, M, D)"""
        return _Move.apply(hidden[0], self.tokens, None)[None]

    def mask_of(self, mask: KeyMask) -> KeyMask:
        """Each query sees its own sequence.

        Raises:
            ValueError: the mask is causal, so that queries have keys of their own.
        """
        if mask.unpadded is None or mask.unpadded.causal:
            raise ValueError(
                "Some tokens of an unpadded batch can be selected only where each token sees its "
                "whole sequence. Encode all tokens, and select among their hidden states."
            )
        return KeyMask(unpadded=UnpaddedMask(self.layout.offsets, mask.unpadded.keys))


class UnpaddedLayout:
    """Which tokens of a padded batch (B, T) the unpadded one (1, N) holds, in which order.

    width: T.  tokens: the index of each token in the flattened batch (B * T).  slots: (N,) these,
    followed by up to 15 indices of padding if there are as many, so that N is a multiple of 16.
    They are a sequence of their own at the end, which nothing reads and which is no longer than
    the others can be.
    """

    def __init__(self, lengths: Tensor, width: int, multiple: int = MULTIPLE):
        keep = torch.arange(width) < lengths[:, None]
        tokens, gaps = (part.flatten().nonzero()[:, 0] for part in (keep, ~keep))
        self.lengths, self.width, self.tokens = lengths, width, tokens
        self.slots = torch.cat([tokens, gaps[: -len(tokens) % max(1, min(multiple, width))]])

    @cached_property
    def offsets(self) -> SequenceOffsets:
        """Where sequences begin; the last one is that of padding."""
        ends = torch.cat([self.lengths.new_zeros(1), self.lengths.cumsum(0)])
        starts = torch.cat([ends, ends.new_full((1,), len(self.slots))])
        return SequenceOffsets(starts, self.width, spare=1)

    @cached_property
    def positions(self) -> Tensor:
        """Of each token in its sequence, (1, N)."""
        return (self.slots % max(1, self.width))[None]

    def unpad(self, x: Tensor) -> Tensor:
        """(B, T, ...) -> (1, N, ...)"""
        return _Move.apply(x.flatten(0, 1), self.slots, None)[None]

    def pad(self, x: Tensor) -> Tensor:
        """(1, N, ...) -> (B, T, ...), zeros at padding."""
        shape = len(self.lengths), self.width
        return _Move.apply(x[0], self.slots, shape[0] * shape[1]).unflatten(0, shape)

    def subset(self, chosen: Tensor) -> UnpaddedTokens:
        """The tokens where (B, T) is true.

        Raises:
            ValueError: it is true at padding.
        """
        indices = chosen.flatten().nonzero()[:, 0]
        numbers = torch.searchsorted(self.tokens, indices)
        if not torch.equal(self.tokens[numbers.clamp(max=len(self.tokens) - 1)], indices):
            raise ValueError("`chosen` is true at padding, behind the end of a sequence.")
        counts = chosen.sum(1)
        width = max(counts.tolist(), default=0)
        return UnpaddedTokens(numbers, UnpaddedLayout(counts, width, multiple=1))

    def first_tokens(self) -> UnpaddedTokens:
        """The first token of each sequence, none of which may be empty."""
        starts = self.offsets.starts[:-2]
        return UnpaddedTokens(starts, UnpaddedLayout(torch.ones_like(starts), 1, multiple=1))


class _Move(torch.autograd.Function):
    """`index_select`, or where `count` is given `index_copy` into so many rows of zeros.

    No index occurs twice, so the backward pass is the other of the two; torch's own gradient of
    `index_select` adds up, which is slower.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, slots: Tensor, count: int | None) -> Tensor:
        ctx.save_for_backward(slots)
        ctx.back = x.size(0) if count is None else None
        if count is None:
            return x.index_select(0, slots)
        return x.new_zeros(count, *x.shape[1:]).index_copy_(0, slots, x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return _Move.apply(grads[0], ctx.saved_tensors[0], ctx.back), None, None
