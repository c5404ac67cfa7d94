"""Files of tensors and folders of checkpoints, written atomically and verified when read.

- `read_tensors`, `write_tensors`: safetensors files, never pickle.
- `write_folder`, `read_folder`: a folder of tensors and facts that is either complete or absent,
  with a manifest of SHA-256 checksums that is verified when the folder is read.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file, save_file
from torch import Tensor

from regard.checkpoints.filling import unique_tensors
from regard.errors import CheckpointError
from regard.file_writing import not_written, replacing, sync
from regard.schema import Fields, read_json

MANIFEST = "manifest.json"
FACTS = "facts.json"
INDEX = "index.json"
OWN = "random/"  # tensors of each process by itself begin with this
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})")

Tables = dict[str, dict[str, Tensor]]
Rows = dict[str, dict[str, int]]  # table -> name -> rows that a process holds


class Manifest(Fields):
    """file -> the SHA-256 of its bytes."""

    sha256: dict[str, str]


# ----------------------------------------------------------------------------------- files


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of one safetensors file, mapped into memory.

    Raises:
        CheckpointError: it cannot be read.
    """
    if path.exists() and not path.is_file():  # opening a named pipe would block
        raise CheckpointError(f"{path}: must be a file, but is a folder, a pipe or a device.")
    try:
        # The library opens no path that is not UTF-8; Python has a surrogate for each such byte.
        is_utf8 = not any("\udc80" <= character <= "\udcff" for character in str(path))
        return load_file(path) if is_utf8 else load(path.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"{path}: there is no such file of weights.") from None
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: not a whole safetensors file: {error}.") from error


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write one safetensors file; it is there completely or, after any accident, not at all.

    Raises:
        CheckpointError: it cannot be written; what was at `path` before is then untouched.
    """
    with replacing(path) as temporary:
        _save(temporary, tensors)


def _save(path: Path, tensors: Mapping[str, Tensor]) -> None:
    ready = {name: t.detach().cpu().contiguous() for name, t in unique_tensors(tensors).items()}
    path.touch()
    mode = path.stat().st_mode  # as this process makes files: safetensors lets nobody else read
    try:
        save_file(ready, path, metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(str(error)) from error
    path.chmod(mode)
    sync(path)


# ----------------------------------------------------------------------------------- folders


def write_folder(
    folder: Path,
    tensors: Mapping[str, Mapping[str, Tensor]],
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
    tensors: Mapping[str, Mapping[str, Tensor]],
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
) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
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


def read_table(folder: Path, name: str) -> dict[str, Tensor]:
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


def rows_of(tables: Mapping[str, Mapping[str, Tensor]]) -> Rows:
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
        held = [one.get(table, {}) for one in rows]
        shared = [name for name in names if any(name in one for one in held[1:])]
        cut[table] = {name: [one.get(name, 0) for one in held] for name in shared}
    return {"processes": len(rows), "rows": cut}


def joined(folder: Path, files: Mapping[str, Mapping[str, Tensor]], rank: int, size: int) -> Tables:
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


def _cat(
    folder: Path, table: str, name: str, shards: list[Mapping[str, Tensor]], rows: list[int]
) -> Tensor:
    parts = [shard[name] for shard, count in zip(shards, rows, strict=True) if name in shard]
    if sum(part.size(0) for part in parts) != sum(rows):
        raise CheckpointError(f"{folder}: {table} must have {sum(rows)} rows of {name}.")
    return torch.cat(parts)
