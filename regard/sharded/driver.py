"""Starts workers on an executor, shows their progress, and completes the output folder."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from regard.errors import ConfigError, RegardError, check_at_least
from regard.executors import Job, make_executor, results_of
from regard.executors.protocol import ExecutorOptions
from regard.file_writing import replacing, sync
from regard.progress import Bar, Lines, Silent, clock, reporter
from regard.sharded.manifest import (
    ALL_FAILED,
    FAILED,
    PARTS,
    ShardedTask,
    ShardManifest,
    begin,
    names_in,
)
from regard.training.interrupt import Interrupted

FUNCTION = "regard.sharded.worker:run"
LEAST_INTERVAL = 1.0  # seconds between two looks at the files of all parts


@dataclass(frozen=True)
class WorkerOptions:
    """How many workers there are, where they run, and what they compute.

    workers: the number of processes.
    executor: where they run, see `regard.executors.make_executor`.
    gpus: the number of GPUs of each worker.
    strict: whether the first row without a result raises an error, which stops all workers.
    share: (i, n) from (1, n) to (n, n): the share of this command of the parts, where n commands
        compute them, such as the jobs of an array.
    """

    workers: int = 1
    executor: str | ExecutorOptions = "local"
    gpus: int = 0
    strict: bool = False
    share: tuple[int, int] = (1, 1)

    def __post_init__(self) -> None:
        check_at_least(1, workers=self.workers)
        check_at_least(0, gpus=self.gpus)
        if not 1 <= self.share[0] <= self.share[1]:
            raise ConfigError(
                f"`shard` must be 1/N to N/N, but is {'/'.join(map(str, self.share))}."
            )


@dataclass(frozen=True)
class ShardedSummary:
    """The numbers of parts and rows in an output folder.

    out: the folder.  missing: parts that other commands compute.  failed: the number of rows
    without a result.
    """

    out: Path
    parts: int
    missing: int
    rows: int
    failed: int

    def __str__(self) -> str:
        if self.missing:
            return f"{self.out}: {self.parts - self.missing:,} of {self.parts:,} parts are done"
        parts = "1 part" if self.parts == 1 else f"{self.parts:,} parts"
        text = f"{self.out}: {self.rows:,} rows in {parts}"
        if self.failed:
            text += f"; {self.failed:,} rows have no result: see {self.out / ALL_FAILED}"
        return text


def compute_files(
    task: ShardedTask,
    paths: Sequence[str | PathLike[str]],
    out: str | PathLike[str],
    options: WorkerOptions = WorkerOptions(),
    *,
    progress: bool | None = None,
) -> ShardedSummary:
    """Compute the rows of the files and write the parts of an output folder that are missing.

    Raises:
        ConfigError: the folder was begun with another input, model, option or version.
        DataError: the input cannot be read; with `strict`, a row has no result.
        RegardError: a worker has failed.
        Interrupted: after Ctrl-C; the same call continues.
        Errors of `regard.executors.make_executor`, before anything is written.
    """
    check_at_least(1, threads=task.threads, rows_per_part=task.rows_per_part)
    out = Path(out).absolute()
    with closing(reporter(progress)) as shown:
        log = shown.warn if isinstance(shown, Silent) else shown.say
        executor = make_executor(
            options.executor, options.workers, lambda name, line: log(f"{name}: {line}")
        )
        manifest = begin(out, task, [Path(path) for path in paths])
        index, count = options.share[0] - 1, options.share[1]
        own = [part for part in manifest.missing(out) if part.number % count == index]
        workers = min(options.workers, len(own))
        jobs = [
            Job(
                FUNCTION,
                {
                    "out": str(out),
                    "strict": options.strict,
                    "share": [index + count * number, count * workers],
                },
                f"worker {number}",
                task.threads,
                options.gpus,
            )
            for number in range(workers)
        ]
        shows = _Display(out, manifest, shown)
        try:
            with closing(results_of(executor, jobs, shows.update)) as results:
                for _, future in results:
                    future.result()
        except Interrupted as stopped:
            done = manifest.count - len(manifest.missing(out))
            message = f"stopped; {done:,} of {manifest.count:,} parts are done in {out}. The "
            message += "same command continues, and begins unfinished parts again."
            raise Interrupted(message, stopped.code) from None
        shows.end()
    missing = len(manifest.missing(out))
    if missing and count == 1:
        raise RegardError(f"{missing:,} parts in {out} are not done. Run the command again.")
    failed = 0 if missing else _complete(out, manifest)
    return ShardedSummary(out, manifest.count, missing, manifest.rows, failed)


class _Display:
    """The progress line, from the files in the folder; see `regard.progress.Stage`."""

    def __init__(self, out: Path, manifest: ShardManifest, shown: Bar | Lines):
        self.out, self.manifest, self.shown = out, manifest, shown
        self.begun, self.shown_at = time.monotonic(), 0.0
        self.before = self.done = self._done()

    def _done(self) -> int:
        missing = sum(part.rows for part in self.manifest.missing(self.out))
        return self.manifest.rows - missing

    @property
    def fraction(self) -> float:
        return self.done / max(1, self.manifest.rows)

    def __str__(self) -> str:
        rate = (self.done - self.before) / max(1e-9, time.monotonic() - self.begun)
        left = (self.manifest.rows - self.done) / rate if rate else float("inf")
        return (
            f"{self.done:,} of {self.manifest.rows:,} rows · {rate:,.0f} rows/s · "
            f"{clock(left)} left"
        )

    def update(self) -> None:
        """Show the progress, unless that was done a moment ago."""
        if time.monotonic() - self.shown_at >= max(self.shown.every, LEAST_INTERVAL):
            self.end()

    def end(self) -> None:
        """Show the progress."""
        self.shown_at, self.done = time.monotonic(), self._done()
        self.shown.show(self)


def _complete(out: Path, manifest: ShardManifest) -> int:
    """Write failed.jsonl and remove the temporary files of workers that died; returns the number of
    rows that failed."""
    failed = 0
    with replacing(out / ALL_FAILED, uuid.uuid4().hex) as temporary:
        with temporary.open("wb") as joined:
            for name in sorted(names_in(out / FAILED), key=lambda name: (len(name), name)):
                if not name.startswith("."):
                    content = (out / FAILED / name).read_bytes()
                    failed += content.count(b"\n")
                    joined.write(content)
        sync(temporary)
    for folder in (out / PARTS, out / FAILED):
        for left in folder.glob(".*.writing"):
            left.unlink(missing_ok=True)
    return failed
