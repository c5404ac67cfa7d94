"""A GPU in the memory of the CPU: tensors whose device is `mock:0`, and which the CPU computes.

As on a GPU, an operation on tensors of several devices is an error, unless those of the CPU have no
dimensions. So a table, mask or index that a model makes on the wrong device is found where there is
no GPU. What this does not show: kernels that a GPU lacks, rounding, and speed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from nested import tensors_in, with_tensors
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_setup_privateuseone_for_python_backend("mock")
MOCK = torch.device("mock", 0)
BETWEEN_DEVICES = ("aten::_to_copy", "aten::copy_")


class OnMockGpu(Tensor):
    """A tensor that says it is on `mock:0`; `inner` has its values."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: Tensor) -> OnMockGpu:
        return Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=MOCK,
            requires_grad=inner.requires_grad,
        )

    def __init__(self, inner: Tensor):
        self.inner = inner

    def tolist(self) -> Any:
        return self.inner.tolist()

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"{self.inner!r} on {self.device}"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _computed(func, args, kwargs or {})


class _OnEitherDevice(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return _computed(func, args, kwargs or {})


@contextmanager
def mock_gpu() -> Iterator[torch.device]:
    """Inside, tensors and modules can be made on this device and put there."""
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)  # else tied weights would be untied
    try:
        with _OnEitherDevice():
            yield MOCK
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)


def _computed(func: Any, args: Any, kwargs: Any) -> Any:
    """What an operation gives, on the device that it names, else on that of its tensors."""
    tensors = tensors_in((args, kwargs))
    mock = any(isinstance(one, OnMockGpu) for one in tensors)
    device = kwargs.get("device")
    named = device is not None and torch.device(device).type == MOCK.type
    if not mock and not named:
        return func(*args, **kwargs)
    name = func._schema.name
    if mock and name not in BETWEEN_DEVICES:
        _check_same_device(func, tensors)
    if name == "aten::copy_":
        mock = isinstance(args[0], OnMockGpu)
    elif device is not None:
        mock = named
    args, kwargs = with_tensors(_inner, (args, kwargs))
    if "device" in kwargs:
        kwargs = dict(kwargs, device=torch.device("cpu"))
    out = func(*args, **kwargs)
    if not mock:
        return out
    known = {id(one.inner): one for one in tensors if isinstance(one, OnMockGpu)}
    return with_tensors(lambda x: known[id(x)] if id(x) in known else OnMockGpu(x), out)


def _inner(x: Tensor) -> Tensor:
    return x.inner if isinstance(x, OnMockGpu) else x


def _check_same_device(func: Any, tensors: list[Tensor]) -> None:
    for one in tensors:
        if not isinstance(one, OnMockGpu) and one.dim():
            raise RuntimeError(
                f"Expected all tensors to be on the same device: {func} gets one of shape "
                f"{tuple(one.shape)} on {one.device}, and others on {MOCK}"
            )


def _empty(size: Any, *args: Any, dtype: Any = None, device: Any = None, **other: Any) -> Tensor:
    return OnMockGpu(torch.empty(size, dtype=dtype))


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, **other: Any) -> Tensor:
    return OnMockGpu(torch.empty_strided(size, stride, dtype=dtype))


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    _inner(target).copy_(_inner(source))
    return target


# `Tensor.new_tensor` makes its memory where no mode is asked.
_implementations = torch.library.Library("aten", "IMPL")
_implementations.impl("empty.memory_format", _empty, "PrivateUse1")
_implementations.impl("empty_strided", _empty_strided, "PrivateUse1")
_implementations.impl("_copy_from", _copy_from, "PrivateUse1")
