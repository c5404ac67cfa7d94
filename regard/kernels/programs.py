"""The compiled methods of a model, kept beside the model."""

from __future__ import annotations

import operator
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.head_gates import captured_or_gated
from regard.kernels import build
from regard.kernels.leaves import LEAVES, PAIRS
from regard.kernels.program import Program
from regard.kernels.tracer import CannotCompile, LeafTracer
from regard.layers.quantized import QuantizedMatrix
from regard.models.protocols import Model

CLOSE = 0.1  # of the norm of what the plain form gives: rounding to 8 bits stays far below


class Programs:
    """Those of one model, by what they were made for; None where there is none.

    They hold the addresses of the weights. Where the model has other weights or other parts now,
    they are made again.
    """

    def __init__(self, model: Model):
        self.name = type(model).__name__
        self._made: dict[Any, Program | None] = {}
        self._owners: list[dict[str, Any]] = []
        self._names: list[str] = []
        self._parts: list[Any] = []
        self._lock = threading.RLock()  # batches may be computed at the same time

    def of(
        self,
        model: Model,
        key: Any,
        make: Callable[[], Program],
        agrees: Callable[[Program], bool],
    ) -> Program | None:
        """The program for a key, made and compared with the plain form where it is the first."""
        with self._lock:
            if not all(map(operator.is_, map(dict.get, self._owners, self._names), self._parts)):
                self._made.clear()
            if key not in self._made:
                if not self._made:
                    self._remember(model)
                self._made[key] = self._compiled(make)
                self._compare(key, agrees)
            return self._made[key]

    def _compare(self, key: Any, agrees: Callable[[Program], bool]) -> None:
        """Remove a new program that does not agree with the plain form."""
        program = self._made[key]
        try:
            if program is not None and not agrees(program):
                self._made[key] = None
                self._warn("The compiled form does not agree with the model; please report this.")
        except BaseException:  # of the model, such as for a token that it does not have
            del self._made[key]
            raise

    def _compiled(self, make: Callable[[], Program]) -> Program | None:
        try:
            return make()
        except CannotCompile as error:
            self._warn(str(error))
            return None

    def _warn(self, reason: str) -> None:
        warnings.warn(f"{self.name} is not compiled and takes longer. {reason}", stacklevel=4)

    def _remember(self, model: Model) -> None:
        assert isinstance(model, nn.Module)  # see `fits`
        entries: list[tuple[Any, str, Any]] = [
            (owner, name, part)
            for module in model.modules()
            for owner in (module._parameters, module._buffers, module._modules)
            for name, part in owner.items()
        ]
        self._owners = [owner for owner, _, _ in entries]
        self._names = [name for _, name, _ in entries]
        self._parts = [part for _, _, part in entries]


_programs: weakref.WeakKeyDictionary[Model, Programs] = weakref.WeakKeyDictionary()


def programs_of(model: Model) -> Programs:
    """Those of this model."""
    if model not in _programs:
        _programs[model] = Programs(model)
    return _programs[model]


def fits(model: object) -> bool:
    """Whether kernels are loaded, and the weights of a model are those that they read."""
    if not isinstance(model, nn.Module) or not build.available():
        return False
    return any(isinstance(part, QuantizedMatrix) for part in model.modules())


def tracer(method: str, arguments: Callable[[LeafTracer], list[Any]]) -> LeafTracer:
    """Of a method of a model; `arguments` makes its arguments."""
    return LeafTracer(frozenset(LEAVES), PAIRS, method, arguments)


def wants_results_alone(model: Model) -> bool:
    """Whether nothing but results is wanted of a model: no gradients, no capture, no gates."""
    return (
        not model.training
        and not captured_or_gated()
        and not torch.is_autocast_enabled("cpu")
        and build.kernels() is not None
    )


def agree(found: Tensor, expected: Tensor) -> bool:
    """Whether two forms give the same up to the rounding of quantized numbers."""
    finite = expected.isfinite()
    if not torch.equal(finite, found.isfinite()):
        return False
    found, expected = found[finite].double(), expected[finite].double()
    return bool((found - expected).norm() <= CLOSE * expected.norm() + 1e-6)
