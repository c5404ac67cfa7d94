"""Files of tensors, folders of checkpoints, and the weights of other libraries.

- `read_tensors`, `write_tensors`: safetensors files, written atomically.
- `read_weights`: the weights of a published folder, one file or shards, safetensors or pickle.
- `write_folder`, `read_folder`: a folder of tensors and facts that is either complete or absent,
  with a manifest of SHA-256 checksums that is verified when the folder is read.

A pickle is a program. It is read by an interpreter that knows tensors and nothing else, so that a
file with other instructions raises an error before any of them has run.
"""

import hashlib
import json
import os
import pickle
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import AfterValidator, Field
from safetensors import SafetensorError
from safetensors.torch import load, load_file, save_file
from torch import Tensor

from regard.checkpoints.filling import Weights, unique_tensors
from regard.errors import CheckpointError
from regard.file_writing import not_written, replacing, sync
from regard.schema import Fields, read_json

MANIFEST = "manifest.json"
FACTS = "facts.json"
INDEX = "index.json"
OWN = "random/"  # tensors of each process by itself begin with this
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})")

Tensors = dict[str, Tensor]  # by name
Tables = dict[str, Tensors]
Rows = dict[str, dict[str, int]]  # table -> name -> rows that a process holds


class Manifest(Fields):
    """file -> the SHA-256 of its bytes."""

    sha256: dict[str, str]


# ----------------------------------------------------------------------------------- files


def read_tensors(path: Path) -> Tensors:
    """The tensors of one safetensors file, mapped into memory.

    Raises:
        CheckpointError: it cannot be read.
    """
    try:
        # The library opens no path that is not UTF-8; Python has a surrogate for each such byte.
        is_utf8 = not any("\udc80" <= character <= "\udcff" for character in str(path))
        return load_file(path) if is_utf8 else load(path.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"{path}: there is no such file of weights.") from None
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: not a whole safetensors file: {error}.") from error


def write_tensors(path: Path, tensors: Weights) -> None:
    """Write one safetensors file; it is there completely or, after any accident, not at all.

    Raises:
        CheckpointError: it cannot be written; what was at `path` before is then untouched.
    """
    with replacing(path) as temporary:
        _save(temporary, tensors)


