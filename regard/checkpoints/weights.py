"""The weights of a folder that another library wrote: whole or in shards, safetensors or a pickle.

    tensors = read_weights(folder)      {"bert.embeddings.word_embeddings.weight": ..., ...}

A pickle is a program. Here it is read by an interpreter that knows tensors and nothing else, so
that a file with other instructions is refused before any of them has run.
"""

from __future__ import annotations

import io
import pickletools
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from regard.checkpoints.store import read_tensors
from regard.errors import CheckpointError
from regard.schema import Fields, read_json

WHOLE, PICKLED = "model.safetensors", "pytorch_model.bin"
INDEX = ".index.json"  # behind the name of the whole file: which shard holds which tensor
ELSEWHERE = (".h5", ".msgpack", ".onnx", ".gguf", ".ckpt.index")  # weights of other libraries

# What a pickle of tensors calls.
OF_TENSORS = re.compile(
    r"collections\.OrderedDict|torch(\.\w+)*\.(_rebuild\w*|\w*Storage|Size|device|[a-z]+\d+\w*)"
)

Read = Callable[[Path], dict[str, Tensor]]


class ShardIndex(Fields):
    """What an index of shards holds: tensor -> the file with it."""

    weight_map: dict[str, str]


def read_weights(folder: str | Path) -> dict[str, Tensor]:
    """The tensors of a folder by their published names, in the precision they are stored in.

    Read is what comes first of model.safetensors, its shards, pytorch_model.bin, its shards. Files
    are mapped into memory, not copied, where their format allows it.

    Raises:
        CheckpointError: there are no weights, a shard or a tensor is missing, a file is damaged or
            a pickle asks for more than tensors.
    """
    folder = Path(folder)
    readers: tuple[tuple[str, Read], ...] = ((WHOLE, read_tensors), (PICKLED, read_pickled))
    for name, read in readers:
        if (folder / name).exists():
            return _read(folder / name, read)
        if (folder / f"{name}{INDEX}").exists():
            return _read_shards(folder / f"{name}{INDEX}", read)
    raise CheckpointError(f"{folder} holds no weights: {_what_is_there(folder)}")


def _what_is_there(folder: Path) -> str:
    if not folder.is_dir():
        return "there is no such folder."
    names = sorted(path.name for path in folder.iterdir())
    there = ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
    said = f"there must be {WHOLE} or {PICKLED}, whole or in shards, but there is {there or 'none'}"
    if others := [name for name in names if name.endswith(ELSEWHERE)]:
        said += f". {others[0]} is of another library: save the model as safetensors there"
    return said + "."


def _read(path: Path, read: Read) -> dict[str, Tensor]:
    """One file, unless it only stands for one."""
    if not path.is_file():  # opening a named pipe would wait for ever
        raise CheckpointError(f"{path}: must be a file, but is a folder, a pipe or a device.")
    if _begins(path, b"version https://git-lfs"):
        raise CheckpointError(
            f"{path} is not the weights, but the note that git keeps in their place. "
            "Fetch them with: git lfs pull"
        )
    return read(path)


def _begins(path: Path, with_bytes: bytes) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(with_bytes)) == with_bytes
    except PermissionError:
        raise CheckpointError(
            f"{path}: may not be read by this user: see its permissions."
        ) from None


# ----------------------------------------------------------------------------------- shards


def _read_shards(index: Path, read: Read) -> dict[str, Tensor]:
    promised = _weight_map(index)
    shards = sorted(set(promised.values()))
    for shard in shards:
        if shard != Path(shard).name or {"\\", "\0"} & {*shard} or shard == "..":
            raise CheckpointError(
                f"{index}: the shard {shard!r} lies outside of the folder, and is not read. "
                "Shards are files beside their index."
            )
    if missing := [shard for shard in shards if not (index.parent / shard).is_file()]:
        raise CheckpointError(
            f"{index} names {len(shards)} shards, but not there: {', '.join(missing[:8])}. "
            "Copy or download them again."
        )
    found: dict[str, Tensor] = {}
    for shard in shards:
        tensors = _read(index.parent / shard, read)
        if twice := sorted(found.keys() & tensors.keys()):
            raise CheckpointError(f"{index.parent / shard}: {twice[0]} is in another shard, too.")
        found |= tensors
    if absent := [f"{name} ({shard})" for name, shard in promised.items() if name not in found]:
        more = f", and {len(absent) - 8} more" if len(absent) > 8 else ""
        raise CheckpointError(
            f"{index} promises tensors that their shards do not hold: "
            f"{', '.join(absent[:8])}{more}. Does a shard come from another model?"
        )
    return found


def _weight_map(index: Path) -> dict[str, str]:
    """Which shard holds which tensor."""
    found: ShardIndex = read_json(index, ShardIndex, error=_no_index)
    if not found.weight_map:
        raise CheckpointError(f"{index}: `weight_map` must name the file of each tensor.")
    return found.weight_map


def _no_index(said: str) -> CheckpointError:
    return CheckpointError(f"{said} It is not an index of shards.")


# ----------------------------------------------------------------------------------- pickles


def read_pickled(path: Path) -> dict[str, Tensor]:
    """The tensors of a file that `torch.save` wrote; nothing in it is executed.

    Raises:
        CheckpointError: the file is damaged, holds something else than tensors by name, or would
            run something when it is opened.
    """
    try:
        # Files of before PyTorch 1.6 are no archives and cannot be mapped.
        mapped = _begins(path, b"PK\x03\x04")
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: there is no such file of weights.") from None
    except Exception as error:  # a damaged pickle fails in any way
        if wanted := _asked_for(path):
            raise CheckpointError(
                f"{path} was not opened: it would run {', '.join(wanted[:8])}. Weights need no "
                f"program; use the {WHOLE} of this model, or save it as safetensors where you "
                "trust the file."
            ) from None
        unsupported = re.search("Unsupported.*", str(error))
        said = unsupported[0] if unsupported else str(error).split("\n")[0] or type(error).__name__
        raise CheckpointError(f"{path}: not a whole file of weights: {said}") from error
    if not isinstance(content, Mapping):
        kind = type(content).__name__
        raise CheckpointError(f"{path} must hold tensors by name, but holds one {kind}.")
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise CheckpointError(
                f"{path} must hold tensors by name, but {name!r} is of type {type(value).__name__}."
            )
    return {name: tensor.detach() for name, tensor in content.items()}


def _asked_for(path: Path) -> list[str]:
    """What a pickle would import and call, apart from what rebuilds tensors."""
    names: list[str] = []
    strings: list[str] = []
    for operation, argument in _operations(path):
        if operation in ("GLOBAL", "INST"):
            names.append(argument.replace(" ", "."))
        elif operation == "STACK_GLOBAL":
            names.append(".".join(strings[-2:]))
        elif isinstance(argument, str):
            strings.append(argument)
    return [name for name in dict.fromkeys(names) if not OF_TENSORS.fullmatch(name)]


def _operations(path: Path) -> Iterator[tuple[str, Any]]:
    """The instructions of a file's pickles, which are listed and not followed: name, argument."""
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            yield from _listed(file)
        return
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.endswith(".pkl"):
                yield from _listed(io.BytesIO(archive.read(name)))


def _listed(file: IO[bytes]) -> Iterator[tuple[str, Any]]:
    """Those of one pickle, and of the next behind it, until something else comes: the numbers."""
    try:
        while True:
            for operation, argument, _ in pickletools.genops(file):
                yield operation.name, argument
    except Exception:  # what is no pickle fails in any way
        return
