"""Weights of other libraries: one file or shards, safetensors or pickle.

    tensors = read_weights(folder)      {"bert.embeddings.word_embeddings.weight": ..., ...}

A pickle is a program. It is read by an interpreter that knows tensors and nothing else, so that a
file with other instructions raises an error before any of them has run.
"""

import pickle
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import AfterValidator, Field
from torch import Tensor

from regard.checkpoints.store import read_tensors
from regard.errors import CheckpointError
from regard.schema import Fields, read_json

WHOLE, PICKLED = "model.safetensors", "pytorch_model.bin"
INDEX = ".index.json"  # after the name of the whole file: which shard holds which tensor


def _file_name(name: str) -> str:
    if name != Path(name).name or {"\\", "\0"} & {*name} or name == "..":
        raise ValueError("must be the name of a file beside the index, not outside of the folder")
    return name


class ShardIndex(Fields):
    """What an index of shards holds: tensor -> the file with it."""

    weight_map: Annotated[
        dict[str, Annotated[str, AfterValidator(_file_name)]], Field(min_length=1)
    ]


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
        message = str(error)
        if call := re.search(r"GLOBAL ([\w.]+)", message):
            hint = "Use model.safetensors, or save it as safetensors where you trust the file."
            raise CheckpointError(f"{path}: it would run {call[1]}. {hint}") from None
        unsupported = re.search("Unsupported.*", message)
        message = unsupported[0] if unsupported else message.split("\n")[0] or type(error).__name__
        raise CheckpointError(f"{path}: not a whole file of weights: {message}") from error
    if isinstance(content, Mapping) and isinstance(content.get(inside), Mapping):
        content = content[inside]
    if not isinstance(content, Mapping) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in content.items()
    ):
        raise CheckpointError(f"{path} must hold tensors by name, and nothing else.")
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


# ------------------------------------------------------------------------------------ folders

Read = Callable[[Path], dict[str, Tensor]]
READERS: dict[str, Read] = {WHOLE: read_tensors, PICKLED: read_pickled}


def read_weights(folder: str | Path) -> dict[str, Tensor]:
    """The tensors of a folder by their published names, in the precision they are stored in.

    The first that is there is read of model.safetensors, its shards, pytorch_model.bin, its shards.
    Files are mapped into memory, not copied, where their format allows it.

    Raises:
        CheckpointError: there are no weights, a shard or a tensor is missing, a file is damaged or
            a pickle asks for more than tensors.
    """
    folder = Path(folder)
    for name, read in READERS.items():
        if (folder / name).exists():
            return _unwrapped(_read(folder / name, read), folder / name)
        if (index := folder / f"{name}{INDEX}").exists():
            return _unwrapped(_read_shards(index, read), index)
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    must = f"must be {WHOLE} or {PICKLED}, whole or in shards"
    listed = _some(names, 12) or "nothing"
    raise CheckpointError(f"{folder} holds no weights: there {must}, but there is {listed}.")


def _unwrapped(tensors: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    """The tensors of a module that was saved inside a wrapper, without the wrapper's name.

    `torch.compile` puts `_orig_mod.` before the names of the module that it compiles, which may be
    a part; DataParallel puts `module.` before all.
    """
    names = {name: name.replace("_orig_mod.", "") for name in tensors}
    while tensors and all(name.startswith("module.") for name in names.values()):
        names = {name: inner.removeprefix("module.") for name, inner in names.items()}
    if all(name == inner for name, inner in names.items()):
        return tensors
    if len(set(names.values())) < len(names):
        raise CheckpointError(f"{path} holds tensors with and without the prefix of a wrapper.")
    warnings.warn(
        f"{path}: `_orig_mod.` or `module.` before the names of tensors, left by torch.compile or "
        "DataParallel, is ignored.",
        stacklevel=2,
    )
    return {names[name]: tensor for name, tensor in tensors.items()}


def holds_weights(folder: Path) -> bool:
    """Whether a folder holds the weights of a whole model."""
    names = (whole for name in READERS for whole in (name, f"{name}{INDEX}"))
    return any((folder / name).exists() for name in names)


def _some(names: list[str], limit: int = 8) -> str:
    """The first names of a list, and how many there are more."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def _read(path: Path, read: Read) -> dict[str, Tensor]:
    """One file, unless it is a placeholder."""
    if not path.is_file():  # opening a named pipe would block
        raise CheckpointError(f"{path}: must be a file, but is a folder, a pipe or a device.")
    if begins_with(path, b"version https://git-lfs"):
        raise CheckpointError(f"{path} holds a pointer to weights. Fetch them: git lfs pull")
    return read(path)


def _read_shards(index: Path, read: Read) -> dict[str, Tensor]:
    listed = read_json(index, ShardIndex).weight_map
    shards = sorted(set(listed.values()))
    if missing := [shard for shard in shards if not (index.parent / shard).is_file()]:
        raise CheckpointError(f"{index} names shards that are not there: {_some(missing)}.")
    merged: dict[str, Tensor] = {}
    for shard in shards:
        tensors = _read(index.parent / shard, read)
        if twice := sorted(merged.keys() & tensors.keys()):
            raise CheckpointError(f"{index.parent / shard}: {twice[0]} is in another shard, too.")
        merged |= tensors
    if absent := [f"{name} ({shard})" for name, shard in listed.items() if name not in merged]:
        raise CheckpointError(f"{index} lists tensors that no shard holds: {_some(absent)}.")
    return merged
