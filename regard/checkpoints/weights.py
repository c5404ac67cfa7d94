"""Weights of other libraries: one file or shards, safetensors or pickle.

tensors = read_weights(folder)      {"bert.embeddings.word_embeddings.weight": ..., ...}
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from regard.checkpoints.pickled import begins_with, read_pickled
from regard.checkpoints.store import read_tensors
from regard.errors import CheckpointError
from regard.schema import Fields, read_json

WHOLE, PICKLED = "model.safetensors", "pytorch_model.bin"
INDEX = ".index.json"  # after the name of the whole file: which shard holds which tensor
ELSEWHERE = (".h5", ".msgpack", ".onnx", ".gguf", ".ckpt.index")  # weights of other libraries

Read = Callable[[Path], dict[str, Tensor]]
READERS: dict[str, Read] = {WHOLE: read_tensors, PICKLED: read_pickled}


class ShardIndex(Fields):
    """What an index of shards holds: tensor -> the file with it."""

    weight_map: dict[str, str]


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
    raise CheckpointError(f"{folder} holds no weights: {_what_is_there(folder)}")


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
    names = (one for name in READERS for one in (name, f"{name}{INDEX}"))
    return any((folder / name).exists() for name in names)


def _what_is_there(folder: Path) -> str:
    if not folder.is_dir():
        return "there is no such folder."
    names = sorted(path.name for path in folder.iterdir())
    there = _some(names, 12) or "none"
    said = f"there must be {WHOLE} or {PICKLED}, whole or in shards, but there is {there}"
    if others := [name for name in names if name.endswith(ELSEWHERE)]:
        said += f". {others[0]} is of another library: save the model as safetensors there"
    return said + "."


def _some(names: list[str], limit: int = 8) -> str:
    """The first names of a list, and how many there are more."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def _read(path: Path, read: Read) -> dict[str, Tensor]:
    """One file, unless it is a placeholder."""
    if not path.is_file():  # opening a named pipe would block
        raise CheckpointError(f"{path}: must be a file, but is a folder, a pipe or a device.")
    if begins_with(path, b"version https://git-lfs"):
        raise CheckpointError(
            f"{path} holds no weights, but a pointer of git-lfs to them. Fetch them with: "
            "git lfs pull"
        )
    return read(path)


def _read_shards(index: Path, read: Read) -> dict[str, Tensor]:
    listed = _weight_map(index)
    shards = sorted(set(listed.values()))
    for shard in shards:
        if shard != Path(shard).name or {"\\", "\0"} & {*shard} or shard == "..":
            raise CheckpointError(
                f"{index}: the shard {shard!r} lies outside of the folder, and is not read. "
                "Shards are files beside their index."
            )
    if missing := [shard for shard in shards if not (index.parent / shard).is_file()]:
        raise CheckpointError(
            f"{index} names {len(shards)} shards, but not there: {_some(missing)}. Copy or "
            "download them again."
        )
    found: dict[str, Tensor] = {}
    for shard in shards:
        tensors = _read(index.parent / shard, read)
        if twice := sorted(found.keys() & tensors.keys()):
            raise CheckpointError(f"{index.parent / shard}: {twice[0]} is in another shard, too.")
        found |= tensors
    if absent := [f"{name} ({shard})" for name, shard in listed.items() if name not in found]:
        raise CheckpointError(
            f"{index} lists tensors that their shards do not hold: {_some(absent)}. Does a shard "
            "come from another model?"
        )
    return found


def _weight_map(index: Path) -> dict[str, str]:
    """Which shard holds which tensor."""

    def malformed(said: str) -> CheckpointError:
        return CheckpointError(f"{said} It is not an index of shards.")

    found: ShardIndex = read_json(index, ShardIndex, error=malformed)
    if not found.weight_map:
        raise CheckpointError(f"{index}: `weight_map` must name the file of each tensor.")
    return found.weight_map
