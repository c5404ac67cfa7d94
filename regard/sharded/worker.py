"""A worker: computes its share of the parts that are missing, and writes them.

A part is a function of the model, the options and its rows alone, whoever computes it. It is
written under a temporary name, and renamed when it is complete: what exists is done.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import torch

from regard.data.readers import TEXT
from regard.data.readers import Record as Row
from regard.data.text_chunks import Chunk, is_blank
from regard.errors import ConfigError, DataError, TextError
from regard.file_writing import replacing, sync
from regard.malloc import keep_freed_blocks
from regard.schema import to_json
from regard.sharded.manifest import FAILED, FilePart, ShardedTask, ShardManifest, read_manifest
from regard.sharded.parts import lines_part, parquet_part, parquet_schema, safetensors_part
from regard.tasks import line_predictor
from regard.tasks.batching import TooLong
from regard.tasks.embedder import VectorBatches
from regard.tasks.folders import load
from regard.tasks.task import Task
from regard.training.interrupt import Interrupted, Interruption, Stopped

FIRST_ROWS = 1024  # from which the columns of all parts are inferred
TRIED = 8  # rows whose results tell the columns of Parquet

InputRow = tuple[int, Row | DataError]  # the line on which it begins, and its fields by column
# of rows, by column; {} of a row without text, None without result
Results = list[Row | None]
Errors = dict[int, DataError]  # of rows without a result, by index


@dataclass(frozen=True)
class RowChunk(Chunk):
    """The texts of rows, with the line of the file on which each begins."""

    lines: list[int]

    def line(self, index: int) -> int:
        return self.lines[index]


def run(out: str, *, strict: bool, share: Sequence[int]) -> dict[str, int]:
    """Compute missing parts: the function of a job. Returns how many texts were truncated, and how
    many outputs unfinished.

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
    parts = [part for part in manifest.missing(folder) if part.number % count == index]
    if not parts:
        return {}
    with Interruption() as interruption:
        try:
            with interruption.interruptible():
                worker = Worker(folder, manifest, strict)
                for part, rows in parts_with_rows(parts):
                    worker.compute(part, rows)
                return dict(worker.computer.counts)
        except Stopped:
            raise Interrupted("stopped", interruption.code) from None


def parts_with_rows(parts: Iterable[FilePart]) -> Iterator[tuple[FilePart, list[InputRow]]]:
    """The parts, in order, with their rows. Each file is read once, from its beginning.

    Raises:
        DataError: a file has fewer rows than before.
    """
    path, position = "", 0
    for part in parts:
        if part.file.path != path:
            path, position, rows = part.file.path, 0, part.file.table().read()
        chosen = list(islice(rows, part.start - position, part.start - position + part.rows))
        position = part.start + part.rows
        if len(chosen) < part.rows:
            problem = f"has fewer than {position:,} rows, which it had when the work began."
            raise DataError(path, None, problem, "Choose another folder for the output.")
        yield part, chosen


class VectorComputer:
    """Vectors of texts, (D,) each, as the column `vector`."""

    def __init__(self, embedder: VectorBatches, too_long: str):
        self.embedder, self.too_long = embedder, too_long
        self.counts = Counter[str]()

    def compute(self, chunk: Chunk) -> tuple[Results, Errors]:
        errors, results = Errors(), Results([None] * len(chunk.texts))
        texts = [text[0] if isinstance(text, tuple) else text for text in chunk.texts]
        encoded, input_format = self.embedder.encode(texts), self.embedder.input_format
        long = input_format.too_long(encoded.inputs)
        if self.too_long == "error":
            for index in long:
                tokens = len(encoded.inputs[index])
                errors[index] = chunk.too_long(index, tokens, input_format.max_length)
        else:
            self.counts.update(truncated=len(long))
        while left := [index for index in range(len(texts)) if index not in errors]:
            if errors:
                encoded = self.embedder.encode([texts[index] for index in left])
            try:
                vectors = self.embedder.vectors(encoded)
            except TextError as error:  # a vector is not finite
                index = left[error.index]
                errors[index] = chunk.error(index, error.problem, error.hint)
                continue
            for index, vector in zip(left, vectors, strict=True):
                results[index] = {"vector": vector}
            break
        return results, errors


class PredictionComputer:
    """The predictions of a task, as columns."""

    def __init__(self, predictor: line_predictor.LinePredictor):
        self.predictor, self.counts = predictor, predictor.counts

    def compute(self, chunk: Chunk) -> tuple[Results, Errors]:
        results, errors = self.predictor.predict_each(chunk)
        columns = [
            None
            if result is None
            else {}
            if is_blank(text)
            else line_predictor.prediction_columns(result)
            for text, result in zip(chunk.texts, results, strict=True)
        ]
        return columns, errors


