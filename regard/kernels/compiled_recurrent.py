"""A recurrent model's steps in compiled calls: all of a step, from the token to the scores.

Its state are numbers of each row, a memory of the source beside them where it has one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from regard.attention.gates import gating
from regard.attention.looking import Looking
from regard.attention.scores import PLAIN as PRODUCT
from regard.attention.scores import Dot, General
from regard.attention.tap import listening
from regard.kernels import build
from regard.kernels.arguments import is_cpu_strided, row_strided_address
from regard.kernels.program import Program, readable
from regard.kernels.signatures import PartStruct
from regard.kernels.tracer import (
    ACTIVATION,
    AFTER,
    BEFORE,
    CROSS,
    JOINED,
    LINEAR,
    STATE,
    CannotRecord,
    Given,
    GivenTokens,
    InputRecorder,
    Recorded,
    Recording,
    StandIn,
    Symbol,
    symbols_alone,
)
from regard.layers.quantized import QuantizedLinear, QuantizedRecurrent, QuantizedSoftmax
from regard.layers.recurrent import LSTMStep
from regard.ops import TopKTokens
from regard.state import SourceMemory, State

# The numbers that cells.h gives them.
PLAIN, GATED, LONG_SHORT, LEAVING = range(4)


class RecurrentStep(Recorded):
    """In the place of a model's `step`: one compiled call for a token of each row, where that can
    be.
    """

    model: Any  # which is no part of it

    def __init__(self, model: nn.Module):
        super().__init__()
        self.programs = {}
        self.__dict__["model"] = model

    def __call__(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """See `regard.models.protocols.Generator`."""
        found = self._found(tokens, state, Program.step)
        return type(self.model).step(self.model, tokens, state) if found is None else found

    def leading(self, tokens: Tensor, state: Any, count: int) -> tuple[TopKTokens, Any] | None:
        """See `regard.kernels.compiled_decoder.Step.leading`."""
        return self._found(tokens, state, Program.leading, count)

    def _found(
        self, tokens: Tensor, state: Any, call: Callable[..., Any], *more: int
    ) -> tuple[Any, Any] | None:
        source = _source(state)
        library = build.kernels() if self._simple(tokens, state, source) else None
        program = None if library is None else self._program(state)
        if program is None:
            return None
        parts, after = _next(state)
        found = call(program, library, tokens, None, source, *more, parts)
        return None if found is None else (found, after)

    def _simple(self, tokens: Tensor, state: Any, source: SourceMemory | None) -> bool:
        return (
            tokens.size(1) == 1
            and tokens.numel() > 0
            and tokens.dtype == torch.int64
            and tokens.device.type == "cpu"
            and tokens.is_contiguous()
            and not self.model.training
            and listening.get() is None
            and gating.get() is None
            and not torch.is_autocast_enabled("cpu")
            and (source is None or readable(source))
            and all(_plain(part, tokens.size(0)) for part in _tensors(state))
        )

    def _program(self, state: Any) -> Program | None:
        shapes = tuple(part.shape[1:] for part in _tensors(state))
        return self.recorded(
            (type(state), *shapes), lambda: Program(RecurrentRecorder().of_step(self.model, state))
        )


def _plain(part: Tensor, rows: int) -> bool:
    laid = part.dim() in (2, 3) and part.size(0) == rows and part.stride(-1) == 1
    return laid and is_cpu_strided(part) and not part.requires_grad


def _source(state: State) -> SourceMemory | None:
    """The memory that a state has."""
    return next((value for value in vars(state).values() if type(value) is SourceMemory), None)


def _tensors(state: State) -> Iterator[Tensor]:
    """The parts of a state in their order, without its memory and without empty ones."""
    for field in fields(state):
        value = getattr(state, field.name)
        if isinstance(value, Tensor):
            if value.size(-1):
                yield value
        elif isinstance(value, State) and type(value) is not SourceMemory:
            yield from _tensors(value)


def _changed(state: State, change: Callable[[Any], Any]) -> State:
    """A state with other parts: those that `_tensors` gives, in the same order."""
    found = {}
    for field in fields(state):
        value = getattr(state, field.name)
        if isinstance(value, Tensor):
            found[field.name] = change(value) if value.size(-1) else value
        elif isinstance(value, State) and type(value) is not SourceMemory:
            found[field.name] = _changed(value, change)
    return replace(state, **found)


def _next(state: State) -> tuple[Any, State]:
    """Where the parts of a state are, and those of a new one, which is not filled yet."""
    parts = []

    def beside(tensor: Tensor) -> Tensor:
        new = torch.empty(tensor.shape)
        before, after = (
            row_strided_address(name, x, torch.float32, tensor.shape)
            for name, x in (("state", tensor), ("new", new))
        )
        size = tensor.element_size()
        layers = tensor.size(1) if tensor.dim() == 3 else 1
        for layer in range(layers):
            at = layer * tensor.stride(1) * size, layer * new.stride(1) * size
            parts.append(PartStruct(before + at[0], tensor.stride(0), after + at[1], new.stride(0)))
        return new

    after = _changed(state, beside)
    return (PartStruct * len(parts))(*parts), after


# -------------------------------------------------------------------------- what is recorded


class OneToken(Symbol):
    """Of a token of each row: where rows and tokens change places, nothing moves."""

    dtype = torch.float32

    def size(self, dim: int) -> Given:
        return Given()

    def transpose(self, *dims: int) -> OneToken:
        return self

    def contiguous(self) -> OneToken:
        return self

    def to(self, kind: torch.dtype) -> OneToken:
        if kind != self.dtype:
            raise CannotRecord("hidden states of another type")
        return self

    def unbind(self, dim: int = 0) -> list[OneToken]:
        return [self]

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        return of_torch(function, *arguments, **(options or {}))


class Layers:
    """A part of the state of each layer, side by side: (R, L, D)."""

    def __init__(self, symbols: list[Any]):
        self.symbols = symbols

    def unbind(self, dim: int) -> list[Any]:
        if dim != 1:
            raise CannotRecord("a state in other pieces than those of layers")
        return list(self.symbols)

    def __getitem__(self, places: Any) -> Any:
        rows, layer = places
        if rows != slice(None):
            raise CannotRecord("some rows of a state")
        return self.symbols[layer]


class GivenBias:
    """Of a layer, which the product without it will get."""

    def __init__(self, bias: Tensor):
        self.bias = bias

    def expand(self, *sizes: Any) -> GivenBias:
        return self


def of_torch(function: Any, *arguments: Any) -> Any:
    """What some functions of torch do to symbols.

    Raises:
        CannotRecord: another function, or in another way.
    """
    if function is torch.tanh:
        return arguments[0].recorder.activated(arguments[0], torch.tanh)
    if function is torch.stack and arguments[1:] == (1,):
        return Layers(arguments[0]) if len(arguments[0]) > 1 else arguments[0][0]
    if function is torch.cat and arguments[1:] == (1,):
        one, other = arguments[0]
        recorder = one.recorder
        width = one.width + other.width
        return recorder.write(JOINED, width, one, other=recorder.register(other))
    raise CannotRecord(f"{function} of hidden states")


class RecurrentRecorder(InputRecorder):
    """Of all that a recurrent model's `step` does with one token a row."""

    symbol = OneToken

    def __init__(self) -> None:
        super().__init__(0)
        self.tokens, self.source = GivenTokens(), Given()
        self.before: list[OneToken | Layers] = []
        self.parts = 0

    def of_step(self, model: Any, state: Any) -> Recording:
        """A step from a state like this.

        Raises:
            CannotRecord: it does something that has no operation.
        """
        if any(isinstance(value, int | float) for value in vars(state).values()):
            raise CannotRecord("a state of more than tensors")
        begun: Any = _changed(state, self._part)
        memories = [name for name, value in vars(state).items() if type(value) is SourceMemory]
        begun = replace(begun, **dict.fromkeys(memories, self.source))
        with symbols_alone():
            scores, after = type(model).step(self.twin(model), self.tokens, begun)
            if type(after) is not type(state):
                raise CannotRecord("a state of another kind")
            if any(getattr(after, name) is not self.source for name in memories):
                raise CannotRecord("another memory")
            kept = [self._kept(part) for part in _symbols(after)]
        end = next(op for op in self.ops if op.target == self.register(scores))
        self.ops.remove(end)
        self.ops.append(end)  # the state is put away before the last product
        if sum(map(len, kept)) != self.parts:
            raise CannotRecord("other parts of the state than those that were given")
        return self.finished(scores)

    def _part(self, tensor: Tensor) -> OneToken | Layers:
        width = tensor.size(-1)
        count = tensor.size(1) if tensor.dim() == 3 else 1
        symbols = []
        for _ in range(count):
            symbols.append(self.write(BEFORE, width, layer=self.parts))
            self.parts += 1
        return Layers(symbols) if tensor.dim() == 3 else cast(OneToken, symbols[0])

    def _kept(self, part: Any) -> list[Symbol]:
        symbols = part.symbols if isinstance(part, Layers) else [part]
        first = sum(op.kind == AFTER for op in self.ops)
        return [
            self.write(AFTER, symbol.width, symbol, layer=first + n)
            for n, symbol in enumerate(symbols)
        ]

    # ---- layers

    def stand_in(self, module: nn.Module) -> Any:
        """See `Recorder.stand_in`."""
        if isinstance(module, nn.ModuleList):
            return [self.stand_in(part) for part in module]
        if isinstance(module, QuantizedRecurrent):
            return StandIn(partial(self._layer, module))
        if isinstance(module, QuantizedLinear):
            bias = None if module.bias is None else GivenBias(module.bias)
            repeated: Any = lambda: partial(self._without_bias, module)  # noqa: E731
            return StandIn(partial(self.linear, module), repeated=repeated, bias=cast(Any, bias))
        if isinstance(module, LSTMStep):
            return StandIn(self._long_short)
        if isinstance(module, Looking):
            return StandIn(self._looking)
        if isinstance(module, General):
            return PRODUCT  # its matrix is in the keys
        if isinstance(module, QuantizedSoftmax):
            return StandIn(partial(self.unknown, module), logits=partial(self.linear, module))
        return super().stand_in(module)

    def unknown(self, module: nn.Module, *arguments: Any) -> Any:
        """Of a layer that is made of others alone, what its own code does."""
        own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        if own or not list(module.children()):
            return super().unknown(module, *arguments)
        return self.twin(module).forward(*arguments)

    def which(self, asked: Any) -> int:
        """See `InputRecorder.which`: there is one kind."""
        if asked is not self.tokens:
            raise CannotRecord("tokens of its own")
        return 0

    def check_places(self, count: Any, start: Any) -> None:
        """See `InputRecorder.check_places`."""
        raise CannotRecord("positions")

    def activated(self, symbol: Symbol, function: Any) -> Symbol:
        """A function of what the last product gave."""
        last = self.ops[-1]
        if (last.kind, last.target, last.activation) != (LINEAR, symbol.register, 0):
            raise CannotRecord("a function of something else than a product")
        self.ops[-1] = replace(last, activation=ACTIVATION[function])
        return symbol

    def _without_bias(self, linear: QuantizedLinear, x: Any) -> Symbol:
        product = self.linear(linear, x)
        self.ops[-1] = replace(self.ops[-1], bias=None)
        return product

    def _layer(self, layer: QuantizedRecurrent, x: Any, hidden: Any, cell: Any) -> Any:
        width = layer.d_model
        below, own = self.linear(layer.input, x), self.linear(layer.recurrent, hidden)
        match self.widths[below.register] // width:
            case 4:
                return _ends(*self._state(below + own, cell))
            case 3:
                both = of_torch(torch.cat, [own, hidden], 1)
                new = self._next(GATED, width, below, both)
            case _:
                new = self._next(PLAIN, width, below + own)
        return _ends(new, cell)

    def _long_short(self, gates: Any, more: Any, cell: Any) -> tuple[Symbol, Symbol]:
        if isinstance(gates, GivenBias):
            last = self.ops[-1]
            if (last.kind, last.target, last.bias) != (LINEAR, self.register(more), None):
                raise CannotRecord("a bias of something else than a product")
            self.ops[-1] = replace(last, bias=gates.bias)
            return self._state(more, cell)
        return self._state(gates + more, cell)

    def _state(self, gates: Any, cell: Any) -> tuple[Symbol, Symbol]:
        width = self.widths[self.register(cell)]
        self.register(gates, 4 * width)
        after = self._next(LONG_SHORT, width, gates, cell)
        return self._next(LEAVING, width, gates, after), after

    def _next(self, kind: int, width: int, gates: Any, state: Any = None) -> Symbol:
        other = {} if state is None else {"other": self.register(state)}
        return self.write(STATE, width, gates, activation=kind, **other)

    def _looking(self, source: Any, score: Any, tap: Any) -> Callable[[Any], Symbol]:
        if source is not self.source or not isinstance(score, Dot):
            raise CannotRecord("a memory of its own, or a score of another kind")

        def look(hidden: Any) -> Symbol:
            width = self.widths[self.register(hidden)]
            number = width**-0.5 if score.scale is None else score.scale
            return self.write(CROSS, width, hidden, heads=1, head_dim=width, number=number, layer=0)

        return look


def _ends(hidden: Any, cell: Any) -> Any:
    return hidden, (hidden, cell)


def _symbols(state: Any) -> Iterator[Any]:
    """The parts of a state of symbols, in the order of `_tensors`."""
    for field in fields(state):
        value = getattr(state, field.name)
        if isinstance(value, OneToken | Layers):
            yield value
        elif isinstance(value, State):
            yield from _symbols(value)