def _save(path: Path, tensors: Weights) -> None:
    ready = {name: t.detach().cpu().contiguous() for name, t in unique_tensors(tensors).items()}
    path.touch()
    mode = path.stat().st_mode  # as this process makes files: safetensors lets nobody else read
    try:
        save_file(ready, path, metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(str(error)) from error
    path.chmod(mode)
    sync(path)


# ------------------------------------------------------------------------------ published weights

WHOLE, PICKLED = "model.safetensors", "pytorch_model.bin"
SHARDS = ".index.json"  # after the name of the whole file: which shard holds which tensor


def _file_name(name: str) -> str:
    if name != Path(name).name or {"\\", "\0"} & {*name} or name == "..":
        raise ValueError("must be the name of a file beside the index, not outside of the folder")
    return name


class ShardIndex(Fields):
    """What an index of shards holds: tensor -> the file with it."""

    weight_map: Annotated[
        dict[str, Annotated[str, AfterValidator(_file_name)]], Field(min_length=1)
    ]


def read_pickled(path: Path, inside: str = "") -> Tensors:
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


Read = Callable[[Path], Tensors]
READERS: dict[str, Read] = {WHOLE: read_tensors, PICKLED: read_pickled}


def read_weights(folder: str | Path) -> Tensors:
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
            return _read(folder / name, read)
        if (index := folder / f"{name}{SHARDS}").exists():
            return _read_shards(index, read)
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    must = f"must be {WHOLE} or {PICKLED}, whole or in shards"
    listed = _some(names, 12) or "nothing"
    raise CheckpointError(f"{folder} holds no weights: there {must}, but there is {listed}.")


def holds_weights(folder: Path) -> bool:
    """Whether a folder holds the weights of a whole model."""
    names = (whole for name in READERS for whole in (name, f"{name}{SHARDS}"))
    return any((folder / name).exists() for name in names)


def _some(names: list[str], limit: int = 8) -> str:
    """The first names of a list, and how many there are more."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def _read(path: Path, read: Read) -> Tensors:
    """One file, unless it is a placeholder."""
    if not path.is_file():  # opening a named pipe would block
        raise CheckpointError(f"{path}: must be a file, but is a folder, a pipe or a device.")
    if begins_with(path, b"version https://git-lfs"):
        raise CheckpointError(f"{path} holds a pointer to weights. Fetch them: git lfs pull")
    return read(path)


def _read_shards(index: Path, read: Read) -> Tensors:
    listed = read_json(index, ShardIndex).weight_map
    shards = sorted(set(listed.values()))
    if missing := sorted({*shards} - {path.name for path in index.parent.iterdir()}):
        raise CheckpointError(f"{index} names shards that are not there: {_some(missing)}.")
    merged: Tensors = {}
    for shard in shards:
        tensors = _read(index.parent / shard, read)
        if twice := sorted(merged.keys() & tensors.keys()):
            raise CheckpointError(f"{index.parent / shard}: {twice[0]} is in another shard, too.")
        merged |= tensors
    if absent := [f"{name} ({shard})" for name, shard in listed.items() if name not in merged]:
        raise CheckpointError(f"{index} lists tensors that no shard holds: {_some(absent)}.")
    return merged


# ----------------------------------------------------------------------------------- folders


def write_folder(
    folder: Path,
    tensors: Mapping[str, Weights],
    facts: Mapping[str, Any],
    same: Mapping[str, Path] | None = None,
) -> None:
    """Write a new folder of `<name>.safetensors` files and facts.json, complete or not at all.

    It is written under a temporary name with a manifest of checksums, forced to the disk and then
    renamed.

    same: name -> an earlier folder that has equal tensors under it. Its file becomes that of this
        folder, too (a hard link), where the disk can do so.

    Raises:
        CheckpointError: it cannot be written; nothing is left behind in that case.
    """
    try:
        begin_folder(folder)
        checksums = write_files(folder, tensors, same)
        complete_folder(folder, {FACTS: facts}, checksums)
    except OSError as error:
        abandon_folder(folder)
        raise not_written(folder, error) from error


def begin_folder(folder: Path) -> None:
    """Make an empty folder under a temporary name, in which `folder` is written."""
    abandon_folder(folder)
    _unfinished(folder).mkdir(parents=True)


def write_files(
    folder: Path,
    tensors: Mapping[str, Weights],
    same: Mapping[str, Path] | None = None,
) -> dict[str, str]:
    """Write tensors into a folder that was begun; see `write_folder`. The checksum of each file."""
    checksums = {}
    for name, content in tensors.items():
        file = f"{name}.safetensors"
        path = _unfinished(folder) / file
        if not (same and name in same and _linked(same[name] / file, path)):
            _save(path, content)
        checksums[file] = _sha256(path)
    return checksums


def complete_folder(
    folder: Path, documents: Mapping[str, Mapping[str, Any]], checksums: Mapping[str, str]
) -> None:
    """Write JSON files and the manifest into a folder that was begun, and give it its name."""
    temporary, sums = _unfinished(folder), dict(checksums)
    for name, content in documents.items():
        _write_json(temporary / name, content)
        sums[name] = _sha256(temporary / name)
    _write_json(temporary / MANIFEST, {"sha256": dict(sorted(sums.items()))})
    sync(temporary)
    os.rename(temporary, folder)
    sync(folder.parent)


def abandon_folder(folder: Path) -> None:
    """Delete what was begun of a folder."""
    shutil.rmtree(_unfinished(folder), ignore_errors=True)


def _unfinished(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.writing")


def _linked(source: Path, target: Path) -> bool:
    """Whether the file could be given a second name."""
    try:
        os.link(source, target)
    except OSError:  # it is gone, or this disk has no hard links
        return False
    return True


def verify_folder(folder: Path) -> None:
    """Compare every file with the manifest.

    Raises:
        CheckpointError: a file differs, is missing, or cannot be read; or the manifest does not
            name one that is read.
    """
    checksums = _readable(folder / MANIFEST, lambda path: read_json(path, Manifest)).sha256
    files = {path.name for path in folder.glob("*.safetensors")}
    files |= {name for name in (FACTS, INDEX) if (folder / name).exists()}
    if unnamed := sorted(files - checksums.keys()):
        raise CheckpointError(f"{folder / MANIFEST} has no checksum of {unnamed[0]}.")
    for name, expected in checksums.items():
        if name != Path(name).name:
            raise CheckpointError(f"{folder / MANIFEST}: {name!r} is not the name of a file in it.")
        actual = _readable(folder / name, _sha256)
        if actual != expected:
            must = f"its sha256 must be {expected[:12]}…, but is {actual[:12]}…"
            raise CheckpointError(f"{folder / name} is damaged: {must}")


def read_folder(
    folder: Path, rank: int = 0, size: int = 1, *, verified: bool = False
) -> tuple[Tables, dict[str, Any]]:
    """The tensors (by file, by name) and the facts of a folder, after it was verified.

    Tensors that several processes have written are joined.

    rank, size: of the process that reads; see `joined`.
    verified: whether that was done before.

    Raises:
        CheckpointError: see `verify_folder`.
    """
    if not verified:
        verify_folder(folder)
    tensors = _tables(folder, "*", rank, size)
    return tensors, _readable(folder / FACTS, lambda path: read_json(path, finite=False))


def read_table(folder: Path, name: str) -> Tensors:
    """The tensors of one file of a folder, `name` without ending; {} where it is not there."""
    return _tables(folder, f"{name}*", 0, 1).get(name, {})


def _tables(folder: Path, pattern: str, rank: int, size: int) -> Tables:
    paths = sorted(folder.glob(f"{pattern}.safetensors"))
    files = {path.stem: read_tensors(path) for path in paths}
    if not (folder / INDEX).exists():
        return files
    return joined(folder, files, rank, size)


def _readable(path: Path, read: Callable[[Path], Any]) -> Any:
    try:
        return read(path)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error}.") from error


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    sync(path)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# ----------------------------------------------------------------- folders of several processes
# Each writes its part of every tensor:
#
#     step-000500/  weights-00001-of-00004.safetensors ... memory-00004-of-00004.safetensors
#                   index.json facts.json manifest.json
#
# index.json says which tensors were cut by their first dimension: table -> name -> rows of each
# process. The others are whole, in the file of the first process, or, under `random/`, belong to
# the process that wrote them.


class Index(Fields):
    """index.json: how many processes wrote the folder, and the rows of each in the cut tensors."""

    processes: int
    rows: dict[str, dict[str, list[int]]]


def shard_name(table: str, rank: int, size: int) -> str:
    """The name of a process' file of a table, without its ending."""
    return f"{table}-{rank + 1:05}-of-{size:05}"


def rows_of(tables: Mapping[str, Weights]) -> Rows:
    """The rows of all tensors that have some, but those of each process by itself."""
    return {
        table: {
            name: tensor.size(0)
            for name, tensor in tensors.items()
            if tensor.dim() and not name.startswith(OWN)
        }
        for table, tensors in tables.items()
    }


def index_of(rows: list[Rows]) -> dict[str, object]:
    """What index.json says; a tensor that the first process alone holds is whole.

    rows: those of each process, in their order.
    """
    cut: dict[str, dict[str, list[int]]] = {}
    for table, names in rows[0].items():
        held = [of_process.get(table, {}) for of_process in rows]
        shared = [name for name in names if any(name in counts for counts in held[1:])]
        cut[table] = {name: [counts.get(name, 0) for counts in held] for name in shared}
    return {"processes": len(rows), "rows": cut}


def joined(folder: Path, files: Mapping[str, Weights], rank: int, size: int) -> Tables:
    """The tables of a folder from its files, with whole tensors.

    files: name without ending -> the tensors of the file
    rank, size: of the process that reads. Tensors of a process by itself are there only where as
        many processes have written.

    Raises:
        CheckpointError: a file is missing, or does not hold what index.json says.
    """
    index = read_json(folder / INDEX, Index)
    tables: Tables = {}
    for file, tensors in files.items():
        match = _SHARD.fullmatch(file)
        if match is None or int(match[3]) != index.processes:
            raise CheckpointError(f"{folder / file}.safetensors: index.json does not name it.")
        table, number = tables.setdefault(match[1], {}), int(match[2]) - 1
        cut = index.rows.get(match[1], {})
        for name, tensor in tensors.items():
            if name.startswith(OWN):
                if (number, index.processes) == (rank, size):
                    table[name] = tensor
            elif name not in cut:
                table[name] = tensor
    for one in tables.keys() & index.rows.keys():
        cut = index.rows[one]
        for name, rows in cut.items():
            shards = [files.get(shard_name(one, n, len(rows)), {}) for n in range(len(rows))]
            tables[one][name] = _cat(folder, one, name, shards, rows)
    return tables


def _cat(folder: Path, table: str, name: str, shards: list[Weights], rows: list[int]) -> Tensor:
    parts = [shard[name] for shard in shards if name in shard]
    lengths = [len(shard.get(name, ())) for shard in shards]
    if lengths != rows or not parts:
        must = f"`rows.{table}.{name}` must be those of the files, {lengths}, but is {rows}"
        raise CheckpointError(f"{folder / INDEX}: {must}.")
    return torch.cat(parts)
