"""Masks as attention takes them: as a grid, as blocks, or as offsets of unpadded sequences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class SequenceOffsets:
    """Sequences without padding, one behind the other in one row of N tokens.

    starts: (R + 1,) int64, where each sequence begins, and N.  longest: the greatest length.
    spare: how many of them, at the end, are padding that only makes N a round number.
    """

    starts: Tensor
    longest: int
    spare: int = 0

    @property
    def count(self) -> int:
        """The number of sequences, without those that are only padding."""
        return len(self.starts) - 1 - self.spare

    @cached_property
    def keep(self) -> Tensor:
        """(R, W) boolean: which positions of the padded sequences hold a token."""
        lengths = self.starts.diff()[:, None]
        return torch.arange(self.longest, device=lengths.device) < lengths

    def pad(self, x: Tensor) -> Tensor:
        """(1, H, N, K) -> (R, H, W, K), zeros at padding."""
        if not x.size(2):
            return x.new_zeros(len(self.starts) - 1, x.size(1), self.longest, x.size(3))
        position = torch.arange(self.longest, device=x.device)
        token = (self.starts[:-1, None] + position).clamp(max=x.size(2) - 1)  # (R, W)
        padded = x[0].transpose(0, 1).index_select(0, token.flatten())  # (H, N, K) -> (R W, H, K)
        padded = padded.unflatten(0, token.shape).masked_fill(~self.keep[..., None, None], 0.0)
        return padded.transpose(1, 2)  # (R, W, H, K) -> (R, H, W, K)

    def unpad(self, x: Tensor, count: int) -> Tensor:
        """(R, H, W, K) -> (1, H, N, K), N being `count`."""
        token = torch.arange(count, device=x.device)
        row = torch.searchsorted(self.starts, token, right=True) - 1  # of empty ones the last
        flat = x.transpose(1, 2).flatten(0, 1)  # (R, H, W, K) -> (R * W, H, K)
        found = flat.index_select(0, row * self.longest + token - self.starts[row])
        return found.transpose(0, 1)[None]


@dataclass(frozen=True)
class UnpaddedMask:
    """Attention among sequences without padding: each query sees the keys of its own sequence.

    causal: of these only the ones up to and including its own position.
    window: of these only the last so many; None: all.
    """

    queries: SequenceOffsets
    keys: SequenceOffsets
    causal: bool = False
    window: int | None = None

    @property
    def padded(self) -> KeyMask:
        """The mask of the same sequences with padding."""
        if not self.causal:
            return KeyMask(self.keys.keep[:, None, None, :])  # (R, W) -> (R, 1, 1, W)
        return KeyMask.causal(self.keys.longest, self.keys.starts.device, self.window)


@dataclass(frozen=True)
class BlockRows:
    """Some blocks of queries, which see as many blocks of keys.

    rows: (R,) numbers of blocks of queries.
    keys: (B or 1, H or 1, R, M) numbers of the blocks of keys that each of them reads.
    grid: (B or 1, H or 1, R, size or 1, M * size), which of these keys each query may see.
    """

    rows: Tensor
    keys: Tensor
    grid: Tensor


@dataclass(frozen=True, eq=False)
class SparseMask:
    """A mask of as many queries as keys that leaves most blocks of them out.

    size: of a block.  length: queries of a sequence.  rows: what is computed, every block of
    queries once.  grid: gives the first queries' part of the dense grid, (B, H, T, S).
    """

    size: int
    length: int
    rows: tuple[BlockRows, ...]
    grid: Callable[[int], Tensor]

    @cached_property
    def dense(self) -> KeyMask:
        """The same mask as a grid."""
        return KeyMask(self.grid(self.length))


def _can_branch_on(tensor: Tensor) -> bool:
    """Whether Python may read values to choose what is computed: not on a GPU, nor in an export."""
    return tensor.device.type == "cpu" and not torch.compiler.is_exporting()


@dataclass(frozen=True)
class KeyMask:
    """Which keys each query may attend to.

    grid: boolean, broadcastable to (B, H, T, S), True = may attend; None: all of them.
    is_causal: the grid is exactly `key <= query` with as many queries as keys.
    unpadded: replaces both for sequences without padding, (1, H, N, K).
    sparse: replaces both where most blocks of keys are left out.
    """

    grid: Tensor | None = None
    is_causal: bool = False
    unpadded: UnpaddedMask | None = None
    sparse: SparseMask | None = None

    @classmethod
    def causal(
        cls, count: int, device: torch.device | None = None, window: int | None = None
    ) -> KeyMask:
        """Each of `count` queries sees the keys up to its own position, of these the last
        `window`; None: all.
        """
        keys = torch.arange(count, device=device)
        queries = keys[:, None]
        if window is None or count <= window:
            return cls((keys <= queries)[None, None], is_causal=True)
        return cls(((keys <= queries) & (keys > queries - window))[None, None])

    @classmethod
    def padding(cls, lengths: Tensor, width: int) -> KeyMask:
        """Sequence b sees its first `lengths[b]` of `width` keys: (B,) integers."""
        if _can_branch_on(lengths) and lengths.numel() and int(lengths.min()) >= width:
            return ALL_KEYS
        keys = torch.arange(width, device=lengths.device)
        return cls((keys < lengths[:, None])[:, None, None, :])  # (B, S) -> (B, 1, 1, S)

    @cached_property
    def blocked(self) -> Tensor | None:
        """The opposite of the grid."""
        return None if self.grid is None else ~self.grid

    @cached_property
    def idle(self) -> Tensor | None:
        """(..., T, 1), True for a query that may see no key; None where there surely is none."""
        if self.grid is None or self.is_causal:
            return None
        idle = ~self.grid.any(-1, keepdim=True)
        # Where Python cannot read the values, the weights of idle queries are always set to zero.
        return None if _can_branch_on(idle) and not bool(idle.any()) else idle


ALL_KEYS = KeyMask()
