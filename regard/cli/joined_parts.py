"""`regard predict --file TABLE --workers N`: parts that workers have written, joined to one table.

OUT.parts/          the parts, as of `--workers` without --file; removed when OUT is complete
OUT                 the table with its predictions
OUT.failed.jsonl    file, line and reason of each row without a prediction, where there are such
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from regard.cli.console import say
from regard.cli.predict_file import WRITERS
from regard.cli.sharding import ShardedWork, Sharding, check_results
from regard.data.files import ending
from regard.data.text_chunks import MAX_TEXTS
from regard.errors import ConfigError, DataError
from regard.file_writing import replacing, sync
from regard.sharded.manifest import ALL_FAILED, FAILED, PARTS
from regard.sharded.reading import FileResults, iter_results

PARQUET, JSONL = ".parquet", ".jsonl"


def predict_table(
    sharding: Sharding, work: ShardedWork, file: Path, columns: str | None, out: Path
) -> None:
    """Write the rows of a table with their predictions, which workers compute.

    After an interruption, the same command continues.

    Raises:
        ConfigError: --format is given, or the parts were begun with other settings.
        DataError: the table has no row.
        RegardError: no row has a prediction; the table is written.
        Others as `regard.sharded.driver.compute_files`.
    """
    if sharding.format is not None:
        raise ConfigError("--format has no effect with --file: the ending of --out says it.")
    typed = PARQUET in (ending(file), out.suffix)  # JSON has no dates
    folder = out.with_name(f"{out.name}.parts")
    format = "parquet" if typed else "jsonl"
    summary = sharding.compute(work, [str(file)], columns, folder, format)
    if not summary.rows:
        raise DataError(file, None, "is empty: it has not one row.")
    if summary.missing:
        return say(str(summary))
    _join(iter_results(folder), file, out)
    failed = out.with_name(f"{out.name}.failed.jsonl")
    told = f"{out}: {summary.rows:,} rows of {file} with their predictions"
    if summary.failed:
        os.replace(folder / ALL_FAILED, failed)
        told += f"; {summary.failed:,} rows have none: see {failed}"
    _remove(folder)
    say(told)
    check_results(summary, failed)


def _remove(folder: Path) -> None:
    """Remove a folder of parts, its manifest last: without it nobody knows what the parts are."""
    for name in (PARTS, FAILED):
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / ALL_FAILED).unlink(missing_ok=True)
    shutil.rmtree(folder)


def _join(parts: FileResults, file: Path, out: Path) -> None:
    """Write the rows of all parts as one table, completely or not at all."""
    with replacing(out) as temporary:
        if out.suffix == JSONL and parts.files[0].suffix == JSONL:
            with temporary.open("wb") as joined:
                for part in parts.files:
                    with part.open("rb") as read:
                        shutil.copyfileobj(read, joined)
        else:
            types = parts.files[0] if out.suffix == PARQUET else file
            rows = _with_all_columns(parts)
            with WRITERS[out.suffix](temporary, types) as writer:
                while some := list(islice(rows, MAX_TEXTS)):
                    writer.write(some)
        sync(temporary)


def _with_all_columns(parts: FileResults) -> Iterator[dict[str, Any]]:
    """The rows, with the columns of the first one that has a prediction."""
    found = (list(row) for row in parts if row["prediction"] not in (None, ""))
    columns = dict.fromkeys(next(found, ["prediction"]))
    for row in parts:
        yield {**columns, **row}
