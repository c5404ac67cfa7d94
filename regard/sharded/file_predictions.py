"""`regard.predict_files`: the results of a model for files or data in memory, by workers."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from regard.data.files import ENDINGS, ending, hash_of, is_file_name
from regard.data.in_memory import is_path, rows, write_jsonl
from regard.errors import ConfigError
from regard.executors.protocol import ExecutorOptions
from regard.sharded.driver import WorkerOptions, compute_files
from regard.sharded.manifest import INPUT, ROWS_PER_PART, ShardedTask, check_output_folder
from regard.sharded.parts import format_of
from regard.sharded.ray_datasets import is_ray_dataset, map_ray_dataset
from regard.sharded.reading import FileResults, iter_results
from regard.sharded.rows import TEXT

METHODS = ("embed", "predict", "translate", "generate", "tag")


def predict_files(
    model: str | PathLike[str],
    files: Any,
    method: str = "predict",
    *,
    out: str | PathLike[str] | None = None,
    workers: int = 1,
    executor: str | ExecutorOptions = "local",
    columns: str | Sequence[str] = (),
    format: str | None = None,
    too_long: str = "error",
    quantize: str | None = None,
    device: str | None = None,
    threads: int = 1,
    gpus: int = 0,
    rows_per_part: int = ROWS_PER_PART,
    shard: tuple[int, int] = (1, 1),
    strict: bool = False,
    progress: bool | None = None,
    **options: Any,
) -> FileResults | Any:
    """Compute the results of a model for each row, and write them into the parts of a folder.

    After an interruption, the same call continues. The bytes of the parts do not depend on the
    number of workers. For a Ray Dataset nothing is written: the result is a Ray Dataset, the rows
    with the columns of the results. With `shard` it is a summary until all parts are there.

    Args:
        model: a folder, or a name on the hub; every worker opens it.
        files: a file or several, compressed or not (lines, JSONL, CSV, TSV, Parquet), or rows in
            memory: a list of texts, a DataFrame, a dataset; or a Ray Dataset. A list is of files if
            its first item is one, or if all end as names of such files do.
        method: "predict", "embed", "translate", "generate" or "tag".
        out: the folder. A second call with the same arguments computes the parts that are missing.
            None: for a Ray Dataset.
        workers: the number of processes.
        executor: where they run: "local", "slurm", "ray", or one with its options.
        columns: the columns of the data that hold the texts; (): chosen by their names.
        format: of the parts: "safetensors" or "parquet" for vectors; "jsonl", "parquet" or "txt"
            for predictions. None: the first of these.
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
    if method not in METHODS:
        raise ConfigError(f"`method` must be one of {', '.join(METHODS)}, but is {method!r}.")
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    source = str(Path(model).absolute() if Path(model).exists() else model)
    work = ShardedTask(
        source, method, format_of(method, format), names, too_long, quantize, device, threads,
        options or None, rows_per_part=rows_per_part,
    )  # fmt: skip
    with_workers = WorkerOptions(workers, executor, gpus, strict, shard)
    return _results(files, work, out, with_workers, progress)


def _results(
    files: Any,
    work: ShardedTask,
    out: str | PathLike[str] | None,
    options: WorkerOptions,
    progress: bool | None,
) -> FileResults | Any:
    """The results of the rows of files or data; see `predict_files`."""
    if is_ray_dataset(files):
        if out is not None:
            raise ConfigError("`out` has no effect: the results are a Ray Dataset, too.")
        return map_ray_dataset(files, work, options.workers, options.gpus, options.strict)
    if out is None:
        raise ConfigError("`out` is missing: name the folder for the results, out=FOLDER.")
    paths = _files(files, Path(out))
    summary = compute_files(work, paths, out, options, progress=progress)
    return summary if summary.missing else iter_results(out)


def _files(data: Any, out: Path) -> list[str | Path]:
    """The files of the data; those in memory are written into the output folder."""
    if is_path(data):
        return [data]
    if _are_files(data):
        return list(data)
    check_output_folder(out)
    out.mkdir(parents=True, exist_ok=True)
    path, new = out / INPUT, out / f".{INPUT}.{uuid.uuid4().hex}"
    try:
        write_jsonl(_records(data), new)
        if path.exists() and hash_of(new) != hash_of(path):
            raise ConfigError(
                f"{out} was begun with other data. Choose another folder for the output."
            )
        if not path.exists():
            os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)
    return [path]


def _are_files(data: Any) -> bool:
    """Whether data are names of files, and not texts: a name that does not exist is one, too, where
    all end as files of tables or lines do."""
    if not isinstance(data, Sequence) or not data or not all(is_path(one) for one in data):
        return False
    named = is_file_name(str(data[0])) or all(_ends_as_file(str(one)) for one in data)
    return named or not isinstance(data[0], str)


def _ends_as_file(text: str) -> bool:
    return not re.search(r"\s", text) and ending(text) in (*ENDINGS, ".txt")


def _records(data: Any) -> Iterable[Any]:
    for row in rows(data):
        yield {TEXT: row} if isinstance(row, str) else row
