"""Starts workers on an executor, shows their progress, and completes the output folder."""

import time
import uuid
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, cast

from regard.errors import ConfigError, RegardError, check_at_least, check_choice
from regard.executors import ExecutorOptions, Job, Json, make_executor, results_of
from regard.file_writing import replacing, sync
from regard.progress import Bar, Lines, Silent, clock, reporter
from regard.sharded.manifest import (
    ALL_FAILED,
    FAILED,
    PARTS,
    ROWS_PER_PART,
    ShardedTask,
    ShardManifest,
    begin,
    names_in,
)
from regard.sharded.parts import FileResults, ShardedSummary, format_of, iter_results
from regard.training.interrupt import Interrupted

FUNCTION = "regard.sharded.worker:run"
LEAST_INTERVAL = 1.0  # seconds between two looks at the files of all parts
METHODS = ("embed", "predict", "translate", "generate", "tag")


def predict_files(
    model: str | PathLike[str],
    files: str | PathLike[str] | Sequence[str | PathLike[str]],
    method: str = "predict",
    *,
    out: str | PathLike[str],
    workers: int = 1,
    executor: str | ExecutorOptions = "local",
    columns: str | Sequence[str] = (),
    delimiter: str | None = None,
    format: str | None = None,
    too_long: str = "error",
    quantize: str | None = None,
    device: str | None = None,
    task: str | None = None,
    model_type: str | None = None,
    threads: int = 1,
    gpus: int = 0,
    rows_per_part: int = ROWS_PER_PART,
    shard: tuple[int, int] = (1, 1),
    strict: bool = False,
    progress: bool | None = None,
    **options: Any,
) -> FileResults | ShardedSummary:
    """Compute the results of a model for each row, and write them into the parts of a folder.

    After an interruption, the same call continues. The bytes of the parts do not depend on the
    number of workers. With `shard` the result is a summary until all parts are there.

    Args:
        model: a folder, or a name on the hub; every worker opens it.
        files: a file or several, compressed or not (lines, JSONL, CSV, TSV, Parquet).
        method: "predict", "embed", "translate", "generate" or "tag".
        out: the folder. A second call with the same arguments computes the parts that are missing.
        workers: the number of processes.
        executor: where they run: "local", "slurm", "ray", or one with its options.
        columns: the columns of the data that hold the texts; (): chosen by their names.
        delimiter: between the fields of CSV; None: a comma.
        format: of the parts: "safetensors" or "parquet" for vectors; "jsonl", "parquet" or "txt"
            for predictions. None: the first of these.
        quantize, device, task, model_type: as of `regard.load`.
        threads: the number of threads of each worker; the last digits of results depend on it.
        gpus: the number of GPUs of each worker.
        rows_per_part: the number of rows in each part.
        shard: (i, n) from (1, n) to (n, n), where n calls each compute a share of the parts.
        strict: whether a row without a result is an error.
        options: keyword arguments of the method: `layers`, `beams`, ...

    Raises:
        ConfigError: there is no such method or format, or `out` was begun with something else.
        DataError: the data cannot be read.
        CheckpointError: there is no such model, or a part cannot be written.
        Interrupted: after Ctrl-C; the same call continues.
    """
    check_choice("method", method, METHODS)
    check_at_least(1, workers=workers, threads=threads, rows_per_part=rows_per_part)
    check_at_least(0, gpus=gpus)
    if not 1 <= shard[0] <= shard[1]:
        raise ConfigError(f"`shard` must be I/N, I <= N, not {'/'.join(map(str, shard))}.")
    source = str(Path(model).absolute() if Path(model).exists() else model)
    work = ShardedTask(
        source, method, format_of(method, format),
        (columns,) if isinstance(columns, str) else tuple(columns), too_long, quantize, device,
        threads, options or None, task, model_type, rows_per_part, delimiter,
    )  # fmt: skip
    paths = [files] if isinstance(files, str | PathLike) else files
    job = Job(FUNCTION, {"strict": strict}, cpus=threads, gpus=gpus)
    summary = _compute(work, paths, Path(out).absolute(), executor, workers, job, shard, progress)
    return summary if summary.missing else iter_results(out, summary)


def _compute(
    task: ShardedTask,
    paths: Sequence[str | PathLike[str]],
    out: Path,
    where: str | ExecutorOptions,
    workers: int,
    job: Job,
    shard: tuple[int, int],
    progress: bool | None,
) -> ShardedSummary:
    """Write the parts of an output folder that are missing.

    where: the workers run.  job: of each of them, without its share of the parts.
    """
    counts = Counter[str]()
    with closing(reporter(progress)) as shown:
        log = shown.warn if isinstance(shown, Silent) else shown.say
        executor = make_executor(where, workers, lambda name, line: log(f"{name}: {line}"))
        manifest = begin(out, task, [Path(path) for path in paths])
        index, count = shard[0] - 1, shard[1]
        parts = [part for part in manifest.missing(out) if part.number % count == index]
        workers = min(workers, len(parts))
        jobs = []
        for number in range(workers):
            share: list[Json] = [index + count * number, count * workers]
            arguments = {**job.arguments, "out": str(out), "share": share}
            jobs.append(replace(job, arguments=arguments, name=f"worker {number}"))
        shows = _Display(out, manifest, shown)
        try:
            with closing(results_of(executor, jobs, shows.update)) as results:
                for _, future in results:
                    counts.update(cast("dict[str, int]", future.result()))
        except Interrupted as stopped:
            done = manifest.count - len(manifest.missing(out))
            message = f"stopped; {done:,} of {manifest.count:,} parts are done in {out}. The "
            message += "same command continues, and begins unfinished parts again."
            raise Interrupted(message, stopped.code) from None
        shows.update(now=True)
    missing = len(manifest.missing(out))
    if missing and count == 1:
        raise RegardError(f"{missing:,} parts in {out} are not done. Run the command again.")
    failed = 0 if missing else _complete(out)
    cut = counts["truncated"], counts["unfinished"]
    return ShardedSummary(out, manifest.count, missing, manifest.rows, failed, *cut)


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

    def update(self, now: bool = False) -> None:
        """Show the progress, unless that was done a moment ago."""
        if now or time.monotonic() - self.shown_at >= max(self.shown.every, LEAST_INTERVAL):
            self.shown_at, self.done = time.monotonic(), self._done()
            self.shown.show(self)


def _complete(out: Path) -> int:
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
