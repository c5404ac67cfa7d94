"""Operations and their implementations: which one computes a call, and how to turn them off.

`regard.ops` defines the operations; this is the table in which faster implementations register.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import update_wrapper
from pathlib import Path
from typing import Generic, ParamSpec, Protocol, TypeVar, cast

import torch

from regard.errors import ConfigError

P = ParamSpec("P")
R = TypeVar("R")

KERNELS = "regard.kernels"


@dataclass(frozen=True)
class Implementation(Generic[P, R]):
    """A faster way to compute an operation for arguments that fulfil a condition."""

    name: str
    run: Callable[P, R]
    when: Callable[P, bool]


class Operation(Generic[P, R]):
    """A definition in plain PyTorch, and the implementations that compute the same faster."""

    def __init__(self, definition: Callable[P, R]):
        update_wrapper(self, definition)
        self.name = definition.__name__
        self.definition = definition
        self.implementations: list[Implementation[P, R]] = []

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        # What torch compiles cannot read a context variable.
        off = NOTHING if torch.compiler.is_compiling() else _off.get()
        for one in self.implementations:
            if one.name not in off and one.when(*args, **kwargs):
                return one.run(*args, **kwargs)
        return self.definition(*args, **kwargs)

    def is_fast(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Whether an implementation applies to these arguments, for callers with another way."""
        off = _off.get()
        return any(
            one.name not in off and one.when(*args, **kwargs) for one in self.implementations
        )


OPERATIONS: dict[str, Operation] = {}


def operation(definition: Callable[P, R]) -> Operation[P, R]:
    """The operation that a function defines."""
    found = Operation(definition)
    OPERATIONS[found.name] = found
    return found


def register(
    op: Operation[P, R], name: str, run: Callable[P, R], *, when: Callable[P, bool]
) -> None:
    """Add an implementation, or replace the one of this name.

    "compiled" is tried first, the others in the order in which they were registered.

    Args:
        op: the operation.
        name: what `without` calls it, behind the operation's name: "attention.compiled".
        run: computes the operation for arguments that fulfil `when`, its gradient included.
        when: whether it applies to these arguments; it changes nothing.
    """
    new = Implementation(f"{op.name}.{name}", run, when)
    others = [one for one in op.implementations if one.name != new.name]
    op.implementations = [new, *others] if name == "compiled" else [*others, new]


class _Everything:
    """Contains every name."""

    def __contains__(self, name: object) -> bool:
        return True


NOTHING: frozenset[str] = frozenset()
_off: ContextVar[Container[str]] = ContextVar(
    "off", default=frozenset(filter(None, os.environ.get("REGARD_WITHOUT", "").split(",")))
)


@contextmanager
def reference() -> Iterator[None]:
    """Inside, every operation is computed by its definition."""
    with _turned_off(_Everything()):
        yield


@contextmanager
def without(*names: str) -> Iterator[None]:
    """Inside, the implementations of these names are not used: "linear.onednn".

    Raises:
        ConfigError: there is no such implementation.
    """
    known = {one.name for op in OPERATIONS.values() for one in op.implementations}
    for name in names:
        if name not in known:
            raise ConfigError(f"There is no implementation {name!r}, but: {sorted(known)}.")
    before = _off.get()
    also = before if isinstance(before, frozenset) else NOTHING
    with _turned_off(before if isinstance(before, _Everything) else also.union(names)):
        yield


@contextmanager
def _turned_off(names: Container[str]) -> Iterator[None]:
    token = _off.set(names)
    try:
        yield
    finally:
        _off.reset(token)


def is_off(name: str) -> bool:
    """Whether what has this name is turned off here; whole models that are compiled ask, too."""
    return name in _off.get()


class KernelPackage(Protocol):
    """What the optional package of compiled implementations offers."""

    def setup(self) -> None:
        """Compile the kernels if need be, load them, and register them as implementations."""

    def status(self) -> str:
        """Which compiled library is loaded, or why none is."""


def kernel_package() -> KernelPackage | None:
    """The package, imported by its name; None where its folder is not beside this file."""
    if not Path(__file__).with_name(KERNELS.rpartition(".")[2]).is_dir():
        return None
    return cast(KernelPackage, importlib.import_module(KERNELS))


def load_kernels() -> None:
    """Load the package of compiled implementations, if it is there; it compiles them if need be.

    `regard.load` and `regard train` call this before they build a model. Where the package is
    absent, or nothing can be compiled, the definitions and PyTorch's own operators compute.
    """
    package = kernel_package()
    if package is not None:
        package.setup()
