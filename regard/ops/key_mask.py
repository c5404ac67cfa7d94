"""Masks as attention takes them: as a grid, as blocks, or as offsets of unpadded sequences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class SequenceOffsets:
    """B sequences without padding, one after another in one row of N tokens.

    starts: (B + 1,) int64, where each sequence begins, and N.
    longest: T, the greatest length.
    spare: how many of the sequences, the last ones, are padding that only makes N a round number.
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
        """(B, T) bool, which positions of the padded sequences hold a token."""
        lengths = self.starts.diff()[:, None]  # (B, 1)
        return torch.arange(self.longest, device=lengths.device) < lengths

    def pad(self, x: Tensor) -> Tensor:
        """(1, H, N, K) -> (B, H, T, K), zeros at padding."""
        if not x.size(2):
            return x.new_zeros(len(self.starts) - 1, x.size(1), self.longest, x.size(3))
        position = torch.arange(self.longest, device=x.device)
        token = (self.starts[:-1, None] + position).clamp(max=x.size(2) - 1)  # (B, T)
        padded = x[0].transpose(0, 1).index_select(0, token.flatten())  # (H, N, K) -> (B T, H, K)
        padded = padded.unflatten(0, token.shape).masked_fill(~self.keep[..., None, None], 0.0)
        return padded.transpose(1, 2)  # (B, T, H, K) -> (B, H, T, K)

    def unpad(self, x: Tensor, count: int) -> Tensor:
        """(B, H, T, K) -> (1, H, N, K), N being `count`."""
        token = torch.arange(count, device=x.device)
        # `right`: of sequences that begin at one token all but the last are empty.
        row = torch.searchsorted(self.starts, token, right=True) - 1  # (N,)
        flat = x.transpose(1, 2).flatten(0, 1)  # (B, H, T, K) -> (B * T, H, K)
        unpadded = flat.index_select(0, row * self.longest + token - self.starts[row])
        return unpadded.transpose(0, 1)[None]  # (N, H, K) -> (1, H, N, K)


@dataclass(frozen=True)
class UnpaddedMask:
    """Attention among sequences without padding: each query sees the keys of its own sequence.

    causal: of these only the ones up to and including its own position; queries and keys are of the
        same sequences then.
    window: of the causal ones only the last so many; None: all.

    Raises:
        ValueError: a window without `causal`.
    """

    queries: SequenceOffsets
    keys: SequenceOffsets
    causal: bool = False
    window: int | None = None

    def __post_init__(self) -> None:
        if self.window is not None and not self.causal:
            raise ValueError("a window of unpadded sequences must be causal.")

    @property
    def padded(self) -> KeyMask:
        """The mask of the same sequences with padding."""
        if not self.causal:
            return KeyMask(self.keys.keep[:, None, None, :])  # (B, S) -> (B, 1, 1, S)
        return KeyMask.causal(self.keys.longest, self.keys.starts.device, self.window)


@dataclass(frozen=True)
class BlockRows:
    """R blocks of queries, each of which reads M blocks of keys.

    rows: (R,) indices of the blocks of queries.
    keys: (B or 1, H or 1, R, M) indices of the blocks of keys that each of them reads.
    grid: (B or 1, H or 1, R, size or 1, M * size) bool, which of these keys each query may see.
    """

    rows: Tensor
    keys: Tensor
    grid: Tensor


@dataclass(frozen=True, eq=False)
class SparseMask:
    """A mask of as many queries as keys that forbids most blocks of keys.

    size: queries, and keys, of a block.
    length: queries of a sequence.
    rows: the blocks that are computed; every block of queries is in one of them.
    grid: from a number of queries T, the first ones, to their rows of the dense grid, (B, H, T, S).
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
        keys = torch.arange(count, device=device)  # (S,)
        queries = keys[:, None]  # (T, 1)
        if window is None or count <= window:
            return cls((keys <= queries)[None, None], is_causal=True)
        return cls(((keys <= queries) & (keys > queries - window))[None, None])

    @classmethod
    def padding(cls, lengths: Tensor, width: int) -> KeyMask:
        """Each query of sequence b sees the first `lengths[b]` of `width` keys.

        lengths: (B,) int64.
        """
        if _can_branch_on(lengths) and lengths.numel() and int(lengths.min()) >= width:
            return ALL_KEYS
        keys = torch.arange(width, device=lengths.device)
        return cls((keys < lengths[:, None])[:, None, None, :])  # (B, S) -> (B, 1, 1, S)

    @cached_property
    def blocked(self) -> Tensor | None:
        """True = may not attend: the opposite of the grid; None where all keys may be seen."""
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
