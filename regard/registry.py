"""Operations and their implementations: which one computes a call, and how to turn them off.

`regard.ops` defines the operations; this is the table in which faster implementations register.
"""

import importlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import update_wrapper
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, ParamSpec, TypeVar

import torch

from regard.errors import ConfigError

P = ParamSpec("P")
R = TypeVar("R")

KERNELS = "regard.kernels"

# The modules that register implementations by PyTorch's own operators, inside this package.
REGISTERING = (
    *(
        "attention.attend",
        "attention.block_sparse",
        "attention.relative_attention",
        "layers.linear",
        "layers.dropout",
        "layers.softmax",
        "layers.recurrent",
    ),
    *("layers.quantized", "models.wrappers", "decoding.cuda_graphs"),
)


@dataclass(frozen=True)
class Implementation:
    """A faster equivalent of an operation, for arguments that fulfil a condition (None: for all).

    traceable: whether it may run inside what `torch.compile` traces.
    """

    name: str
    run: Callable[..., Any]
    when: Callable[..., bool] | None
    traceable: bool


class Operation(Generic[P, R]):
    """A definition in plain PyTorch, and faster equivalents of it."""

    def __init__(self, definition: Callable[P, R]):
        update_wrapper(self, definition)
        self.name = definition.__name__
        self.definition = definition
        self.implementations: list[Implementation] = []

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._chosen(*args, **kwargs)(*args, **kwargs)

    def has_implementation(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Whether something else than the definition would compute this call."""
        return self._chosen(*args, **kwargs) is not self.definition

    def _chosen(self, *args: P.args, **kwargs: P.kwargs) -> Callable[P, R]:
        """The first implementation that is turned on and takes these arguments."""
        traced = torch.compiler.is_compiling()  # which cannot read a context variable
        disabled = frozenset() if traced else _disabled.get()
        for implementation in self.implementations:
            on = disabled is not None and implementation.name not in disabled
            on = implementation.traceable if traced else on
            when = implementation.when
            if on and (when is None or when(*args, **kwargs)):
                return implementation.run
        return self.definition


OPERATIONS: dict[str, Operation[..., Any]] = {}


def operation(definition: Callable[P, R]) -> Operation[P, R]:
    """Decorator: a plain PyTorch function becomes the definition of an operation."""
    op = Operation(definition)
    OPERATIONS[op.name] = op
    return op


def register(
    op: Operation[P, R], name: str, run: Callable[P, R], *, when: Callable[P, bool] | None = None
) -> None:
    """Add an implementation, or replace the one of this name.

    "compiled" is tried first, the others in the order in which they were registered. Inside what
    `torch.compile` traces, "compiled" is never used.

    Args:
        op: the operation.
        name: the implementation is called by the operation's name and this one:
            "attention.compiled".
        run: computes the operation for arguments that fulfil `when`, its gradient included.
        when: whether it applies to these arguments; it changes nothing. None: it always does.
    """
    new = Implementation(f"{op.name}.{name}", run, when, traceable=name != "compiled")
    others = [other for other in op.implementations if other.name != new.name]
    op.implementations = [new, *others] if name == "compiled" else [*others, new]


# ------------------------------------------------------------------------- turning them off


VARIABLE = "REGARD_WITHOUT"
_from_environment = frozenset(
    filter(None, os.environ.get(VARIABLE, "").replace(" ", "").split(","))
)
# The names of those that are turned off; None: all.
_disabled: ContextVar[frozenset[str] | None] = ContextVar("disabled", default=_from_environment)


@contextmanager
def reference() -> Iterator[None]:
    """Inside, every operation is computed by its definition.

    Code that `torch.compile` has compiled, and other threads, are not affected.
    """
    with _disabling(None):
        yield


@contextmanager
def without(*names: str) -> Iterator[None]:
    """Inside, these implementations are disabled: "linear.onednn". See `reference`.

    Raises:
        ConfigError: there is no such implementation.
    """
    _check_names(names, loaded=load_kernels())
    disabled = _disabled.get()
    with _disabling(None if disabled is None else disabled.union(names)):
        yield


@contextmanager
def _disabling(names: frozenset[str] | None) -> Iterator[None]:
    token = _disabled.set(names)
    try:
        yield
    finally:
        _disabled.reset(token)


def is_disabled(name: str) -> bool:
    """Whether an implementation is turned off here."""
    disabled = _disabled.get()
    return disabled is None or name in disabled


def implementation_names() -> list[str]:
    """The names of all implementations; imports what registers them, and loads the kernels."""
    load_kernels()
    return _registered_names()


def _registered_names() -> list[str]:
    for module in REGISTERING:
        importlib.import_module(f"{__package__}.{module}")
    return [i.name for op in OPERATIONS.values() for i in op.implementations]


def _check_names(names: Iterable[str], *, loaded: bool, source: str = "") -> None:
    """Check the names of implementations that are to be turned off.

    loaded: whether there are kernels. Without them any operation may have a compiled
        implementation, so that the same names work on every machine.
    source: where the names come from, for the error.

    Raises:
        ConfigError: there is no such implementation.
    """
    registered = {*_registered_names()}
    possible = registered if loaded else registered | {f"{name}.compiled" for name in OPERATIONS}
    if unknown := sorted({*names} - possible):
        names = ", ".join(sorted(registered))
        raise ConfigError(f"{source}There is no implementation {unknown[0]!r}. There are: {names}.")


# ----------------------------------------------------------------------- the compiled kernels


def kernel_package() -> ModuleType | None:
    """The package, imported by its name; None where it is not beside this file."""
    folder = Path(__file__).with_name(KERNELS.rpartition(".")[2])
    if not (folder / "__init__.py").exists():
        return None
    return importlib.import_module(KERNELS)


def load_kernels() -> bool:
    """Load the compiled implementations, if there are any; compiles them if need be.

    `regard.load` and `regard train` call this before they build a model. Where the package is
    absent, or nothing can be compiled, the definitions and PyTorch's own operators compute.

    Returns:
        Whether kernels are loaded.

    Raises:
        ConfigError: the environment variable REGARD_WITHOUT names no implementation.
    """
    package = kernel_package()
    if package is not None:
        package.setup()
    loaded = package is not None and package.available()
    if _from_environment:  # only now the names are known
        _check_names(_from_environment, loaded=loaded, source=f"{VARIABLE}: ")
    return loaded
