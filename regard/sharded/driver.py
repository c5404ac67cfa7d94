"""Starts workers on an executor, shows their progress, and completes the output folder."""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

from regard.data.files import split_member
from regard.errors import DataError, RegardError, check_at_least
from regard.executors import Job, Json, make_executor
from regard.executors.protocol import Executor, ExecutorOptions
from regard.file_writing import replacing, sync
from regard.progress import Bar, Lines, Silent, clock, reporter
from regard.sharded.leases import LEASE_TIMEOUT
from regard.sharded.manifest import (
    ALL_FAILED,
    FAILED,
    LEASES,
    PARTS,
    ShardedTask,
    ShardManifest,
    begin,
    names_in,
)
from regard.training.interrupt import Interrupted

FUNCTION = "regard.sharded.worker:run"


@dataclass(frozen=True)
class WorkerOptions:
    """How many workers there are, where they run, and when they give up.

    workers: the number of processes.
    executor: where they run, see `regard.executors.make_executor`.
    gpus: the number of GPUs of each worker.
    strict: whether the first row without a result raises an error, which stops all workers.
    lease_timeout: seconds without a heartbeat after which a worker counts as dead, and another one
        computes its shard.
    """

    workers: int = 1
    executor: str | ExecutorOptions = "local"
    gpus: int = 0
    strict: bool = False
    lease_timeout: float = LEASE_TIMEOUT

    def make_executor(self) -> Executor:
        """What runs the workers.

        Raises:
            Errors of `regard.executors.make_executor`.
        """
        return make_executor(self.executor, self.workers)


@dataclass(frozen=True)
class ShardedSummary:
    """The numbers of shards and rows in a complete output folder.

    out: the folder.  failed: the number of rows without a result.
    """

    out: Path
    shards: int
    rows: int
    failed: int

    def __str__(self) -> str:
        parts = "1 part" if self.shards == 1 else f"{self.shards:,} parts"
        text = f"{self.out}: {self.rows:,} rows in {parts}"
        if self.failed:
            text += f"; {self.failed:,} rows have no result: see {self.out / ALL_FAILED}"
        return text


def compute_files(
    task: ShardedTask,
    paths: Sequence[str | PathLike[str]],
    out: str | PathLike[str],
    workers: WorkerOptions = WorkerOptions(),
    *,
    shard_bytes: int | None = None,
    progress: bool | None = None,
) -> ShardedSummary:
    """Compute the rows of the files and write the parts of an output folder that are missing.

    Raises:
        ConfigError: the folder was begun with another input, model, option or version.
        DataError: the input cannot be read, or only its beginning can: the rows before the damage
            are computed; with `strict`, a row has no result.
        RegardError: a worker has failed.
        Interrupted: after Ctrl-C; the same call continues.
        Errors of `regard.executors.make_executor`, before anything is written.
    """
    runs_on = workers.make_executor()
    check_at_least(1, threads=task.threads, shard_bytes=shard_bytes)
    check_at_least(0, gpus=workers.gpus)
    out = Path(out).absolute()
    manifest = begin(out, task, [Path(path) for path in paths], shard_bytes)
    if workers.strict:
        _check_damage(manifest)
    try:
        _run(out, manifest, workers, runs_on, progress)
    except Interrupted as stopped:
        done = len(manifest.shards) - len(manifest.pending(out))
        message = f"stopped; {done:,} of {len(manifest.shards):,} shards are done in {out}. The "
        message += "same command continues, and begins unfinished shards again."
        raise Interrupted(message, stopped.code) from None
    failed = _complete(out, manifest)
    _check_damage(manifest)
    return ShardedSummary(out, len(manifest.shards), manifest.rows, failed)


def _check_damage(manifest: ShardManifest) -> None:
    for file in manifest.files:
        if file.damage:
            hint = "The rows before the damage are computed, unless --strict is given. Repair the "
            hint += "file and choose another folder for the output."
            raise DataError(file.path, None, file.damage, hint)


