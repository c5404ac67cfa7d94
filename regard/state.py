"""What a decoder remembers between two steps.

State is a value that travels: `step` takes one and returns the next, nothing about a sentence is
kept on a module. Every tensor of a state has its rows first, so that a beam search reorders LSTM
cells, key/value caches and source memories with the same `select(rows)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from torch import Tensor

from regard.errors import RegardError


@dataclass
class State:
    """Base of all states: a dataclass of tensors (rows first), other states, and plain numbers.

    A state may be used once: the next state may lie in the same memory.
    """

    def consume(self) -> None:
        """Mark this state as used; a step does so.

        Raises:
            RegardError: a step has used it before.
        """
        self.check_unused()
        self._consumed = True

    def check_unused(self) -> None:
        """Before anything is made from this state.

        Raises:
            RegardError: a step has used it.
        """
        if self._consumed:
            raise RegardError(
                f"This {type(self).__name__} was used by an earlier step, which may have written "
                "over it. Go on with the state that `step` returned; to decode twice from one "
                "state, take `state.copy()` before the first step."
            )

    _consumed = False  # of this object; the states made from it are new

    def copy(self) -> Self:
        """The same state once more, for a second continuation."""
        self.check_unused()
        return self._map(lambda tensor: tensor, lambda state: state.copy())

    @property
    def rows(self) -> int:
        """How many sequences are being decoded."""
        values = (value for _, value in self._items())
        first = next(value for value in values if isinstance(value, Tensor | State))
        return first.rows if isinstance(first, State) else first.size(0)

    def select(self, rows: Tensor) -> Self:
        """The state of these rows: (R',) integers; rows may repeat, be dropped, or be reordered."""
        self.check_unused()
        return self._map(lambda tensor: tensor.index_select(0, rows), lambda s: s.select(rows))

    def rewind(self, count: int | Tensor) -> Self:
        """Forget what came last: `count` tokens of every row, or (B,) of each row its own number.

        Raises:
            TypeError: this state keeps what all tokens together made, and not each one's part.
        """

        self.check_unused()

        def stuck(tensor: Tensor) -> Tensor:
            raise TypeError(f"{type(self).__name__} cannot forget the last tokens that it read.")

        return self._map(stuck, lambda state: state.rewind(count))

    def expect_tokens(self, count: int) -> Self:
        """The same, told that up to `count` tokens will follow: room is made for them at once."""
        return self._map(lambda tensor: tensor, lambda state: state.expect_tokens(count))

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

    def parts(self) -> dict[str, Any]:
        """Its fields: tensors, other states and plain numbers."""
        return dict(self._items())

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
