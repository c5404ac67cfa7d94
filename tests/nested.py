"""Tensors among the arguments and results of an operation, which may be in lists, tuples and
mappings; quicker than `torch.utils._pytree`, for what is done at every operation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor


def tensors_in(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    found: list[Tensor] = []
    if isinstance(value, dict | list | tuple):
        for one in value.values() if isinstance(value, dict) else value:
            if isinstance(one, Tensor):
                found.append(one)
            elif isinstance(one, dict | list | tuple):
                found += tensors_in(one)
    return found


def with_tensors(change: Callable[[Tensor], Any], value: Any) -> Any:
    """The same value, each of its tensors changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {name: with_tensors(change, one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([with_tensors(change, one) for one in value])
    return value
