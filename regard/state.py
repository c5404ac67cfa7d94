"""What a decoder remembers between two steps.

State is a value that travels: `step` takes one and returns the next, nothing about a sentence is
kept on a module. Every tensor of a state has its rows first, so that a beam search reorders LSTM
cells, key/value caches and source memories with the same `select(rows)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor


@dataclass
class State:
    """Base of all states: a dataclass of tensors (rows first), other states, and plain numbers."""

    @property
    def rows(self) -> int:
        """How many sequences are being decoded."""
        values = (value for _, value in self._items())
        first = next(value for value in values if isinstance(value, Tensor | State))
        return first.rows if isinstance(first, State) else first.size(0)

    def select(self, rows: Tensor) -> Self:
        """The state of these rows: (R',) integers; rows may repeat, be dropped, or be reordered."""
        return self._map(lambda tensor: tensor.index_select(0, rows), lambda s: s.select(rows))

    def rewind(self, count: int | Tensor) -> Self:
        """Forget what came last: `count` tokens of every row, or (B,) of each row its own number.

        Raises:
            TypeError: this state keeps what all tokens together made, and not each one's part.
        """

        def stuck(tensor: Tensor) -> Tensor:
            raise TypeError(f"{type(self).__name__} cannot forget the last tokens that it read.")

        return self._map(stuck, lambda state: state.rewind(count))

    def detach(self) -> Self:
        """The same values, cut off from the graph (truncated back-propagation through time)."""
        return self._map(lambda tensor: tensor.detach(), lambda s: s.detach())

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by its dotted name, for checkpoints."""
        found: dict[str, Tensor] = {}
        for name, value in self._items():
            if isinstance(value, Tensor):
                found[name] = value
            elif isinstance(value, State):
                found |= {f"{name}.{inner}": t for inner, t in value.tensors().items()}
        return found

    def with_tensors(self, tensors: dict[str, Tensor]) -> Self:
        """This state with other values, as `tensors()` names them."""
        changed: dict[str, Any] = {}
        for name, value in self._items():
            if isinstance(value, Tensor):
                changed[name] = tensors[name]
            elif isinstance(value, State):
                prefix = f"{name}."
                inner = {k[len(prefix) :]: t for k, t in tensors.items() if k.startswith(prefix)}
                changed[name] = value.with_tensors(inner)
        return replace(self, **changed)

    def _items(self) -> Iterator[tuple[str, Any]]:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, list | tuple | dict | set):
                # It would stay behind, silently, when rows are selected.
                raise TypeError(
                    f"`{field.name}` of {type(self).__name__} must be a tensor, a state or a plain "
                    f"number, but is a {type(value).__name__}: stack its tensors behind the rows."
                )
            yield field.name, value

    def _map(self, on_tensor: Callable, on_state: Callable) -> Self:
        changed: dict[str, Any] = {}
        for name, value in self._items():
            if isinstance(value, Tensor):
                changed[name] = on_tensor(value)
            elif isinstance(value, State):
                changed[name] = on_state(value)
        return replace(self, **changed)


@dataclass
class Cells(State):
    """Recurrent layers: `hidden` and `cell` are (B, L, D); `cell` is empty where there is none."""

    hidden: Tensor
    cell: Tensor


@dataclass
class KeyValueCache(State):
    """Keys and values of every layer, for rows of different lengths.

    `keys`, `values` are (B, L, H, C, K) with room for C positions; row b has filled its first
    `lengths[b]`. No length is above `longest`, and `even` tells that all are equal to it; both are
    plain values so that nobody waits for the device to know them.
    """

    keys: Tensor
    values: Tensor
    lengths: Tensor  # (B,)
    longest: int = 0
    even: bool = True

    @classmethod
    def empty(
        cls, rows: int, layers: int, heads: int, head_dim: int, *, room: int = 16, like: Tensor
    ) -> KeyValueCache:
        """No positions yet, on the device and of the type of `like`."""
        keys = like.new_zeros(rows, layers, heads, room, head_dim)
        lengths = torch.zeros(rows, dtype=torch.long, device=like.device)
        return cls(keys, torch.zeros_like(keys), lengths)

    def reserve(self, count: int) -> KeyValueCache:
        """With room for `count` further positions.

        Room grows by a quarter: every reordering of a beam copies all of it, filled or not.
        """
        room = self.keys.size(3)
        if self.longest + count <= room:
            return self
        extra = max(16, room // 4, self.longest + count - room)
        grow = self.keys.new_zeros(*self.keys.shape[:3], extra, self.keys.size(4))
        return replace(
            self, keys=torch.cat([self.keys, grow], 3), values=torch.cat([self.values, grow], 3)
        )

    def positions(self, count: int) -> Tensor:
        """Where the next `count` tokens of each row stand: (B, T)."""
        return self.lengths[:, None] + torch.arange(count, device=self.lengths.device)

    def write(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store (B, H, T, K) at each row's next positions; give back all of the layer's.

        A layer may have fewer heads than the cache has room for.

        Positions behind a row's own length hold what earlier rows left there: the mask
        `key position <= query position` hides them.
        """
        count = key.size(2)
        heads = slice(key.size(1))
        keys, values = self.keys[:, layer, heads], self.values[:, layer, heads]  # (B, H, C, K)
        if self.even:
            keys[:, :, self.longest : self.longest + count] = key
            values[:, :, self.longest : self.longest + count] = value
        else:
            row = torch.arange(key.size(0), device=key.device)[:, None]
            at = self.positions(count)  # (B, T)
            keys[row, :, at] = key.transpose(1, 2)  # (B, H, T, K) -> (B, T, H, K)
            values[row, :, at] = value.transpose(1, 2)
        return keys[:, :, : self.longest + count], values[:, :, : self.longest + count]

    def advance(self, count: int) -> KeyValueCache:
        """After every layer has written `count` tokens."""
        return replace(self, lengths=self.lengths + count, longest=self.longest + count)

    def cut(self, lengths: Tensor) -> KeyValueCache:
        """Keep only the first `lengths[b]` positions of row b (prompts of different lengths)."""
        longest = int(lengths.max()) if lengths.numel() else 0
        even = bool((lengths == longest).all())
        return replace(self, lengths=lengths.to(self.lengths), longest=longest, even=even)

    def rewind(self, count: int | Tensor) -> KeyValueCache:
        """Forget the last `count` positions of every row, or (B,) of each row its own number."""
        if isinstance(count, Tensor):
            return self.cut(self.lengths - count.to(self.lengths))
        shortest = int(self.lengths.min()) if self.lengths.numel() else self.longest
        if not 0 <= count <= shortest:
            raise ValueError(
                f"`count` must be from 0 to the shortest row's {shortest} positions, "
                f"but is {count}."
            )
        return replace(self, lengths=self.lengths - count, longest=self.longest - count)


@dataclass
class SourceMemory(State):
    """Keys and values of a source, computed once, read by cross-attention at every step.

    The hypotheses of one sentence lie next to each other and share its memory: `keys` and `values`
    (N, L, H, S, K) have one entry a sentence, read by `sharing` rows each, so that a beam costs no
    copies. `select` keeps this sharing where the rows allow it.
    """

    keys: Tensor
    values: Tensor
    lengths: Tensor  # (N,)
    sharing: int = 1

    @property
    def rows(self) -> int:
        return self.lengths.size(0) * self.sharing

    def select(self, rows: Tensor) -> SourceMemory:
        sentences, counts = torch.unique_consecutive(rows // self.sharing, return_counts=True)
        sharing = math.gcd(*counts.tolist()) or 1
        sentences = sentences.repeat_interleave(counts // sharing)
        everybody = torch.arange(self.lengths.size(0), device=sentences.device)
        if torch.equal(sentences, everybody):
            return replace(self, sharing=sharing)
        chosen = {name: t.index_select(0, sentences) for name, t in self.tensors().items()}
        return replace(self, **chosen, sharing=sharing)

    def rewind(self, count: int | Tensor) -> SourceMemory:
        """The source is all there before the first token, and stays."""
        return self
