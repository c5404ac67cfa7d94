"""The Compressive Transformer's memory: behind Transformer-XL's the compressed older positions.

Rae et al. 2019, section 3. The memory of a layer is a row of slots. The newest are the layer's
inputs at single positions. When they are c more than M, the c oldest of them become one slot, which
`regard.layers.compression` computes; N such slots are kept:

    compressed (up to N), then single positions (M to M + c - 1), then the segment

Which positions have been compressed depends on how many were read, not on the lengths of the
segments. Where these and M are multiples of c, it is algorithm 1 of the paper, which begins with
slots of zeros instead of none.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor

from regard.attention.carried_memory import (
    UNLIMITED,
    CarriedMemory,
    KeysAndValues,
    at_positions,
)


@dataclass
class CompressedMemory(CarriedMemory):
    """`lengths`, `limit`, `newest` and `count` of `CarriedMemory` are of slots of both kinds.

    single: (B,), how many of each sequence's slots are single positions.
    memory_length: M.  compressed_length: N.  rate: c.
    slots: the most of a sequence; if `equal_lengths`, of every one.
    singles: likewise, of single positions.
    """

    single: Tensor = field(kw_only=True)
    memory_length: int = field(kw_only=True)
    compressed_length: int = field(kw_only=True)
    rate: int = field(kw_only=True)
    slots: int = 0
    singles: int = 0

    @property
    def held(self) -> int:
        return self.slots

    def keeping_all(self) -> Self:
        """A copy that neither forgets nor compresses."""
        return replace(super().keeping_all(), memory_length=UNLIMITED)

    def tensors(self) -> dict[str, Tensor]:
        return {**super().tensors(), "single": self.single}

    def with_tensors(self, tensors: dict[str, Tensor]) -> Self:
        base, single = super().with_tensors(tensors), tensors["single"]
        singles = int(single.max()) if len(single) else 0
        equal_lengths = base.equal_lengths and bool((single == singles).all())
        return replace(
            base, single=single, singles=singles, slots=base.end, equal_lengths=equal_lengths
        )

    def advance(self, count: int, lengths: Tensor | None = None) -> Self:
        """The states after `count` tokens, which `compress` shortens."""
        added = count if lengths is None else lengths.to(self.lengths)
        after = replace(
            self,
            lengths=self.lengths + added,
            single=self.single + added,
            end=self.end + count,
            slots=self.slots + count,
            singles=self.singles + count,
        )
        return after if lengths is None else after._shifted_right(count - lengths.to(self.lengths))

    # ---- compression

    @property
    def group_counts(self) -> Tensor:
        """How many groups of c positions of each sequence are now compressed: (B,)."""
        return ((self.single - self.memory_length) // self.rate).clamp(min=0)

    @property
    def groups(self) -> int:
        """G, the most of a sequence."""
        if self.equal_lengths or not self.rows:
            return max(0, (self.singles - self.memory_length) // self.rate)
        return int(self.group_counts.max())

    def oldest_groups(self) -> Tensor:
        """The positions that are now compressed: (B, L, G, c, D).

        A sequence with fewer groups than another has any positions behind its own.
        """
        groups = self.groups
        order = torch.arange(groups * self.rate, device=self.single.device)
        at = (self.end - self.single[:, None] + order).clamp(max=max(0, self.end - 1))
        return at_positions(self.hidden, at).unflatten(2, (groups, self.rate))

    def compress(self, compressed: Tensor, read: KeysAndValues | None = None) -> Self:
        """With compressed slots (B, L, G, D) instead of `oldest_groups`.

        read: see `with_keys`; needed where keys are cached.
        """
        if not compressed.size(2):
            return self
        before = slice(self.end - self.slots, self.end)
        at, lengths = self._order(compressed.size(2))

        def moved(slots: Tensor, new_slots: Tensor) -> Tensor:
            return at_positions(torch.cat([slots[..., before, :], new_slots.to(slots)], -2), at)

        changes: dict[str, Any] = {"hidden": moved(self.hidden, compressed)}
        if self.has_keys and read is not None:
            layers = [read(n, new_slots) for n, new_slots in enumerate(compressed.unbind(1))]
            keys, values = (torch.stack(parts, 1) for parts in zip(*layers, strict=True))
            changes |= {"keys": moved(self.keys, keys), "values": moved(self.values, values)}
        single = self.single - self.rate * self.group_counts
        size = at.size(1)
        singles = self.singles - self.rate * compressed.size(2) if self.equal_lengths else size
        return replace(
            self, **changes, lengths=lengths, single=single, singles=singles, slots=size, end=size
        )

    def _order(self, groups: int) -> tuple[Tensor, Tensor]:
        """Which of the slots and, after them, of the new ones make the next memory, (B, S); and how
        many of these each sequence has, (B,).
        """
        new_count, shorter = self.group_counts, (self.rate - 1) * self.group_counts
        single = self.single - self.rate * new_count
        compressed_count = (self.lengths - self.single + new_count).clamp(
            max=self.compressed_length
        )
        lengths = compressed_count + single
        if self.equal_lengths:
            earlier = self.slots - self.singles + groups
            size = min(earlier, self.compressed_length) + self.singles - self.rate * groups
        else:
            size = int(lengths.max())
        age = torch.arange(size - 1, -1, -1, device=lengths.device)  # of a slot; the newest: 0
        new_count, single, shorter = new_count[:, None], single[:, None], shorter[:, None]
        new = self.slots + new_count - 1 - (age - single)
        old = self.slots - 1 - age - torch.where(age < single, 0, shorter)
        at = torch.where((age >= single) & (age < single + new_count), new, old)
        return at.clamp(min=0), lengths
