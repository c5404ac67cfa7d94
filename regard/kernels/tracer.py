"""A graph of what a model's method does, found by running it once on symbols (`torch.fx`).

Layers that `regard.kernels.lowering` knows are leaves of the graph; everything else is the model's
own code and is traced through. So the wiring stands in the model's file alone. Masks, caches and
batches pass through as symbols: a method whose path depends on their values cannot be traced.
"""

from __future__ import annotations

import operator
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import Tensor, fx, nn

from regard.attention.cache import KeyValueCache, SourceMemory
from regard.attention.relative import NoRelations, RelativePositions, T5Positions
from regard.data.batches import Sequences
from regard.layers.positions import PositionTable
from regard.ops import KeyMask, UnpaddedMask
from regard.state import State


@dataclass(frozen=True)
class Register:
    """Where hidden states are."""

    number: int


@dataclass(frozen=True)
class Symbol:
    """What is no hidden state: a mask, a cache, a batch, a count."""

    name: str
    parts: tuple[Any, ...] = ()


CACHE, SOURCE, TOKENS, SUBSET = (Symbol(name) for name in ("cache", "source", "tokens", "subset"))
SEGMENT_IDS, LAYOUT, LENGTHS = Symbol("segments"), Symbol("layout"), Symbol("lengths")
COUNT = Symbol("size", (TOKENS, 1))
MASK, ADVANCED = Symbol("mask", (CACHE, None)), Symbol("advanced")  # without a window
SOURCE_MASK, NOTHING = Symbol("mask", (SOURCE,)), Symbol("nothing")
INPUTS = {
    symbol.name: symbol for symbol in (CACHE, SOURCE, TOKENS, SUBSET, SEGMENT_IDS, LAYOUT, LENGTHS)
}


@dataclass(frozen=True)
class Built:
    """A dataclass that the model made of other values."""

    kind: type
    values: dict[str, Any]


OFFSETS = Symbol("offsets", (LAYOUT,))
UNPADDED = Built(
    UnpaddedMask, {"queries": OFFSETS, "keys": OFFSETS, "causal": False, "window": None}
)
WHOLE_TEXTS = Built(KeyMask, {**vars(KeyMask()), "unpadded": UNPADDED})


PAIRS = "pairs"  # node.meta: how deep what the layer gives can be unpacked into two
LAYERS = "layers"  # node.meta of a part of a state: of how many layers it is

_lock = threading.Lock()


class CannotCompile(Exception):
    """A model does something that has no compiled form.

    Args:
        reason: what it does.
        where: the file, the line and the layer.
    """

    def __init__(self, reason: str, where: str = ""):
        super().__init__(f"{where}: {reason}" if where else reason)
        self.reason = reason


def require(holds: object, reason: str) -> None:
    """Raises CannotCompile, for this reason, unless something holds."""
    if not holds:
        raise CannotCompile(reason)


class UnbindableProxy(fx.Proxy):
    """A proxy whose `unbind` has a known length: the layers of a state, or one token."""

    def unbind(self, dim: int = 0) -> list[fx.Proxy]:
        parts: Any = self.tracer.create_proxy("call_method", "unbind", (self, dim), {})
        return [parts[n] for n in range(self.node.meta.get(LAYERS, 1))]


