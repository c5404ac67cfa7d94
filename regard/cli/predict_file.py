"""`regard predict --file`: a copy of a table with the predictions as columns.

The rows are computed into parts, as with --workers and a folder; they are then joined to one table.

OUT.parts/          the parts; removed when OUT is complete
OUT                 the table with its predictions
OUT.failed.jsonl    with --workers: file, line and reason of each row without a prediction
"""

import csv
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, Any

from regard.cli.console import say, say_truncated, say_unfinished, to_json
from regard.cli.options import check_none
from regard.cli.sharding import ShardedWork, Sharding, check_results
from regard.data.files import check_file, ending
from regard.errors import ConfigError, DataError
from regard.executors import ExecutorOptions
from regard.file_writing import replacing, sync

ENDINGS = (".csv", ".tsv", ".jsonl", ".parquet")
PARTS_AT_ONCE = 64  # of Parquet, which are written as one row group
HERE = Sharding(1, ExecutorOptions("here"), strict=True)  # without --workers


def check_output(file: Path, out: Path | None) -> Path:
    """The path of the output file.

    Raises:
        ConfigError: no path is given, its ending is not supported, or it is the input file.
        DataError: there is no input file.
    """
    check_file(file)
    if out is None or out.suffix not in ENDINGS:
        raise ConfigError(
            f"--file needs a file for the answers, --out answers{ENDINGS[0]}, whose ending is one "
            f"of {', '.join(ENDINGS)}, but --out is {out or 'not given'}."
        )
    if out.exists() and out.samefile(file):
        raise ConfigError(f"--out names the file that is read, {file}. Name another file.")
    return out


def predict_file(sharding: Sharding | None, work: ShardedWork, file: Path, out: Path) -> None:
    """Write the rows of a table with their predictions, all or nothing.

    sharding: with workers the same command continues after an interruption, and rows without a
        prediction are listed beside the table. None: this process computes.

    Raises:
        ConfigError: --format is given, the parts were begun with other settings, or the names do
            not tell which columns are texts.
        DataError: the table has no row; or, without workers, a row has no prediction.
        RegardError: no row has a prediction; the table is written.
        Others as `regard.sharded.driver.compute_files`.
    """
    if sharding is not None:
        check_none("with --file: the ending of --out says it", {"format": sharding.format})
        return _predict(sharding, work, file, out, out.with_name(f"{out.name}.parts"))
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as folder:
        _predict(HERE, work, file, out, Path(folder))


def _predict(sharding: Sharding, work: ShardedWork, file: Path, out: Path, folder: Path) -> None:
    from regard.sharded.manifest import ALL_FAILED
    from regard.sharded.parts import iter_results

    typed = ".parquet" in (ending(file), out.suffix)  # JSON has no dates
    format = "parquet" if typed else "jsonl"
    progress = None if sharding is not HERE or sys.stderr.isatty() else False
    summary = sharding.compute(work, [str(file)], folder, format, progress)
    if not summary.rows:
        raise DataError(file, None, "is empty: it has not one row.")
    if summary.missing:
        return say(str(summary))
    parts = iter_results(folder).files
    with replacing(out) as temporary:
        if out.suffix == parts[0].suffix == ".parquet":
            _join_parquet(parts, temporary)
        elif out.suffix == parts[0].suffix:
            with temporary.open("wb") as joined:
                for part in parts:
                    with part.open("rb") as read:
                        shutil.copyfileobj(read, joined)
        else:
            with temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="") as to:
                _write_text(iter_results(folder), to, out.suffix, file)
        sync(temporary)
    failed = out.with_name(f"{out.name}.failed.jsonl")
    text = f"{out}: {summary.rows:,} rows of {file} with their predictions"
    if summary.failed:
        os.replace(folder / ALL_FAILED, failed)
        text += f"; {summary.failed:,} rows have none: see {failed}"
    shutil.rmtree(folder)
    say(text)
    say_truncated(summary.truncated, summary.rows)
    say_unfinished(summary.unfinished, summary.rows)
    check_results(summary, failed)


def _join_parquet(parts: Sequence[Path], out: Path) -> None:
    """Write the parts, which have one schema, as one file with few row groups."""
    import pyarrow
    from pyarrow import parquet

    with parquet.ParquetWriter(out, parquet.read_schema(parts[0])) as writer:
        for start in range(0, len(parts), PARTS_AT_ONCE):
            several = map(parquet.read_table, parts[start : start + PARTS_AT_ONCE])
            writer.write_table(pyarrow.concat_tables(several).combine_chunks())


def _write_text(rows: Iterable[dict[str, Any]], out: IO[str], suffix: str, file: Path) -> None:
    """Write JSONL; or CSV or TSV, whose columns are those of the first row with a prediction.

    In CSV and TSV lists and objects are JSON, and in TSV a tab or line break becomes a space.

    Raises:
        DataError: a row has a column that CSV or TSV lacks.
    """
    if suffix == ".jsonl":
        return out.writelines(f"{to_json(row)}\n" for row in rows)
    predicted = (row for row in rows if row["prediction"] is not None)
    names = list(next(chain(predicted, rows)))
    table = csv.writer(out, lineterminator="\n")
    table_rows = chain([dict(zip(names, names, strict=True))], rows)
    for row in table_rows:
        if extra := row.keys() - {*names}:
            problem = f"has rows with the field {min(extra)!r}, which the first does not have."
            raise DataError(file, None, problem, "Write --out answers.jsonl instead.")
        cells = [_cell(row.get(name)) for name in names]
        if suffix == ".csv":
            table.writerow(cells)
        else:
            fields = (" ".join(cell.replace("\t", " ").splitlines()) for cell in cells)
            out.write("\t".join(fields) + "\n")


def _cell(value: Any) -> str:
    """A value as text; nothing is "", and what is neither text nor a date is JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else to_json(value).strip('"')
