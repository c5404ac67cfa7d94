"""A worker: computes its share of the parts that are missing, and writes them.

A part is a function of the model, the options and its rows alone, whoever computes it. It is
written under a temporary name, and renamed when it is complete: what exists is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch

from regard.data.text_chunks import is_blank
from regard.errors import ConfigError, DataError
from regard.file_writing import replacing, sync
from regard.malloc import keep_freed_blocks
from regard.plain_json import to_json
from regard.sharded.computing import RowComputer, VectorComputer, open_computer, reason_of
from regard.sharded.manifest import FilePart, ShardManifest, read_manifest
from regard.sharded.parts import (
    BLANK,
    VECTOR,
    check_new_columns,
    lines_part,
    parquet_part,
    parquet_schema,
    safetensors_part,
)
from regard.sharded.rows import (
    InputFile,
    InputRow,
    RowChunk,
    column_names,
    raw_rows,
    row_of,
    texts_of,
)
from regard.tasks.predicted_tables import infer_columns
from regard.training.interrupt import Interrupted, Interruption, Stopped

FIRST_ROWS = 1024  # from which the columns of all parts are inferred


def run(out: str, *, strict: bool, share: Sequence[int]) -> None:
    """Compute missing parts: the function of a job.

    out: the output folder.
    strict: whether a row without a result raises its error.
    share: (i, n): the parts whose number modulo n is i.

    Raises:
        DataError: with `strict`, a row has no result; or a file has changed meanwhile.
        CheckpointError: a part cannot be written.
        Interrupted: after SIGTERM; what was computed of an unfinished part is lost.
    """
    folder, (index, count) = Path(out), share
    manifest = read_manifest(folder)
    with Interruption() as interruption:
        try:
            with interruption.interruptible():
                if own := [p for p in manifest.missing(folder) if p.number % count == index]:
                    worker = Worker(folder, manifest, strict)
                    for part, rows in parts_with_rows(own):
                        worker.compute(part, rows)
        except Stopped:
            raise Interrupted("stopped", interruption.code) from None


def parts_with_rows(parts: Iterable[FilePart]) -> Iterator[tuple[FilePart, list[InputRow]]]:
    """The parts, in order, with their rows. Each file is read once, from its beginning; the rows
    between are skipped without being parsed.

    Raises:
        DataError: a file has fewer rows than before.
    """
    path, position = "", 0
    for part in parts:
        if part.file.path != path:
            path, position = part.file.path, 0
            names, raw = column_names(part.file), raw_rows(part.file)
        stop = part.start + part.rows - position
        chosen = list(islice(raw, part.start - position, stop))
        position = part.start + part.rows
        if len(chosen) < part.rows:
            problem = f"has fewer than {position:,} rows, which it had when the work began."
            raise DataError(path, None, problem, "Choose another folder for the output.")
        yield part, [row_of(part.file, names, number, row) for number, row in chosen]


class Worker:
    """The open model, and how the parts are written."""

    def __init__(self, out: Path, manifest: ShardManifest, strict: bool):
        torch.set_num_threads(manifest.task.threads)
        self.out, self.manifest, self.strict = out, manifest, strict
        self.computer = open_computer(manifest.task)
        keep_freed_blocks()
        self.file: InputFile = next(file for file in manifest.files if file.rows)
        names, raw = column_names(self.file), islice(raw_rows(self.file), FIRST_ROWS)
        rows = (row_of(self.file, names, number, row) for number, row in raw)
        first = [row for row in rows if row.error is None]
        self.columns = self._columns(first)
        self.added = self._added_columns(first)
        self.schema: Any = None
        if manifest.task.format == "parquet":
            records = [row.record for row in first]
            self.schema = parquet_schema(records, self.added, self.file.path)

    def compute(self, part: FilePart, rows: Sequence[InputRow]) -> None:
        """Compute the rows of a part, and write its file and before it the list of its rows without
        a result, since a part whose file exists is done.

        Raises:
            DataError: with `strict`, a row has no result.
            CheckpointError: a file cannot be written.
        """
        path = part.file.path
        results, errors = self.computer.compute_rows(rows, self.columns, path)
        rows = [*rows]
        for index, row in enumerate(rows):  # of JSONL each row has fields of its own
            try:
                check_new_columns([row.record], self.added, path, row.line)
            except DataError as error:
                results[index], errors[index] = None, error
                own = {name: one for name, one in row.record.items() if name not in self.added}
                rows[index] = replace(row, record=own)
        content, unfit = self._content(rows, results, path)
        errors = unfit | errors
        failed = sorted(errors.items(), key=itemgetter(0))
        if failed and self.strict:
            raise failed[0][1]
        if failed:
            lines = (_failure(path, rows[index].line, error) for index, error in failed)
            text = "".join(lines).encode("utf-8", "backslashreplace")
            _write(self.manifest.failed_file(self.out, part.number), text)
        _write(self.manifest.part_file(self.out, part.number), content)

    def _content(
        self, rows: Sequence[InputRow], results: Sequence[Any], path: str
    ) -> tuple[bytes, dict[int, DataError]]:
        """The bytes of a part, and by index the errors of rows that it cannot hold."""
        format = self.manifest.task.format
        if format == "parquet":
            return parquet_part(rows, results, self.schema, path)
        if isinstance(self.computer, VectorComputer):
            return safetensors_part(results, self.computer.embedder.width), {}
        return lines_part(rows, results, format), {}

    def _columns(self, first: Sequence[InputRow]) -> tuple[str, ...]:
        """The columns of texts; () where the input is lines."""
        columns = self.manifest.task.columns
        if self.file.format == "lines":
            if columns:
                problem = f"{self.file.path} has lines and no columns, but {columns} are named."
                raise ConfigError(problem)
            return ()
        if not first:
            return columns or ("text",)
        columns = columns or infer_columns(Path(self.file.path), first[0].record)
        if self.file.format != "jsonl":  # all rows have the same columns
            texts_of(first[0], columns, self.file.path)
        return columns

    def _added_columns(self, first: Sequence[InputRow]) -> dict[str, Any]:
        """The columns of results that stand beside those of the input; {} where none do."""
        format = self.manifest.task.format
        # a line has no other columns
        of_lines = format == "jsonl" and self.file.format == "lines"
        if of_lines or format in ("safetensors", "txt"):
            return {}
        added = added_columns(self.computer, first, self.columns)
        check_new_columns([row.record for row in first], added, self.file.path)
        return added


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


def _write(path: Path, content: bytes) -> None:
    """Write a file completely or not at all; another process may write the same."""
    with replacing(path, uuid4().hex) as temporary:
        temporary.write_bytes(content)
        sync(temporary)