class LeafTracer(fx.Tracer):
    """Traces one method of a model, in evaluation mode.

    Args:
        leaves: the types of the layers that are not looked into.
        pairs: of these layers, how deep their results are pairs.
        method: the name of the method.
        arguments: makes its arguments, from the tracer.
    """

    proxy_buffer_attributes = True

    def __init__(
        self,
        leaves: frozenset[type],
        pairs: dict[type, int],
        method: str,
        arguments: Callable[[LeafTracer], list[Any]],
    ):
        super().__init__()
        self.leaves, self.pairs, self.arguments = leaves, pairs, arguments
        self.traced_func_name = method
        self._thread = threading.get_ident()

    def graph_of(self, model: nn.Module) -> fx.Graph:
        """The graph of the method.

        Raises:
            CannotCompile: its control flow depends on values, or it uses an operation that proxies
                do not have.
        """
        try:
            with _lock:
                return self.trace(model)
        except CannotCompile:
            raise
        except Exception as error:  # whatever a model does with proxies
            reason = str(error).strip().split("\n")[0] or type(error).__name__
            raise CannotCompile(reason, _line_in(error.__traceback__)) from error

    def symbol(self, name: str) -> fx.Proxy:
        """An input of the graph."""
        return self.create_proxy("placeholder", name, (), {})

    def create_args_for_root(
        self, root_fn: Any, is_module: bool, concrete_args: Any = None
    ) -> tuple[Any, list[Any]]:
        """Results of a generator are a list."""

        def run(*arguments: Any) -> Any:
            result = root_fn(*arguments)
            return list(result) if isinstance(result, Iterator) else result

        return run, [self.root, *self.arguments(self)]

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m) in self.leaves

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: dict[str, Any]
    ) -> Any:
        """See `fx.Tracer`. While one thread traces, calls of others are ordinary calls."""
        if threading.get_ident() != self._thread:
            return forward(*args, **kwargs)
        result = super().call_module(m, forward, args, kwargs)
        if type(m) in self.pairs:
            result.node.meta[PAIRS] = self.pairs[type(m)]
        return result

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: Any) -> Any:
        """See `fx.Tracer`. Tables of positions and of distances have several methods, which are
        leaves, too.
        """
        if threading.get_ident() != self._thread:
            return attr_val
        if isinstance(attr_val, PositionTable | T5Positions):
            return _PositionMethods(self, attr_val)
        if isinstance(attr_val, RelativePositions) and type(attr_val) is not NoRelations:
            raise CannotCompile("relative positions have no compiled form", f"`{attr}`")
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        """See `fx.Tracer`: what can be unpacked though its size is not in the code."""
        if _depth_of_pairs(obj.node) > 0:
            pair: Any = obj
            return iter([pair[0], pair[1]])
        return super().iter(obj)

    def create_arg(self, a: Any) -> Any:
        """Other objects are passed on as they are."""
        try:
            return super().create_arg(a)
        except NotImplementedError:
            return a

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return UnbindableProxy(node, self)

    def create_node(self, kind: str, *details: Any, **more: Any) -> fx.Node:
        """Each node knows the line that made it."""
        node = super().create_node(kind, *details, **more)
        node.meta["line"] = _line_of(sys._getframe(1))
        return node


class _PositionMethods:
    """Stands for a table of positions, or T5's of distances, while a model is traced."""

    def __init__(self, tracer: LeafTracer, table: PositionTable | T5Positions):
        self.tracer, self.path = tracer, tracer.path_of_module(table)

    def of(self, batch: Sequences) -> fx.Proxy:
        return self.tracer.create_proxy("call_module", self.path, (batch,), {"method": "of"})

    def after(self, cache: Any, count: Any) -> fx.Proxy:
        details = self.path, (cache, count), {"method": "after"}
        return self.tracer.create_proxy("call_module", *details)


def state_symbols(tracer: LeafTracer, state: State) -> Any:
    """A state like this one, whose caches, sources and tensors are symbols.

    Raises:
        CannotCompile: it holds something else.
    """
    count = iter(range(sys.maxsize))

    def symbols(value: Any) -> Any:
        if isinstance(value, KeyValueCache):
            return tracer.symbol("cache")
        if type(value) is SourceMemory:
            return tracer.symbol("source")
        if isinstance(value, Tensor):
            part = tracer.symbol(f"part_{next(count)}")
            part.node.meta[LAYERS] = value.size(1) if value.dim() == 3 else 1
            part.node.meta["shape"] = value.shape
            return part
        if isinstance(value, State):
            return replace(value, **{name: symbols(part) for name, part in value.parts().items()})
        raise CannotCompile(f"a state with a {type(value).__name__} has no compiled form")

    return symbols(state)


def _depth_of_pairs(node: fx.Node) -> int:
    """How deep the value of a node is a pair, of which the second may be one, too."""
    if (node.op, node.target) == ("call_function", operator.getitem) and node.args[1] == 1:
        whole: Any = node.args[0]
        return _depth_of_pairs(whole) - 1
    return node.meta.get(PAIRS, 0)


def needed_for(result: fx.Node) -> set[fx.Node]:
    """The nodes that a result depends on, itself included."""
    needed: set[fx.Node] = set()
    waiting = [result]
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed.add(node)
            waiting += node.all_input_nodes
    return needed


def where_of(node: fx.Node) -> str:
    """The file, line and layer of a node."""
    layer = f" ({node.target})" if node.op == "call_module" else ""
    return f"{node.meta['line']}{layer}"


def _line_of(frame: FrameType | None) -> str:
    """The innermost line outside torch and this file."""
    while frame is not None and _is_machinery(frame.f_code.co_filename):
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _line_in(traceback: TracebackType | None) -> str:
    line = ""
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if not _is_machinery(file):
            line = f"{file}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return line


def _is_machinery(file: str) -> bool:
    return file.startswith(_TORCH) or file == __file__


_TORCH = torch.__file__.rpartition("/")[0]
