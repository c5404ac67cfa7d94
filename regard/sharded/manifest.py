"""The manifest of an output folder: its input, model, options, versions and parts.

OUT/
  manifest.json       this file
  parts/              one file for each part that is done
  failed/             the rows without a result of each part that has such
  failed.jsonl        all rows without a result, when everything is done
"""

import hashlib
import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any
from uuid import uuid4

import regard
from regard.checkpoints.hub import folder_of
from regard.data.files import ENDINGS, ending, hash_of
from regard.data.readers import RowReader, open_table
from regard.errors import CheckpointError, ConfigError, DataError
from regard.file_writing import not_written, rename_new, write_text
from regard.schema import differences, read_json

MANIFEST, PARTS, FAILED = "manifest.json", "parts", "failed"
ALL_FAILED = "failed.jsonl"
VERSION = 3
PACKAGES = ("torch", "numpy", "tokenizers", "pyarrow")  # on which results depend
ROWS_PER_PART = 1024


@dataclass(frozen=True)
class ShardedTask:
    """The model, and what it computes for each row.

    model: a folder, or a name on the hub.
    method: "embed", "predict", "translate", "generate" or "tag".
    format: of the parts, one of the formats in `regard.sharded.parts`.
    columns: the columns of the input that hold the texts; (): the lines, or chosen by their names.
    threads: of each worker. The last digits of results depend on it, so its default does not
        depend on the number of workers.
    options: keyword arguments of this method.
    quantize, device, task, model_type: as of `regard.load`.
    rows_per_part: how many rows each part has, unless its file ends; texts of a part are batched
        together.
    delimiter: between the fields of CSV; None: a comma.
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
    rows_per_part: int = ROWS_PER_PART
    delimiter: str | None = None


@dataclass(frozen=True)
class InputFile:
    """A file of the input.

    format: one of `ENDINGS`' values, or "lines".  rows: how many it has.  delimiter: of CSV.
    header: whether the first line of a table names its columns; else the names are the numbers.
    """

    path: str
    format: str
    sha256: str
    rows: int = 0
    delimiter: str = ","
    header: bool = True

    def table(self, keep_errors: bool = True) -> RowReader:
        """What reads its rows; a row that cannot be read may be its error."""
        return open_table(
            self.path,
            format=self.format,
            header=self.header if self.format in ("csv", "tsv") else None,
            delimiter=self.delimiter if self.format == "csv" else None,
            keep_errors=keep_errors,
        )


def input_files(
    paths: Sequence[Path], columns: Sequence[str] = (), delimiter: str | None = None
) -> list[InputFile]:
    """The files of the input, with their checksums and the numbers of their rows.

    columns: those of texts; numbers are those of a table without a header.

    Raises:
        ConfigError: the files have different formats, one is named twice, or a delimiter or columns
            are given for files without.
        DataError: a file cannot be read to its end, its first line is no header, or it lacks a
            column.
    """
    if not paths or len({os.path.realpath(path) for path in paths}) < len(paths):
        raise ConfigError("The input must be at least one file, and must not name one twice.")
    formats = {str(path): ENDINGS.get(ending(path), "lines") for path in paths}
    if len({*formats.values()}) > 1:
        named = ", ".join(f"{name} ({format})" for name, format in formats.items())
        raise ConfigError(f"The files of the input must have one format, but are {named}.")
    (format,) = {*formats.values()}
    if delimiter is not None and format != "csv":
        raise ConfigError(f"A delimiter is for CSV, but {paths[0]} is read as {format}.")
    if columns and format == "lines":
        raise ConfigError(f"{paths[0]} has lines and no columns, but {columns} are named.")
    header = not (columns and all(map(str.isdecimal, columns)))
    files = [
        InputFile(name, format, hash_of(name), 0, delimiter or ",", header) for name in formats
    ]
    for file in files:
        names = names_of_columns(file)
        missing = [c for c in columns if names and not {c, c.partition(".")[0]} & {*names}]
        if missing:
            hint = f"It has: {', '.join(names)}."
            raise DataError(file.path, None, f"has no field {missing[0]!r}.", hint)
    return [replace(file, rows=sum(1 for _ in file.table().read())) for file in files]


def names_of_columns(file: InputFile) -> list[str]:
    """The columns of a table that has a row; none for other formats, whose rows may differ."""
    if file.format in ("lines", "jsonl"):
        return []
    records = (row for _, row in file.table().read() if not isinstance(row, DataError))
    return list(next(records, ()))


@dataclass(frozen=True)
class FilePart:
    """Consecutive rows of a file, from `start`, counted from 0."""

    number: int
    file: InputFile
    start: int
    rows: int


@dataclass(frozen=True)
class ShardManifest:
    """The content of manifest.json."""

    version: int
    task: ShardedTask
    model_sha256: str
    versions: dict[str, str]
    files: list[InputFile]

    @property
    def rows(self) -> int:
        """The number of rows of all files."""
        return sum(file.rows for file in self.files)

    def parts(self) -> list[FilePart]:
        """All parts, in the order of the input."""
        size, parts = self.task.rows_per_part, list[FilePart]()
        for file in self.files:
            for start in range(0, file.rows, size):
                parts.append(FilePart(len(parts), file, start, min(size, file.rows - start)))
        return parts

    @property
    def count(self) -> int:
        """The number of all parts."""
        return sum(math.ceil(file.rows / self.task.rows_per_part) for file in self.files)

    def part_file(self, out: Path, number: int) -> Path:
        """The file with the results of a part."""
        return out / PARTS / f"part-{number:05}.{self.task.format}"

    def missing(self, out: Path) -> list[FilePart]:
        """The parts that have no file yet."""
        done = names_in(out / PARTS)
        return [part for part in self.parts() if self.part_file(out, part.number).name not in done]


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
        manifest: ShardManifest = read_json(out / MANIFEST, ShardManifest)
    except FileNotFoundError:
        raise CheckpointError(
            f"{out} is not an output folder of `--workers` or `regard.predict_files`: it has no "
            f"{MANIFEST}."
        ) from None
    return manifest


def begin(out: Path, task: ShardedTask, paths: Sequence[Path]) -> ShardManifest:
    """Begin an output folder, or continue it; its manifest.

    Raises:
        ConfigError: the folder was begun with another input, model, option or version, or holds
            something else.
        DataError: the input cannot be read.
        CheckpointError: there is no such model, or the folder cannot be written.
    """
    parts = names_in(out / PARTS)  # before the manifest: another process may just have begun
    if out.exists() and not (out / MANIFEST).exists():
        names = {n for n in names_in(out) if n[0] != "."} - {PARTS} if out.is_dir() else {out.name}
        if parts or names:
            raise ConfigError(f"{out} was not written by this command. Choose another (--out).")
    files = input_files([path.absolute() for path in paths], task.columns, task.delimiter)
    versions = {"regard": regard.__version__} | {name: _version(name) for name in PACKAGES}
    now = ShardManifest(VERSION, task, model_checksum(task.model), versions, files)
    text = json.dumps(asdict(now)) + "\n"
    temporary = out / f".{MANIFEST}.{uuid4().hex}"
    try:
        (out / PARTS).mkdir(parents=True, exist_ok=True)
        write_text(temporary, text)
        rename_new(temporary, out / MANIFEST)
        return now
    except FileExistsError:  # it is continued, or another process has begun it at the same time
        pass
    except OSError as error:
        raise not_written(out, error) from error
    finally:
        temporary.unlink(missing_ok=True)
    before = read_manifest(out)
    changes = [
        f"`{name}` was {_shown(old)}, and is {_shown(new)} now"
        for name, old, new in differences(_settings(before), _settings(now))
    ]
    if changes:
        raise ConfigError(
            f"{out} was begun with other settings:\n  "
            + "\n  ".join(changes)
            + "\nUse the settings from before, remove the folder, or choose another one."
        )
    if now != before:  # the paths of files and model
        write_text(out / MANIFEST, text)
    return now


def _shown(value: object) -> str:
    return "not given" if value is None else repr(value)


def _settings(manifest: ShardManifest) -> dict[str, Any]:
    """What must not change, as it is after JSON, where tuples are lists: not the paths."""
    task = asdict(replace(manifest.task, model=f"sha256 {manifest.model_sha256[:12]}"))
    options = task.pop("options") or {}
    files = {
        f"content of file {number}": f"sha256 {file.sha256[:12]}"
        for number, file in enumerate(manifest.files, 1)
    }
    versions = {f"version of {name}": version for name, version in manifest.versions.items()}
    settings: dict[str, Any] = json.loads(json.dumps({**task, **options, **files, **versions}))
    return settings


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


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"
