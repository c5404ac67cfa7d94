"""Pickled weights of `torch.save`, read without executing code.

A pickle is a program. Here it is read by an interpreter that knows tensors and nothing else, so
that a file with other instructions raises an error before any of them has run.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.errors import CheckpointError


def read_pickled(path: Path, inside: str = "") -> dict[str, Tensor]:
    """The tensors of a file that `torch.save` wrote, by their names; nothing in it is executed.

    inside: where the file has a table of this name, such as the weights beside the state of an
        optimizer, its tensors.

    Raises:
        CheckpointError: the file is damaged, holds anything else than tensors by name, or would
            run something when it is opened.
    """
    try:
        # Files of before PyTorch 1.6 are no archives and cannot be mapped.
        is_archive = begins_with(path, b"PK\x03\x04")
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=is_archive)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: there is no such file of weights.") from None
    except Exception as error:  # a damaged pickle may raise anything
        said = str(error)
        if call := re.search(r"GLOBAL ([\w.]+)", said):
            raise CheckpointError(
                f"{path} was not opened: it would run {call[1]}. Weights need no program; use the "
                "model.safetensors of this model, or save it as safetensors where you trust the "
                "file."
            ) from None
        unsupported = re.search("Unsupported.*", said)
        said = unsupported[0] if unsupported else said.split("\n")[0] or type(error).__name__
        raise CheckpointError(f"{path}: not a whole file of weights: {said}") from error
    if isinstance(content, Mapping) and isinstance(content.get(inside), Mapping):
        content = content[inside]
    if not isinstance(content, Mapping):
        kind = type(content).__name__
        raise CheckpointError(f"{path} must hold tensors by name, but holds one {kind}.")
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise CheckpointError(
                f"{path} must hold tensors by name, but {name!r} is of type {type(value).__name__}."
            )
    return {name: tensor.detach() for name, tensor in content.items()}


class _StringsUnpickler(pickle.Unpickler):
    """Reads what is made of lists and strings alone."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it would run {module}.{name}")


def read_pickled_strings(path: Path) -> Any:
    """What a pickle of lists of strings holds; nothing in it is executed.

    Raises:
        CheckpointError: the file is damaged, or would run something when it is opened.
    """
    try:
        with path.open("rb") as file:
            return _StringsUnpickler(file).load()
    except FileNotFoundError:
        raise CheckpointError(f"{path}: there is no such file.") from None
    except Exception as error:  # a damaged pickle may raise anything
        raise CheckpointError(f"{path} was not opened: {error}.") from None


def begins_with(path: Path, prefix: bytes) -> bool:
    """Whether these are the first bytes of a file.

    Raises:
        CheckpointError: this user has no permission to read it.
    """
    try:
        with path.open("rb") as file:
            return file.read(len(prefix)) == prefix
    except PermissionError:
        raise CheckpointError(f"{path}: this user has no permission to read it.") from None