def open_computer(task: ShardedTask) -> VectorComputer | PredictionComputer:
    """Open the model of a task; what computes the method with it.

    Raises:
        CheckpointError: there is no such model.
        ConfigError: the model does not support the method or an option.
    """
    opening: Any = {"quantize": task.quantize, "device": task.device}
    model: Task = load(task.model, task=task.task, model_type=task.model_type, **opening)
    options = dict(task.options or {})
    if task.method == "embed":
        problem = f"{task.model} holds a model of {model.name}, which gives no vectors of texts."
        model.require("embed", task.model, problem)
        if len(task.columns) > 1:
            raise ConfigError(f"A vector is of one text, but the columns are {task.columns}.")
        return VectorComputer(VectorBatches.of(model.text_encoder(), **options), task.too_long)
    model.require_method(task.method, task.model)
    if not model.decodes and options:
        raise ConfigError(f"{model.name} decodes nothing, so {', '.join(options)} has no effect.")
    return PredictionComputer(
        line_predictor.LinePredictor(model, cast(TooLong, task.too_long), options)
    )


class Worker:
    """The open model, and how the parts are written."""

    def __init__(self, out: Path, manifest: ShardManifest, strict: bool):
        torch.set_num_threads(manifest.task.threads)
        self.out, self.manifest, self.strict = out, manifest, strict
        self.computer = open_computer(manifest.task)
        keep_freed_blocks()
        file = next(file for file in manifest.files if file.rows)
        read = (row for _, row in islice(file.table().read(), FIRST_ROWS))
        first = [row for row in read if not isinstance(row, DataError)]
        self.columns = manifest.task.columns
        if file.format == "lines":
            self.columns = (TEXT,)
        elif first and not self.columns:
            self.columns = line_predictor.infer_columns(Path(file.path), first[0])
        self.lists = False  # whether columns may hold lists
        if isinstance(self.computer, PredictionComputer) and file.format != "lines":
            task = self.computer.predictor.task
            line_predictor.check_columns(task, self.columns, Path(file.path))
            self.lists = list in task.input_columns.values()
        self.is_lines, self.schema = file.format == "lines", None
        has_columns = manifest.task.format in ("jsonl", "parquet")
        of_method = "vector" if manifest.task.method == "embed" else "prediction"
        self.added = of_method if has_columns else ""  # the column of results
        if manifest.task.format == "parquet":
            results, _ = self.results(file.path, [*enumerate(first[:TRIED], 1)])
            if not any(results):  # of a text that has a result
                results, _ = self.results(file.path, [(1, dict.fromkeys(self.columns, "a"))])
            self.schema = parquet_schema(first, results, file.path)

    def results(self, path: str, rows: Sequence[InputRow]) -> tuple[Results, Errors]:
        """The results of rows of a file."""
        errors, texts, readable = Errors(), list[Any](), list[int]()
        for index, (line, row) in enumerate(rows):
            try:
                if isinstance(row, DataError):
                    raise row
                of_row = line_predictor.texts_of_row(row, self.columns, (path, line), self.lists)
                texts.append(of_row[0] if self.is_lines else of_row)  # a line may be a pair
                readable.append(index)
            except DataError as error:
                errors[index] = error
        results: Results = [None] * len(rows)
        chunk = RowChunk(0, texts, path, [rows[index][0] for index in readable])
        computed, failed = self.computer.compute(chunk) if texts else ([], {})
        errors |= {readable[index]: error for index, error in failed.items()}
        for index, result in zip(readable, computed, strict=True):
            results[index] = result
        return results, errors

    def compute(self, part: FilePart, rows: Sequence[InputRow]) -> None:
        """Compute the rows of a part, and write its file and before it the list of its rows without
        a result, since a part whose file exists is done.

        Raises:
            DataError: with `strict`, a row has no result.
            CheckpointError: a file cannot be written.
        """
        path, format = part.file.path, self.manifest.task.format
        results, errors = self.results(path, rows)
        failed = [(rows[index][0], errors[index]) for index in sorted(errors)]
        if failed and self.strict:
            raise failed[0][1]
        fields = [{} if isinstance(row, DataError) else row for _, row in rows]
        records = [{n: v for n, v in row.items() if n != self.added} for row in fields]
        if format == "parquet":
            content = parquet_part(records, results, self.schema, path)
        elif isinstance(self.computer, VectorComputer):
            content = safetensors_part(results, self.computer.embedder.width)
        else:
            content = lines_part(records, results, format)
        if failed:
            reasons = [
                {"file": path, "line": line, "reason": f"{error.problem} {error.hint}".rstrip()}
                for line, error in failed
            ]
            lines = "".join(f"{to_json(reason)}\n" for reason in reasons)
            text = lines.encode("utf-8", "backslashreplace")
            _write(self.out / FAILED / f"part-{part.number:05}.jsonl", text)
        _write(self.manifest.part_file(self.out, part.number), content)


def _write(path: Path, content: bytes) -> None:
    """Write a file completely or not at all; another process may write the same."""
    with replacing(path, uuid4().hex) as temporary:
        temporary.write_bytes(content)
        sync(temporary)