def _run(
    out: Path,
    manifest: ShardManifest,
    workers: WorkerOptions,
    runs_on: Executor,
    progress: bool | None,
) -> None:
    pending = manifest.pending(out)
    if not pending:
        return
    arguments: dict[str, Json] = {
        "out": str(out),
        "strict": workers.strict,
        "lease_timeout": workers.lease_timeout,
        "modified": [os.stat(split_member(f.path)[0]).st_mtime_ns for f in manifest.files],
    }
    names = [f"worker {number}" for number in range(min(workers.workers, len(pending)))]
    threads = manifest.task.threads
    jobs = [Job(FUNCTION, arguments, name, threads, workers.gpus) for name in names]
    with closing(_Display(manifest, pending, reporter(progress))) as display:
        with closing(runs_on.run(jobs, display)) as results:
            for result in results:
                result.checked()
                if not manifest.pending(out):  # the others may still wait in a cluster's queue
                    break
    if left := manifest.pending(out):
        raise RegardError(f"{len(left):,} shards in {out} are not done. Run the command again.")


@dataclass
class _Progress:
    """What the progress line shows.

    rows: of all shards.  before: rows of shards that were done before this start.  since: the start
    by `time.monotonic`.  done, failed: rows of each shard since then, by its number.
    """

    rows: int
    before: int
    since: float = field(default_factory=time.monotonic)
    done: dict[int, int] = field(default_factory=dict)
    failed: dict[int, int] = field(default_factory=dict)

    @property
    def fraction(self) -> float:
        return (self.before + sum(self.done.values())) / max(1, self.rows)

    def __str__(self) -> str:
        now = sum(self.done.values())
        rate = now / max(1e-9, time.monotonic() - self.since)
        left = (self.rows - self.before - now) / rate if rate else float("inf")
        failed = sum(self.failed.values())
        return (
            f"{self.before + now:,} of {self.rows:,} rows · {rate:,.0f} rows/s · "
            f"{clock(left)} left" + (f" · {failed:,} failed" if failed else "")
        )


class _Display:
    """Shows the progress of all workers together: a `JobListener`."""

    def __init__(self, manifest: ShardManifest, pending: Sequence[int], shown: Bar | Lines):
        self.manifest, self.shown = manifest, shown
        missing = sum(manifest.shards[number].rows for number in pending)
        self.progress = _Progress(manifest.rows, manifest.rows - missing)
        self.pending = set(pending)
        self._shown = 0.0

    def message(self, job: Job, message: Json) -> None:
        assert isinstance(message, Mapping)
        number = int(str(message["shard"]))
        if number not in self.pending:
            return
        rows = self.manifest.shards[number].rows if message["done"] else int(str(message["rows"]))
        self.progress.done[number] = max(rows, self.progress.done.get(number, 0))
        self.progress.failed[number] = int(str(message["failed"]))
        if time.monotonic() - self._shown >= self.shown.every:
            self._shown = time.monotonic()
            self.shown.show(self.progress)

    def log(self, job: Job, line: str) -> None:
        if isinstance(self.shown, Silent):
            self.shown.warn(f"{job.name}: {line}")
        else:
            self.shown.say(f"{job.name}: {line}")

    def close(self) -> None:
        self.shown.show(self.progress)
        self.shown.close()


def _complete(out: Path, manifest: ShardManifest) -> int:
    """Write failed.jsonl and remove the temporary files of workers; returns the number of rows that
    failed."""
    files = [manifest.failed_file(out, number) for number in range(len(manifest.shards))]
    there = names_in(out / FAILED)
    failed = 0
    with replacing(out / ALL_FAILED, uuid.uuid4().hex) as temporary:
        with temporary.open("wb") as joined:
            for file in files:
                if file.name in there:
                    content = file.read_bytes()
                    failed += content.count(b"\n")
                    joined.write(content)
        sync(temporary)
    for folder in (out / PARTS, out / FAILED):
        for left in folder.glob(".*.writing"):
            left.unlink(missing_ok=True)
    shutil.rmtree(out / LEASES, ignore_errors=True)
    return failed
