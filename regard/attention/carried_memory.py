"""Transformer-XL's memory: the inputs of each layer at the last M positions.

Dai et al. 2019, section 3.2. The next segment attends to them, and no gradient flows back into
them. In evaluation the keys and values of these positions are cached as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from regard.ops import ALL_KEYS, KeyMask
from regard.state import State

UNLIMITED = 1 << 62  # a limit that no text reaches
# From a layer (from 0) and hidden states (B, M, D) to keys and values (B, H, M, K).
KeysAndValues = Callable[[int, Tensor], tuple[Tensor, Tensor]]


@dataclass
class DistanceKeys(State):
    """W_r r of the distances C - 1 ... 0, for every layer: (L, H, C, K), for all sequences.

    It depends on the weights alone, so that checkpoints do not hold it.
    """

    keys: Tensor

    @property
    def count(self) -> int:
        """C"""
        return self.keys.size(2)

    def layer(self, number: int, count: int) -> Tensor:
        """The last `count` of them for layer `number` (from 0): (1, H, S, K)."""
        return self.keys[number, None, :, self.count - count :]

    def tensors(self) -> dict[str, Tensor]:
        """None."""
        return {}

    def with_tensors(self, tensors: dict[str, Tensor]) -> Self:
        """The same."""
        return self

    def _map(self, on_tensor: Callable, on_state: Callable) -> Self:
        return self


@dataclass
class CarriedMemory(State):
    """Transformer-XL's memory. C: allocated positions, of which the newest is `end - 1`.

    hidden: (B, L, C, D), the inputs of the layers.
    keys, values: (B, L, H, C, K), those of `hidden`; C is 0 where they are not cached.
    lengths: (B,), valid positions of each sequence, which end at `end`; earlier ones are masked.
    equal_lengths: whether all `lengths` are known to be the same.
    limit: M, the most positions that a segment reads.
    window: each query sees the last `window` keys, its own included; 0: all.
    """

    hidden: Tensor
    keys: Tensor
    values: Tensor
    lengths: Tensor
    distances: DistanceKeys
    limit: int
    window: int = 0
    end: int = 0
    equal_lengths: bool = True

    BY_POSITION: ClassVar[tuple[str, ...]] = ("hidden",)  # (B, L, ..., C, ·) or (B, C, ·)

    @property
    def held(self) -> int:
        """The number of positions that are stored for later segments, at most M."""
        return min(self.end, self.limit)

    @property
    def count(self) -> int:
        """The number of positions that the next segment reads."""
        return min(self.held, self.window - 1) if self.window else self.held

    @property
    def has_keys(self) -> bool:
        """Whether keys and values are cached."""
        return self.keys.size(3) == self.hidden.size(2)

    @property
    def newest(self) -> Tensor:
        """The hidden states of the last M positions, (B, L, M, D), or of as many as there are."""
        return self.hidden[:, :, self.end - self.held : self.end]

    def copy(self) -> Self:
        """See `State.copy`; in memory of its own, since a segment is written into it."""
        self.check_unused()
        return self._map(Tensor.clone, State.copy)

    def keeping_all(self) -> Self:
        """See `State.keeping_all`; where each token sees a window, it still does."""
        return replace(self, limit=UNLIMITED)

    def tensors(self) -> dict[str, Tensor]:
        """Hidden states and lengths: all that the next segment depends on."""
        stored = slice(self.end - self.held, self.end)
        by_position = {name: vars(self)[name][..., stored, :] for name in self.BY_POSITION}
        return {**by_position, "lengths": self.lengths}

    def with_tensors(self, tensors: dict[str, Tensor]) -> Self:
        by_position = {name: tensors[name].clone() for name in self.BY_POSITION}
        lengths, end = tensors["lengths"], by_position["hidden"].size(2)
        equal_lengths = bool((lengths >= end).all())
        changes: dict[str, Any] = {
            **by_position,
            "lengths": lengths,
            "end": end,
            "equal_lengths": equal_lengths,
        }
        return replace(self, **changes).without_keys()

    # ---- a segment

    def reserve(self, count: int) -> Self:
        """With capacity for `count` further positions; positions before the last M are dropped."""
        if self.end + count <= self.hidden.size(2):
            return self
        start, used = self.end - self.held, self.held
        enough = used + count <= self.hidden.size(2)
        capacity = used + count + max(16, min(self.limit, used + count) // 4)

        def moved(tensor: Tensor) -> Tensor:
            if enough:  # in the same buffer, one layer at a time where there are layers
                for part in tensor.unbind(1) if tensor.dim() > 3 else [tensor]:
                    part[..., :used, :] = part[..., start : self.end, :].clone()
                return tensor
            buffer = tensor.new_zeros(*tensor.shape[:-2], capacity, tensor.size(-1))
            buffer[..., :used, :] = tensor[..., start : self.end, :]
            return buffer

        return self._at_positions(moved, end=used)

    def with_keys(self, read: KeysAndValues) -> Self:
        """With keys and values, computed by `read` from the hidden states of each layer."""
        if self.has_keys:
            return self
        shape = (*self.keys.shape[:3], self.hidden.size(2), self.keys.size(4))
        keys, values = self.keys.new_zeros(shape), self.keys.new_zeros(shape)
        stored = slice(self.end - self.held, self.end)
        if self.end:
            for layer in range(shape[1]):
                pair = read(layer, self.hidden[:, layer, stored])
                keys[:, layer, :, stored], values[:, layer, :, stored] = pair
        return replace(self, keys=keys, values=values)

    def without_keys(self) -> Self:
        """Without keys and values: the weights that computed them may have changed."""
        none = self.keys[:, :, :, :0]
        return replace(self, keys=none, values=none)

    def mask(self, count: int) -> KeyMask:
        """The mask of the next `count` queries over the memory and their own keys."""
        earlier, device = self.count, self.lengths.device
        if count == 1 and self.equal_lengths:
            return ALL_KEYS
        if not earlier and not self.window:
            return KeyMask.causal(count, device)
        keys = torch.arange(earlier + count, device=device)
        distance = torch.arange(earlier, earlier + count, device=device)[:, None] - keys  # (T, S)
        allowed = distance >= 0
        if self.window:
            allowed &= distance < self.window
        if self.equal_lengths:
            return KeyMask(allowed[None, None])
        filled = keys >= earlier - self.lengths[:, None]  # (B, S)
        return KeyMask(allowed & filled[:, None, None])  # (B, 1, T, S)

    def write(self, layer: int, hidden: Tensor) -> None:
        """Store the inputs (B, T, D) of a layer (from 0)."""
        self.hidden[:, layer, self.end : self.end + hidden.size(1)] = hidden.detach()

    def read(self, layer: int, like: Tensor) -> Tensor:
        """The earlier inputs of a layer, (B, M, D) in the type of `like`; a copy, since gradients
        may need them after the next segment was written.
        """
        earlier = self.hidden[:, layer, self.end - self.count : self.end]
        return earlier.to(like.dtype, copy=True)

    def layer(self, number: int) -> LayerMemory:
        """The keys and values of one layer (from 0), for its attention."""
        return LayerMemory(self, number)

    def advance(self, count: int, lengths: Tensor | None = None) -> Self:
        """After every layer has written `count` positions, of which sequence b has `lengths[b]`."""
        added = count if lengths is None else lengths.to(self.lengths)
        filled = (self.lengths + added).clamp(max=self.limit)
        after = replace(self, lengths=filled, end=self.end + count)
        return after if lengths is None else after._shifted_right(count - lengths.to(self.lengths))

    def _shifted_right(self, padding: Tensor) -> Self:
        """Shift sequence b right by `padding[b]` positions, (B,), so that all end at `end`."""
        position = torch.arange(self.end - self.held, self.end, device=padding.device)
        at = (position - padding[:, None]).clamp(min=0)  # (B, M); no query sees what is below 0
        return self._at_positions(
            lambda tensor: at_positions(tensor, at), end=self.held, equal_lengths=False
        )

    def _at_positions(self, moved: Callable[[Tensor], Tensor], **changes: Any) -> Self:
        """`moved` of every tensor (..., C, ·), and other changes."""
        names = [*self.BY_POSITION, *(("keys", "values") if self.has_keys else ())]
        return replace(self, **changes | {name: moved(vars(self)[name]) for name in names})


def at_positions(tensor: Tensor, at: Tensor) -> Tensor:
    """Gather the positions `at` (B, M) of each sequence: (B, L, ..., C, ·) -> (B, L, ..., M, ·)."""
    row = torch.arange(len(at), device=at.device)[:, None]
    # (B, L, ..., C, ·) -> (B, C, L, ..., ·) -> (B, M, L, ..., ·) -> (B, L, ..., M, ·)
    return tensor.movedim(-2, 1)[row, at].movedim(1, -2).contiguous()


@dataclass(frozen=True)
class LayerMemory:
    """The key/value cache of one layer of a `CarriedMemory`, a `LayerCache`."""

    memory: CarriedMemory
    number: int

    def update(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store those of new positions, (B, H, T, K) twice; return all, (B, H, S, K) twice."""
        memory, count = self.memory, key.size(2)
        keys, values = memory.keys[:, self.number], memory.values[:, self.number]
        keys[:, :, memory.end : memory.end + count] = key
        values[:, :, memory.end : memory.end + count] = value
        visible = slice(memory.end - memory.count, memory.end + count)
        return keys[:, :, visible].to(key), values[:, :, visible].to(value)


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
