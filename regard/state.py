"""The state of a decoder between two steps.

`step` takes a state and returns the next one; no module stores anything about a sequence. The first
dimension of every tensor of a state is the sequence, so that beam search reorders LSTM cells,
key/value caches and source memories with the same `select(rows)`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from regard.errors import RegardError

Parts = dict[str, Any]  # of a state, by the names of its fields


@dataclass
class State:
    """Base of all states: a dataclass of tensors (B, ...), other states, and plain numbers.

    A step may use a state once, since the next state may share its memory.
    """

    def consume(self) -> None:
        """Mark this state as used; a step does so.

        Raises:
            RegardError: a step has used it before.
        """
        self.check_unused()
        self._consumed = True

    def check_unused(self) -> None:
        """Check that no step has used this state.

        Raises:
            RegardError: one has.
        """
        if self._consumed:
            name = type(self).__name__
            raise RegardError(f"This {name} was consumed by an earlier step: use `copy()`.")

    # whether a sequence is a row of each tensor, and depends on nothing else of the state
    JOINS: ClassVar[bool] = False

    def joined(self, other: Self) -> Self:
        """The sequences of this state, then those of another, which may have read more or fewer
        tokens.

        Raises:
            TypeError: sequences of a state of this kind have read as many tokens.
        """
        self.check_unused()
        other.check_unused()
        if not self.JOINS:
            raise TypeError(f"Sequences of a {type(self).__name__} cannot join others later.")
        parts: Parts = {}
        for name, value in self.parts().items():
            added = other.parts()[name]
            if isinstance(value, Tensor):
                parts[name] = torch.cat([value, added])
            elif isinstance(value, State):
                parts[name] = value.joined(added)
        return replace(self, **parts)

    _consumed = False  # of this object alone, not of the states made from it

    def copy(self) -> Self:
        """A copy of this state, for a second continuation."""
        self.check_unused()
        return self._map(lambda tensor: tensor, lambda state: state.copy())

    @property
    def rows(self) -> int:
        """B, the number of sequences."""
        values = self.parts().values()
        first = next(value for value in values if isinstance(value, Tensor | State))
        return first.rows if isinstance(first, State) else first.size(0)

    def select(self, rows: Tensor) -> Self:
        """The state of the sequences `rows` (B',), integers in any order, repeated or left out."""
        self.check_unused()
        return self._map(lambda tensor: tensor.index_select(0, rows), lambda s: s.select(rows))

    def expect_tokens(self, count: int) -> Self:
        """The same state with capacity for `count` more tokens, allocated at once."""
        return self._map(lambda tensor: tensor, lambda state: state.expect_tokens(count))

    def keeping_all(self) -> Self:
        """The same state, which drops no token that is read, however many there are."""
        return self._map(lambda tensor: tensor, lambda state: state.keeping_all())

    def detach(self) -> Self:
        """The same values without gradient (truncated backpropagation through time)."""
        return self._map(lambda tensor: tensor.detach(), lambda s: s.detach())

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by its dotted name, for checkpoints."""
        tensors: dict[str, Tensor] = {}
        for name, value in self.parts().items():
            if isinstance(value, Tensor):
                tensors[name] = value
            elif isinstance(value, State):
                tensors |= {f"{name}.{inner}": t for inner, t in value.tensors().items()}
        return tensors

    def with_tensors(self, tensors: dict[str, Tensor]) -> Self:
        """This state with other values, named as by `tensors()`."""
        changed: Parts = {}
        for name, value in self.parts().items():
            if isinstance(value, Tensor):
                changed[name] = tensors[name]
            elif isinstance(value, State):
                prefix = f"{name}."
                inner = {k[len(prefix) :]: t for k, t in tensors.items() if k.startswith(prefix)}
                changed[name] = value.with_tensors(inner)
        return replace(self, **changed)

    def parts(self) -> Parts:
        """Its fields: tensors, other states and plain numbers."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        for name, value in values.items():
            if isinstance(value, list | tuple | dict | set):
                # `select` would not reorder it.
                raise TypeError(f"`{name}` must be a tensor, a state or a plain number.")
        return values

    def _map(self, on_tensor: Callable, on_state: Callable) -> Self:
        changed: Parts = {}
        for name, value in self.parts().items():
            if isinstance(value, Tensor):
                changed[name] = on_tensor(value)
            elif isinstance(value, State):
                changed[name] = on_state(value)
        return replace(self, **changed)


@dataclass
class Cells(State):
    """Recurrent layers: `hidden` and `cell` are (B, L, D); `cell` is empty where there is none."""

    JOINS = True

    hidden: Tensor
    cell: Tensor


@dataclass
class TokensRead(State):
    """How many tokens of each sequence were read, by a decoder without a cache of keys.

    No count is above `longest`; `equal_lengths`: all are equal to it. Both are Python values:
    reading them does not wait for the device.
    """

    counts: Tensor  # (B,)
    longest: int = 0
    equal_lengths: bool = True

    @classmethod
    def start(cls, rows: int, device: torch.device) -> TokensRead:
        """Before the first token."""
        return cls(torch.zeros(rows, dtype=torch.long, device=device))

    def positions(self, count: int) -> Tensor:
        """Where the next `count` tokens of each row stand: (B, T)."""
        return self.counts[:, None] + torch.arange(count, device=self.counts.device)

    def advance(self, count: int) -> TokensRead:
        """After `count` more tokens of every row."""
        return replace(self, counts=self.counts + count, longest=self.longest + count)
