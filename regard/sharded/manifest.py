"""The manifest of an output folder: its input, model, options, versions and shards.

OUT/
  manifest.json       this file
  parts/              one file for each shard that is done
  failed/             the rows without a result of each shard that has such
  leases/             which shards are being computed
  failed.jsonl        all rows without a result, when everything is done
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from regard.checkpoints.hub import folder_of
from regard.errors import CheckpointError, ConfigError
from regard.file_writing import not_written, rename_new, write_text
from regard.schema import read_json
from regard.sharded.shards import InputFile, Shard, check_columns, input_files, plan_shards

MANIFEST, PARTS, FAILED, LEASES = "manifest.json", "parts", "failed", "leases"
ALL_FAILED = "failed.jsonl"
INPUT = "input.jsonl"  # data that were in memory
VERSION = 1
PACKAGES = ("regard", "torch", "numpy", "tokenizers")  # on which results depend


@dataclass(frozen=True)
class ShardedTask:
    """The model, and what it computes for each row.

    model: a folder, or a name on the hub.
    method: "embed", "predict", "translate", "generate" or "tag".
    format: of the parts, one of `regard.sharded.parts.FORMATS`.
    columns: the columns of the input that hold the texts; (): the lines, or chosen by their names.
    threads: of each worker. The last digits of results depend on it, so its default does not
        depend on the number of workers.
    options: keyword arguments of this method.
    quantize, device, task, model_type: as of `regard.load`.
    """

    model: str
    method: str
    format: str
    columns: tuple[str, ...] = ()
    too_long: str = "error"
    quantize: str | None = None
    device: str | None = None
    threads: int = 1
    options: dict[str, Any] | None = None
    task: str | None = None
    model_type: str | None = None


@dataclass(frozen=True)
class ShardManifest:
    """The content of manifest.json."""

    version: int
    task: ShardedTask
    model_sha256: str
    versions: dict[str, str]
    files: list[InputFile]
    shards: list[Shard]

    @property
    def rows(self) -> int:
        """The number of rows of all shards."""
        return sum(shard.rows for shard in self.shards)

    def part_file(self, out: Path, number: int) -> Path:
        """The file with the results of a shard."""
        return out / PARTS / f"part-{number:05}.{self.task.format}"

    def failed_file(self, out: Path, number: int) -> Path:
        """The file that lists the rows of a shard that have no result."""
        return out / FAILED / f"part-{number:05}.jsonl"

    def pending(self, out: Path) -> list[int]:
        """The numbers of the shards that have no part yet."""
        done = names_in(out / PARTS)
        return [n for n in range(len(self.shards)) if self.part_file(out, n).name not in done]


def names_in(folder: Path) -> set[str]:
    """The names of the files in a folder; none where there is no such folder."""
    try:
        return {entry.name for entry in os.scandir(folder)}
    except FileNotFoundError:
        return set()


def read_manifest(out: Path) -> ShardManifest:
    """The manifest of an output folder.

    Raises:
        CheckpointError: there is none, or it is damaged.
    """
    try:
        found: ShardManifest = read_json(out / MANIFEST, ShardManifest)
    except FileNotFoundError:
        raise CheckpointError(
            f"{out} is not an output folder of `--workers` or `regard.predict_files`: it has no "
            f"{MANIFEST}."
        ) from None
    return found


def begin(
    out: Path, task: ShardedTask, paths: list[str | Path], shard_bytes: int | None
) -> ShardManifest:
    """Begin an output folder, or continue it; its manifest.

    Raises:
        ConfigError: the folder was begun with another input, model, option or version, or holds
            something else.
        DataError: the input cannot be read.
        CheckpointError: there is no such model, or the folder cannot be written.
    """
    paths = [Path(path).absolute() for path in paths]
    if folder_of(task.model).resolve() in out.resolve().parents:
        raise ConfigError(
            f"{out} is inside the folder of the model, whose checksum it would change. Choose "
            "another folder (--out)."
        )
    if (out / MANIFEST).exists():
        return _continued(out, task, input_files(paths))
    check_output_folder(out)
    model_sha256 = model_checksum(task.model)
    files, shards = plan_shards(paths, shard_bytes)
    check_columns(files[0], task.columns)
    made = ShardManifest(VERSION, task, model_sha256, versions_for(task), files, shards)
    try:
        (out / PARTS).mkdir(parents=True, exist_ok=True)
        _write_once(out / MANIFEST, _as_json(made))
    except FileExistsError:  # another process has begun it at the same time
        return _continued(out, task, files)
    except OSError as error:
        raise not_written(out, error) from error
    return made


def check_output_folder(out: Path) -> None:
    """Check that an output folder can be begun or continued at this path.

    Without a manifest it may have what is written before the manifest, and no part.

    Raises:
        ConfigError: the path holds something else.
    """
    if out.is_dir():
        parts = names_in(out / PARTS)  # before the manifest: another process may just have begun
        names = {name for name in names_in(out) if not name.startswith(".")}
        if MANIFEST in names or (names <= {PARTS, INPUT} and not parts):
            return
    elif not out.exists():
        return
    raise ConfigError(
        f"{out} exists already and was not written by this command. Choose another folder (--out)."
    )


def _write_once(path: Path, text: str) -> None:
    """Write a new file, completely or not at all.

    Raises:
        FileExistsError: it exists.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        write_text(temporary, text)
        rename_new(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _as_json(manifest: ShardManifest) -> str:
    return json.dumps(asdict(manifest), separators=(",", ":")) + "\n"


def _continued(out: Path, task: ShardedTask, files: list[InputFile]) -> ShardManifest:
    """The manifest of a folder that was begun before, with the paths of now.

    Raises:
        ConfigError: it was begun with another input, model, option or version.
    """
    before = read_manifest(out)
    now = replace(before, task=task, model_sha256=model_checksum(task.model))
    now = replace(now, versions=versions_for(task))
    if changes := [*_changed_files(before.files, files), *_changed_settings(before, now)]:
        raise ConfigError(
            f"{out} was begun with other settings:\n  "
            + "\n  ".join(changes)
            + "\nUse the settings from before, remove the folder, or choose another one."
        )
    damages = [one.damage for one in before.files]
    moved = [replace(one, damage=d) for one, d in zip(files, damages, strict=True)]
    now = replace(now, files=moved)
    if now != before:
        write_text(out / MANIFEST, _as_json(now))
    try:
        (out / PARTS).mkdir(exist_ok=True)
    except OSError as error:
        raise not_written(out / PARTS, error) from error
    return now


def _changed_files(before: list[InputFile], now: list[InputFile]) -> Iterator[str]:
    if len(before) != len(now):
        yield f"the input had {len(before):,} files, and has {len(now):,} now"
        return
    for old, new in zip(before, now, strict=True):
        if old.sha256 != new.sha256:
            was = "" if old.path == new.path else f" in the place of {old.path}"
            yield (
                f"{new.path}{was}: the content has changed (sha256 {old.sha256[:12]}…, "
                f"{old.bytes:,} bytes; now {new.sha256[:12]}…, {new.bytes:,} bytes)"
            )


def _changed_settings(before: ShardManifest, now: ShardManifest) -> Iterator[str]:
    if before.model_sha256 != now.model_sha256:
        yield (
            f"the model was {before.task.model} (sha256 {before.model_sha256[:12]}…), and is "
            f"{now.task.model} (sha256 {now.model_sha256[:12]}…) now"
        )
    old, new = _settings(before), _settings(now)
    for name in sorted({*old, *new}):
        if old.get(name) != new.get(name):
            yield f"`{name}` was {_shown(old.get(name))}, and is {_shown(new.get(name))} now"
    yield from changed_versions(before.versions, now.versions)


def _settings(manifest: ShardManifest) -> dict[str, Any]:
    """The options by name, as they are after JSON: tuples are lists."""
    task = asdict(manifest.task)
    options = task.pop("options") or {}
    del task["model"]
    plain: dict[str, Any] = json.loads(json.dumps({**task, **options}))
    return plain


def _shown(value: object) -> str:
    return "not given" if value is None else repr(value)


def model_checksum(model: str) -> str:
    """SHA-256 over the names and contents of a model's files, and of the base of an adapter.

    Documentation (*.md) and hidden files are left out.

    Raises:
        CheckpointError: there is no such model.
    """
    folder = folder_of(model)
    total = hashlib.sha256()
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder)
        if any(part.startswith(".") for part in name.parts) or file.suffix == ".md":
            continue
        if file.is_file():
            with file.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            total.update(f"{name.as_posix()} {digest}\n".encode())
    if (adapter := folder / "adapter_config.json").exists():
        base = read_json(adapter).get("base_model_name_or_path")
        if isinstance(base, str) and not (folder / "config.json").exists():
            total.update(model_checksum(base).encode())
    return total.hexdigest()


def versions_for(task: ShardedTask) -> dict[str, str]:
    """The versions of the packages on which the bytes of the parts depend."""
    names = (*PACKAGES, "pyarrow") if task.format == "parquet" else PACKAGES
    return {name: _version(name) for name in names}


def changed_versions(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each package whose version differs."""
    for name in sorted({*before, *now}):
        if before.get(name) != now.get(name):
            yield f"version of {name}: {before.get(name)} before, {now.get(name)} now"


def _version(package: str) -> str:
    if package == "regard":
        import regard

        return regard.__version__
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"
