"""A worker: reserves shards by leases, computes them and writes their parts.

The model, input and options are in the manifest of the output folder. Any number of workers,
started by any number of processes on any machines that see the folder, divide the shards among
them. If two compute the same shard, which a slow disk can cause, they write the same bytes: a part
is written under a temporary name and renamed when it is complete.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from regard.data.files import split_member
from regard.data.text_chunks import is_blank
from regard.errors import CheckpointError, ConfigError, DataError
from regard.executors import send
from regard.file_writing import not_written, sync
from regard.malloc import keep_freed_blocks
from regard.plain_json import to_json
from regard.sharded.computing import RowComputer, VectorComputer, open_computer, reason_of
from regard.sharded.leases import Lease, Leases
from regard.sharded.manifest import (
    FAILED,
    LEASES,
    ShardManifest,
    changed_versions,
    model_checksum,
    read_manifest,
    versions_for,
)
from regard.sharded.parts import (
    BLANK,
    VECTOR,
    LinePart,
    ParquetPart,
    ShardPart,
    VectorPart,
    check_new_columns,
    json_line,
    parquet_schema,
    text_line,
    write_bytes,
)
from regard.sharded.rows import CHUNK_ROWS, InputRow, OpenFiles, RowChunk, chunks, texts_of
from regard.sharded.shards import InputFile, Shard
from regard.tasks.predicted_tables import infer_columns
from regard.training.interrupt import Interrupted, Interruption, Stopped

POLL_INTERVAL = 0.5  # seconds between two checks of the shards that other workers compute
MESSAGE_INTERVAL = 0.5  # seconds between two messages about rows


def run(out: str, *, strict: bool, lease_timeout: float, modified: Sequence[int]) -> None:
    """Compute shards until all are done: the function of a job.

    out: the output folder.
    strict: whether a row without a result raises its error.
    lease_timeout: seconds without a change after which the owner of a lease counts as dead.
    modified: when each file of the input was last modified, in nanoseconds (`st_mtime_ns`).

    Raises:
        DataError: with `strict`, a row has no result; or a file has changed meanwhile.
        CheckpointError: the model is another one here, or a part cannot be written.
        Interrupted: after SIGTERM; other workers can compute the unfinished shard.
    """
    folder = Path(out)
    manifest = read_manifest(folder)
    _check_files(zip(manifest.files, modified, strict=True))
    with Interruption() as interruption:
        try:
            with interruption.interruptible():
                worker = _Worker(folder, manifest, strict, modified)
                leases = Leases(folder / LEASES, lease_timeout)
                with leases.renewing(), closing(worker.files):
                    _work(worker, leases)
        except Stopped:
            raise Interrupted("stopped", interruption.code) from None


def _work(worker: _Worker, leases: Leases) -> None:
    """Compute the missing shards; then wait for other workers, and compute theirs if they die."""
    pending = worker.manifest.pending(worker.out)
    while pending:
        left = []
        for number in pending:
            if worker.is_done(number):
                worker.report(number, done=True)
            elif (lease := leases.take(f"{number:05}")) is None:
                left.append(number)
            else:
                try:
                    worker.compute_shard(number, lease)
                finally:
                    leases.release(lease)
                if not worker.is_done(number):  # the lease was lost
                    left.append(number)
        if len(left) == len(pending):
            time.sleep(POLL_INTERVAL)
        pending = [number for number in left if not worker.is_done(number)]
        for number in set(left) - set(pending):
            worker.report(number, done=True)


def _check_files(files: Iterable[tuple[InputFile, int]]) -> None:
    """Raises DataError where a file is not as it was, or not last modified at that time."""
    for file, nanoseconds in files:
        try:
            status = os.stat(split_member(file.path)[0])
        except OSError as error:
            raise DataError(file.path, None, f"cannot be read here: {error.strerror}.") from None
        if (status.st_size, status.st_mtime_ns) != (file.bytes, nanoseconds):
            problem = "has changed since the work began."
            raise DataError(file.path, None, problem, "Choose another folder for the output.")


@dataclass
class _Results:
    """The results of a shard: its part, and the lines for failed.jsonl."""

    part: ShardPart
    failed: list[str] = field(default_factory=list)


class _Worker:
    """The open model and the open files, and how the parts are written."""

    def __init__(self, out: Path, manifest: ShardManifest, strict: bool, modified: Sequence[int]):
        task = manifest.task
        torch.set_num_threads(task.threads)
        if (checksum := model_checksum(task.model)) != manifest.model_sha256:
            raise CheckpointError(
                f"{task.model} is another model here: its sha256 must be "
                f"{manifest.model_sha256[:12]}…, but is {checksum[:12]}…."
            )
        if wrong := list(changed_versions(manifest.versions, versions_for(task))):
            raise CheckpointError(
                f"this machine has other versions than {out} was begun with:\n  "
                + "\n  ".join(wrong)
                + "\nInstall the same versions on all machines."
            )
        self.out, self.manifest, self.strict, self.modified = out, manifest, strict, modified
        self.files = OpenFiles(manifest.files)
        self.computer = open_computer(task)
        keep_freed_blocks()
        first = self._first_rows()
        self.columns = self._columns(first)
        self.added = self._added_columns(first)
        self.new_part = self._part_maker(first)
        self._reported = 0.0

    def is_done(self, number: int) -> bool:
        return self.manifest.part_file(self.out, number).exists()

    def compute_shard(self, number: int, lease: Lease) -> None:
        """Compute a shard and write its part, unless the lease is lost meanwhile."""
        if self.is_done(number):  # by another worker, before this one took the lease
            return self.report(number, done=True)
        shard, results, rows = self.manifest.shards[number], _Results(self.new_part()), 0
        for chunk in chunks(self.files.rows(shard)):
            if lease.lost:
                return None
            self._compute_rows(shard, chunk, results)
            rows += len(chunk)
            self.report(number, rows, len(results.failed))
        _check_files([(self.manifest.files[shard.file], self.modified[shard.file])])
        if rows != shard.rows:
            problem = f"has {rows:,} rows in shard {number}, and had {shard.rows:,}."
            raise DataError(self.manifest.files[shard.file].path, shard.line, problem)
        if not lease.lost:
            self._write(number, results, lease)
            self.report(number, rows, len(results.failed), done=True)

    def _compute_rows(self, shard: Shard, rows: Sequence[InputRow], results: _Results) -> None:
        """Compute some rows of a shard and add them to its results."""
        path = self.manifest.files[shard.file].path
        computed, errors = self.computer.compute_rows(rows, self.columns, path)
        rows = [*rows]
        for index, row in enumerate(rows):  # of JSONL each row has fields of its own
            try:
                check_new_columns([row.record], self.added, path, row.line)
            except DataError as error:
                computed[index], errors[index] = None, error
                own = {name: one for name, one in row.record.items() if name not in self.added}
                rows[index] = replace(row, record=own)
        errors = results.part.add(rows, computed, path) | errors
        for index in sorted(errors):
            if self.strict:
                raise errors[index]
            results.failed.append(_failure(path, rows[index].line, errors[index]))

    def _write(self, number: int, results: _Results, lease: Lease) -> None:
        """Write the part of a shard, and before it the lines of rows without a result.

        In this order, since a shard whose part exists counts as done.
        """
        try:
            if results.failed:
                (self.out / FAILED).mkdir(exist_ok=True)
                content = "".join(results.failed).encode("utf-8", "backslashreplace")
                write = partial(write_bytes, content=content)
                _replace(self.manifest.failed_file(self.out, number), write, lease)
            _replace(self.manifest.part_file(self.out, number), results.part.save, lease)
        except OSError as error:
            raise not_written(self.manifest.part_file(self.out, number), error) from error

    def report(self, number: int, rows: int = 0, failed: int = 0, done: bool = False) -> None:
        """Send the numbers of rows computed and failed, at most every `MESSAGE_INTERVAL` seconds
        unless the shard is done."""
        if not done and time.monotonic() - self._reported < MESSAGE_INTERVAL:
            return
        self._reported = time.monotonic()
        send({"shard": number, "rows": rows, "failed": failed, "done": done})

    # ------------------------------------------------------------ what all parts have in common

    def _first_rows(self) -> list[InputRow]:
        """The first rows of the input that can be read."""
        for shard in self.manifest.shards:
            with closing(self._readable_rows(shard)) as rows:
                if found := list(islice(rows, CHUNK_ROWS)):
                    return found
        return []

    def _readable_rows(self, shard: Shard) -> Generator[InputRow, None, None]:
        return (row for row in self.files.rows(shard) if row.error is None)

    def _columns(self, first: Sequence[InputRow]) -> tuple[str, ...]:
        """The columns of texts; () where the input is lines."""
        file, columns = self.manifest.files[0], self.manifest.task.columns
        if file.format == "lines":
            if columns:
                raise ConfigError(f"{file.path} has lines and no columns, but {columns} are named.")
            return ()
        if not first:
            return columns or ("text",)
        columns = columns or infer_columns(Path(file.path), first[0].record)
        if file.format != "jsonl":  # all rows have the same columns
            texts_of(first[0], columns, file.path)
        return columns

    def _added_columns(self, first: Sequence[InputRow]) -> dict[str, Any]:
        """The columns of results that stand beside those of the input; {} where none do."""
        task, file = self.manifest.task, self.manifest.files[0]
        of_lines = task.format == "jsonl" and file.format == "lines"  # a line has no other columns
        if of_lines or task.format in ("safetensors", "txt"):
            return {}
        added = added_columns(self.computer, first, self.columns)
        check_new_columns([row.record for row in first], added, file.path)
        return added

    def _part_maker(self, first: Sequence[InputRow]) -> Callable[[], ShardPart]:
        """A function that makes an empty part."""
        task = self.manifest.task
        if isinstance(self.computer, VectorComputer) and task.format == "safetensors":
            return partial(VectorPart, self.computer.embedder.width)
        if task.format in ("txt", "jsonl"):
            return partial(LinePart, text_line if task.format == "txt" else json_line)
        records, path = [row.record for row in first], self.manifest.files[0].path
        return partial(ParquetPart, parquet_schema(records, self.added, path))


def added_columns(
    computer: RowComputer[Any], first: Sequence[InputRow], columns: Sequence[str]
) -> dict[str, Any]:
    """The columns of results, with a value or an Arrow type of each.

    Those of predictions are the columns of the results of a few of the first rows.
    """
    if isinstance(computer, VectorComputer):
        import pyarrow

        return {VECTOR: pyarrow.list_(pyarrow.float32(), computer.embedder.width)}
    texts: list[str | tuple[str, ...]] = []
    for row in first:
        with suppress(DataError):
            texts.append(texts_of(row, columns, "the input"))
    filled = [text for text in texts if not is_blank(text)][:8]
    filled.append(("a",) * len(columns) if columns else "a")  # where none of them has a result
    results, _ = computer.compute_each(RowChunk(0, filled, "the input", [0] * len(filled)))
    return max((one for one in results if one), key=len, default=BLANK)


def _failure(path: str, line: int, error: DataError) -> str:
    return to_json({"file": path, "line": line, "reason": reason_of(error)}) + "\n"


def _replace(path: Path, write: Callable[[Path], None], lease: Lease) -> None:
    """Write a file under a temporary name of the lease's owner, and rename it."""
    temporary = path.with_name(f".{path.name}.{lease.owner}.writing")
    try:
        write(temporary)
        try:
            os.replace(temporary, path)
        except FileNotFoundError:  # another worker was faster, and all has been completed
            if not path.exists():
                raise
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)
