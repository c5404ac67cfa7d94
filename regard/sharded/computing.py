"""What a worker computes of the texts of rows: vectors, or predictions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import numpy as np

from regard.data.text_chunks import Chunk
from regard.errors import ConfigError, DataError, RegardError, TextError
from regard.sharded.manifest import ShardedTask
from regard.sharded.parts import BLANK
from regard.sharded.rows import InputRow, RowChunk, texts_of
from regard.tasks.batching import TooLong
from regard.tasks.embedder import EncodedTexts, VectorBatches
from regard.tasks.folders import load
from regard.tasks.line_predictor import LinePredictor, Result
from regard.tasks.predicted_tables import Record, check_columns, prediction_columns
from regard.tasks.task import Task

T = TypeVar("T")  # the result of a row


class RowComputer(ABC, Generic[T]):
    """Computes the results of rows with an open model."""

    @abstractmethod
    def compute(self, chunk: Chunk) -> tuple[list[T | None], dict[int, DataError]]:
        """The result of each text, None where there is none, and by index the error that says why.

        Raises:
            RegardError: the model or an option is wrong.
        """

    def compute_rows(
        self, rows: Sequence[InputRow], columns: Sequence[str], path: str
    ) -> tuple[list[T | None], dict[int, DataError]]:
        """The result of each row, None where there is none, and by index the error that says why.

        columns: those with the texts; () for lines of text.  path: of the file, for errors.

        Raises:
            Exception: as `compute_each`.
        """
        errors, texts, readable = dict[int, DataError](), list[Any](), list[int]()
        for index, row in enumerate(rows):
            try:
                texts.append(texts_of(row, columns, path))
                readable.append(index)
            except DataError as error:
                errors[index] = error
        results: list[T | None] = [None] * len(rows)
        if texts:
            chunk = RowChunk(0, texts, path, [rows[index].line for index in readable])
            computed, failed = self.compute_each(chunk)
            errors |= {readable[index]: error for index, error in failed.items()}
            for index, result in zip(readable, computed, strict=True):
                results[index] = result
        return results, errors

    def compute_each(self, chunk: Chunk) -> tuple[list[T | None], dict[int, DataError]]:
        """As `compute`, but an unexpected exception is the error of the text that causes it.

        To find that text, the chunk is divided into halves down to single texts.

        Raises:
            Exception: an unexpected exception that each of several texts causes.
        """
        results, errors, raised = self._halved(chunk, 0)
        if raised and len(chunk.texts) > 1 and len(raised) == len(chunk.texts):
            raise raised[0]
        return results, errors

    def _halved(
        self, chunk: Chunk, offset: int
    ) -> tuple[list[T | None], dict[int, DataError], list[Exception]]:
        try:
            results, errors = self.compute(chunk)
            return results, {offset + index: error for index, error in errors.items()}, []
        except RegardError:  # about the model or the options, not about a text
            raise
        except Exception as error:
            if len(chunk.texts) == 1:
                wrong = chunk.error(0, f"has no result: {type(error).__name__}: {error}")
                return [None], {offset: wrong}, [error]
        half = len(chunk.texts) // 2
        left = self._halved(chunk.until(half), offset)
        right = self._halved(chunk.after(half), offset + half)
        return left[0] + right[0], left[1] | right[1], left[2] + right[2]


class VectorComputer(RowComputer[np.ndarray]):
    """Vectors of texts, (D,) each."""

    def __init__(self, embedder: VectorBatches, too_long: str):
        self.embedder, self.too_long = embedder, too_long

    def compute(self, chunk: Chunk) -> tuple[list[np.ndarray | None], dict[int, DataError]]:
        embedder, errors = self.embedder, dict[int, DataError]()
        encoded = embedder.encode([only_text(text) for text in chunk.texts])
        input_format = embedder.input_format
        if self.too_long == "error":
            for index in input_format.too_long(encoded.inputs):
                tokens = len(encoded.inputs[index])
                errors[index] = chunk.too_long(index, tokens, input_format.max_length)
        results: list[np.ndarray | None] = [None] * len(chunk.texts)
        while left := [index for index in range(len(chunk.texts)) if index not in errors]:
            try:
                vectors = embedder.vectors(EncodedTexts([encoded.inputs[i] for i in left]))
            except TextError as error:  # a vector is not finite
                index = left[error.index]
                errors[index] = chunk.error(index, error.problem, error.hint)
            else:
                for index, vector in zip(left, vectors, strict=True):
                    results[index] = vector
                break
        return results, errors


class PredictionComputer(RowComputer[Record]):
    """The predictions of a task, as columns."""

    def __init__(self, predictor: LinePredictor):
        self.predictor = predictor

    def compute(self, chunk: Chunk) -> tuple[list[Record | None], dict[int, DataError]]:
        results, errors = self.predictor.predict_each(chunk)
        return [None if one is None else self._columns(one) for one in results], errors

    def _columns(self, result: Result) -> Record:
        blank = not "".join(result["source"]).strip()
        return dict(BLANK) if blank else prediction_columns(result)


def only_text(text: Any) -> str:
    """A line of text, or the text in the only column of a row."""
    line: str = text[0] if isinstance(text, tuple) else text
    return line


def reason_of(error: DataError) -> str:
    """Why a row has no result, as it is reported beside the results."""
    return f"{error.problem} {error.hint}".rstrip()


def open_computer(task: ShardedTask) -> RowComputer[Any]:
    """Open the model of a task; what computes the method with it.

    Raises:
        CheckpointError: there is no such model.
        ConfigError: the model does not support the method or an option.
    """
    model: Task = load(
        task.model,
        task=task.task,
        model_type=task.model_type,
        quantize=task.quantize,  # type: ignore[arg-type]
        device=task.device,
    )
    options = dict(task.options or {})
    if task.method == "embed":
        problem = f"{task.model} holds a model of {model.name}, which gives no vectors of texts."
        model.require("embed", task.model, problem)
        if len(task.columns) > 1:
            raise ConfigError(f"A vector is of one text, but the columns are {task.columns}.")
        return VectorComputer(VectorBatches.of(model.text_encoder(), **options), task.too_long)
    model.require_method(task.method, task.model)
    if model.reads_images:
        raise ConfigError(f"{task.model} is a model of {model.name}, which reads images.")
    if task.columns:
        check_columns(model, task.columns, Path("the input"))
    if not model.decodes and options:
        raise ConfigError(f"{model.name} decodes nothing, so {', '.join(options)} has no effect.")
    return PredictionComputer(LinePredictor(model, cast(TooLong, task.too_long), options))
