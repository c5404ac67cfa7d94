"""Masks as predicates on positions: which query may attend to which key.

A mask is a predicate on (sequence, head, query, key) positions, True = may attend. Masks combine
with `&` and `|`:

    causal() & padding(lengths)          a decoder over a padded batch
    window(256) | global_(first=2)       a sparse pattern

`mask.resolve(...)` evaluates the predicate once for a whole stack of layers; the result, a
`KeyMask`, is what attention takes. The masks of a batch itself need no predicate:
`batch.causal_mask()` and `batch.padding_mask()` make a `KeyMask` directly. Biases (real numbers
added to the scores) are another type and never pass here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.errors import check_at_least
from regard.ops import ALL_KEYS, KeyMask

Device = torch.device | str | None


@dataclass(frozen=True)
class Coordinates:
    """The coordinates at which a mask is evaluated; they broadcast to (B, H, T, S)."""

    sequence: Tensor  # (B, 1, 1, 1)
    head: Tensor  # (1, H, 1, 1)
    query: Tensor  # (1 or B, 1, T, 1)
    key: Tensor  # (1, 1, 1, S)

    @classmethod
    def of(
        cls, sequences: int, heads: int, queries: Tensor | int, keys: int, device: Device
    ) -> Coordinates:
        """`queries`: how many positions from 0, or the positions themselves, (T,) or (B, T).

        Positions (B, T) determine the number of sequences.
        """
        if isinstance(queries, int):
            queries = torch.arange(queries, device=device)
        if queries.dim() == 2:
            sequences = _agreed(sequences, queries.size(0))
        else:
            queries = queries[None]
        return cls(
            sequence=torch.arange(sequences, device=device)[:, None, None, None],
            head=torch.arange(heads, device=device)[None, :, None, None],
            query=queries[:, None, :, None],  # (B, T) -> (B, 1, T, 1)
            key=torch.arange(keys, device=device)[None, None, None, :],
        )


@dataclass(frozen=True)
class BlockRanges:
    """The coordinates of blocks at which a mask is evaluated; they broadcast to (B, H, N, M).

    query, key: the first and the last position of each block.
    """

    sequence: Tensor  # (B, 1, 1, 1)
    head: Tensor  # (1, H, 1, 1)
    query: tuple[Tensor, Tensor]  # (N, 1) each
    key: tuple[Tensor, Tensor]  # (1, M) each


class Mask(ABC):
    """A predicate on positions, `allows`. The other methods save work: `trivial` a grid of only
    True, `touches` blocks without allowed pairs, `same_within_blocks` the grids inside blocks.
    """

    @abstractmethod
    def allows(self, at: Coordinates) -> Tensor:
        """Boolean, broadcastable to (B, H, T, S)."""

    def trivial(self, keys: int) -> bool:
        """Whether the mask is known to allow every pair with the first `keys` keys."""
        return False

    def touches(self, at: BlockRanges) -> Tensor:
        """Whether a query of block n may see a key of block m, broadcastable to (B, H, N, M); True
        where that is not known.
        """
        return torch.ones(1, 1, 1, 1, dtype=torch.bool, device=at.sequence.device)

    def same_within_blocks(self, size: int) -> bool:
        """Whether all queries of a block of `size` positions are known to see the same keys."""
        return False

    def simplified(self, keys: int) -> Mask:
        """An equal mask without trivial parts: causal and without padding it is causal, so that
        the causal kernel computes it.
        """
        return self

    def __and__(self, other: Mask) -> Mask:
        return Both(self, other)

    def __or__(self, other: Mask) -> Mask:
        return Either(self, other)

    def grid(
        self,
        queries: Tensor | int,
        keys: int,
        *,
        sequences: int = 1,
        heads: int = 1,
        device: Device = None,
    ) -> Tensor:
        """The dense boolean grid (B, H, T, S), for pictures, tests and kernels.

        Args:
            queries: how many query positions (counted from 0), or the positions: (T,) or (B, T).
            keys: how many key positions, S.
        """
        at = Coordinates.of(sequences, heads, queries, keys, device)
        return self.allows(at).expand(at.sequence.size(0), heads, at.query.size(2), keys)

    def resolve(
        self,
        queries: Tensor | int,
        keys: int,
        *,
        sequences: int = 1,
        heads: int = 1,
        device: Device = None,
    ) -> KeyMask:
        """The mask for a stack of layers; a dimension on which it does not depend has size 1.

        Args: as of `grid`.
        """
        mask = self.simplified(keys)
        if mask.trivial(keys):
            return ALL_KEYS
        at = Coordinates.of(sequences, heads, queries, keys, device)
        square = isinstance(queries, int) and queries == keys
        return KeyMask(mask.allows(at), is_causal=square and isinstance(mask, Causal))


@dataclass(frozen=True)
class Both(Mask):
    left: Mask
    right: Mask

    def allows(self, at: Coordinates) -> Tensor:
        return self.left.allows(at) & self.right.allows(at)

    def trivial(self, keys: int) -> bool:
        return self.left.trivial(keys) and self.right.trivial(keys)

    def touches(self, at: BlockRanges) -> Tensor:
        return self.left.touches(at) & self.right.touches(at)

    def same_within_blocks(self, size: int) -> bool:
        return self.left.same_within_blocks(size) and self.right.same_within_blocks(size)

    def simplified(self, keys: int) -> Mask:
        for part, other in ((self.left, self.right), (self.right, self.left)):
            if part.trivial(keys):
                return other.simplified(keys)
        return self


@dataclass(frozen=True)
class Either(Mask):
    left: Mask
    right: Mask

    def allows(self, at: Coordinates) -> Tensor:
        return self.left.allows(at) | self.right.allows(at)

    def trivial(self, keys: int) -> bool:
        return self.left.trivial(keys) or self.right.trivial(keys)

    def touches(self, at: BlockRanges) -> Tensor:
        return self.left.touches(at) | self.right.touches(at)

    def same_within_blocks(self, size: int) -> bool:
        return self.left.same_within_blocks(size) and self.right.same_within_blocks(size)


@dataclass(frozen=True)
class Causal(Mask):
    def allows(self, at: Coordinates) -> Tensor:
        return at.key <= at.query

    def touches(self, at: BlockRanges) -> Tensor:
        return (at.key[0] <= at.query[1])[None, None]


@dataclass(frozen=True)
class Padding(Mask):
    lengths: Tensor  # (B,)

    def allows(self, at: Coordinates) -> Tensor:
        if at.sequence.numel() != self.lengths.numel():
            raise ValueError(
                f"`sequences` must be {self.lengths.numel()}, one for each of the lengths, "
                f"but is {at.sequence.numel()}."
            )
        return at.key < self.lengths.to(at.key.device)[at.sequence]

    def touches(self, at: BlockRanges) -> Tensor:
        return at.key[0] < self.lengths.to(at.sequence.device)[at.sequence]

    def same_within_blocks(self, size: int) -> bool:
        return True

    def trivial(self, keys: int) -> bool:
        # Asking a GPU tensor for its smallest value would stall the queue: only ask on the CPU.
        if self.lengths.device.type != "cpu" or self.lengths.numel() == 0:
            return False
        return bool(self.lengths.min() >= keys)


@dataclass(frozen=True)
class Window(Mask):
    before: int
    after: int
    step: int = 1

    def allows(self, at: Coordinates) -> Tensor:
        distance = at.query - at.key
        inside = (distance <= self.before) & (distance >= -self.after)
        return inside if self.step == 1 else inside & (distance % self.step == 0)

    def touches(self, at: BlockRanges) -> Tensor:
        least, greatest = at.query[0] - at.key[1], at.query[1] - at.key[0]
        return ((least <= self.before) & (greatest >= -self.after))[None, None]


@dataclass(frozen=True)
class Global(Mask):
    first: int

    def allows(self, at: Coordinates) -> Tensor:
        return (at.key < self.first) | (at.query < self.first)

    def touches(self, at: BlockRanges) -> Tensor:
        return ((at.key[0] < self.first) | (at.query[0] < self.first))[None, None]

    def same_within_blocks(self, size: int) -> bool:
        return self.first % size == 0


@dataclass(frozen=True)
class Given(Mask):
    table: Tensor  # (T, S), (B, T, S) or (B, H, T, S)

    def allows(self, at: Coordinates) -> Tensor:
        table = self.table.to(at.key.device)
        while table.dim() < 4:  # (T, S) -> (1, 1, T, S); (B, T, S) -> (B, 1, T, S)
            table = table.unsqueeze(0 if table.dim() == 2 else 1)
        sequences, heads = table.shape[:2]
        sequence = 0 if sequences == 1 else at.sequence
        head = 0 if heads == 1 else at.head
        try:
            if sequences not in (1, at.sequence.numel()) or heads not in (1, at.head.numel()):
                raise IndexError
            return table[sequence, head, at.query, at.key]
        except IndexError:
            asked = at.sequence.numel(), at.head.numel(), at.query.size(2), at.key.size(-1)
            raise ValueError(
                f"`grid` must cover all coordinates {asked}, but is {tuple(table.shape)}."
            ) from None


def causal() -> Mask:
    """Position t sees positions 0 … t (Vaswani et al. 2017, section 3.2.3)."""
    return Causal()


def padding(lengths: Tensor) -> Mask:
    """Sequence b sees its first `lengths[b]` keys, (B,) integers.

    Raises:
        ValueError: `lengths` is no vector of integers.
    """
    if lengths.dim() != 1 or lengths.is_floating_point():
        raise ValueError(
            f"`lengths` must be a vector of integers, one per sequence, but is {lengths.dtype} "
            f"of shape {tuple(lengths.shape)}."
        )
    return Padding(lengths)


def window(before: int, after: int | None = None, *, step: int = 1) -> Mask:
    """Position t sees t - before … t + after; one number means the same on both sides.

    step: of these only every `step`-th, counted from t: a dilated window.

    Raises:
        ConfigError: `before` or `after` is negative, or `step` is below 1.
    """
    after = before if after is None else after
    check_at_least(0, before=before, after=after)
    check_at_least(1, step=step)
    return Window(before, after, step)


def global_(first: int) -> Mask:
    """The first `first` positions see every key, and every query sees them (BigBird, section 2).

    Raises:
        ConfigError: `first` is negative.
    """
    check_at_least(0, first=first)
    return Global(first)


def given(grid: Tensor) -> Mask:
    """The mask of a boolean grid, (T, S), (B, T, S) or (B, H, T, S), such as a permutation's.

    Raises:
        ValueError: the grid is not boolean, or has another number of dimensions.
    """
    if grid.dtype != torch.bool:
        raise ValueError(
            f"`grid` must be boolean (True = may attend), but is {grid.dtype}. "
            "Numbers that are added to the scores are a bias: pass them as `bias`."
        )
    if not 2 <= grid.dim() <= 4:
        raise ValueError(f"`grid` must have 2 to 4 dimensions, but has {grid.dim()}.")
    return Given(grid)


def _agreed(sequences: int, rows: int) -> int:
    if sequences not in (1, rows):
        raise ValueError(f"`sequences` must be {rows}, as `queries` has, but is {sequences}.")
    return rows
