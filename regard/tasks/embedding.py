"""Vectors of texts from an encoder without a head, compared by their cosine.

Texts are pooled as sentence-transformers does, and vectors are scored by the correlation of their
cosines with human judgements of pairs of sentences. An encoder is trained by the vectors of a
teacher; one that is trained in another task (classification, regression) gives vectors too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.checkpoints.sentence_transformers import read_pooling
from regard.data import RowReader, Sequences, read
from regard.data.batches import moved
from regard.data.encoder_inputs import EncodedInputs
from regard.data.token_arrays import ReadReport
from regard.decoding.steps import evaluating
from regard.errors import DataError
from regard.layers.pooling import Pooling
from regard.metrics import Pearson, Scores, Spearman
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.recipe import Recipe
from regard.tasks.batching import TooLong, device_of, watched
from regard.tasks.embedder import TextEncoder, VectorBatches, as_text
from regard.tasks.encoder_training import Teacher, TeacherSection, headed, tokens_of
from regard.tasks.encoding import EncoderTask, Part, Parts, input_format_of, kept_examples
from regard.tasks.inputs import as_list
from regard.tasks.sections import EncoderData, EncoderRecipe, TableOptions
from regard.tasks.task import Prediction, Task
from regard.tasks.text_tasks import number_in
from regard.text import Tokenizer


class VectorsData(TableOptions, EncoderData):
    """[data]: texts without any target."""

    columns: tuple[int | str, ...] = ()
    """The columns of a table that hold texts, each a text of its own; none: all of them."""

    def read(self, source: Any, part: str) -> RowReader:
        """The texts of each row of a file."""
        return self.table(source, self.columns)

    def texts(self) -> Any:
        """The training texts, from which a tokenizer learns."""
        return (text for row in self.records("train") for text in row)


class VectorsRecipe(EncoderRecipe):
    """A recipe's sections besides [model] and [training]."""

    data: VectorsData
    teacher: TeacherSection


@dataclass(frozen=True)
class VectorPrediction(Prediction):
    """The vector of a text."""

    vector: tuple[float, ...]

    def __str__(self) -> str:
        return " ".join(f"{number:.7g}" for number in self.vector)


class Embedder(EncoderTask):
    """A vector for a text.

    module: an encoder, with heads or without.
    """

    name = "embedding"
    prediction_type = VectorPrediction
    commands = ("embed", "predict", "evaluate", "look")
    columns = (0, 1, 2)
    library = "sentence-transformers"
    pipeline = "feature-extraction"
    file_ending = "txt"
    Recipe: ClassVar[type[Recipe] | None] = VectorsRecipe
    goal = ("loss", "min")
    score_options = ("teacher.path",)
    metric_names = ("loss", "cosine")
    teacher: Teacher | None = None  # in training alone, as is what it reads of a text
    teacher_limit: int | None = None

    def __init__(
        self,
        module: nn.Module,
        tokenizer: Tokenizer,
        *,
        kinds: Sequence[str] = ("mean",),
        normalize: bool = False,
        max_length: int | None = None,
    ):
        super().__init__(headed(module), tokenizer, max_length=max_length)
        self.kinds, self.normalize = tuple(kinds), normalize
        self.pooling = Pooling(self.kinds, normalize, self.max_length)

    def text_encoder(self) -> TextEncoder:
        """The encoder, and how it pools a text."""
        return TextEncoder(self.encoder, self.input_format, self.pooling)

    @classmethod
    def fits(cls, model: nn.Module) -> bool:
        """Whether the model is an encoder, with heads or without."""
        return isinstance(model, EncoderWithHeads) or cls.trains(type(model))

    @classmethod
    def is_for(cls, model: nn.Module, config: Mapping[str, Any]) -> bool:
        """Whether the model is an encoder without the head of a task."""
        return isinstance(model, EncoderWithHeads) and {*model.heads} <= {"pooler"}

    # ---- training

    @classmethod
    def from_recipe(cls, recipe: Any, model: nn.Module, tokenizer: Tokenizer) -> Embedder:
        """The task with its texts and the vectors that the teacher gives them; vectors are pooled
        as the teacher pools its own, by the mean where its folder does not say it.

        Raises:
            ConfigError: the model is not an encoder, or has another width than the teacher.
            DataError: a file cannot be read, or has no text.
        """
        data, student = recipe.data, EncoderWithHeads(headed(model).encoder, {})
        teacher = Teacher.read(recipe.teacher, student)
        teacher.check_width(student, "the loss")
        pooling = read_pooling(recipe.teacher.path) or Pooling()
        options: Any = {"kinds": pooling.kinds, "normalize": pooling.normalize}
        task = cls(student, tokenizer, max_length=data.max_length, **options)
        task.teacher, task.teacher_limit = teacher, pooling.max_length
        valid = None if data.valid is None else task._part(data.records("valid"), data)
        task.parts = Parts(task._part(data.records("train"), data), valid, data, recipe.seed)
        return task

    def _part(self, rows: RowReader, data: VectorsData) -> Part:
        """The texts of rows, and the teacher's vectors of them, (N, D).

        Raises:
            DataError: no text is left.
        """
        report, texts, lines = ReadReport((rows.file_of(0),)), [], []
        for line, row in rows.numbered():
            report.read += 1
            if not (row_texts := [text for text in row if text.strip()]):
                report.note("empty, example left out", line)
            texts += row_texts
            lines += [line] * len(row_texts)
        encoded = self.input_format.encode([(text,) for text in texts])
        limit = self.input_format.max_length
        indices = kept_examples(list(map(len, encoded)), limit, lines, data, report)
        vectors = self._teacher_vectors([texts[i] for i in indices], limit)
        inputs = [self.input_format.truncate(encoded[i]) for i in indices]
        return Part(EncodedInputs.of(inputs), vectors, report)

    def _teacher_vectors(self, texts: Sequence[str], max_length: int | None) -> Tensor:
        """The teacher's vectors of texts, (N, D) float32; of longer ones the first `max_length`
        tokens. On the meta device, where nothing is computed, zeros.
        """
        assert self.teacher is not None
        limits = [limit for limit in (max_length, self.teacher_limit) if limit is not None]
        model, tokenizer = self.teacher.model, self.teacher.tokenizer
        format = input_format_of(model, tokenizer, min(limits, default=None))
        embedder = VectorBatches.of(TextEncoder(model.encoder, format, self.pooling))
        if device_of(model).type == "meta":
            return torch.zeros(len(texts), embedder.width)
        return torch.cat([torch.as_tensor(x) for x in embedder.chunks(texts, "truncate")])

    @classmethod
    def problems(cls, recipe: Any) -> Iterator[tuple[str, str]]:
        """Options without effect, or without what they need."""
        yield from super().problems(recipe)
        if recipe.data.test is not None:
            yield "data.test", "has no target here. Use: regard evaluate FOLDER FILE"

    def losses(self, batch: Any, carry: None = None) -> tuple[dict[str, tuple[Tensor, int]], None]:
        """The sum of the squared distances from the teacher's vectors, and the number of texts."""
        vectors = self._vectors(self.completed(batch).texts, int(batch.texts.lengths.sum()))
        targets = moved(self._parts().train.targets[batch.numbers.cpu()], vectors.device)
        return {"loss": (F.mse_loss(vectors, targets, reduction="sum"), len(batch))}, None

    def _vectors(self, texts: Sequences, count: int) -> Tensor:
        """The vectors of padded texts of `count` tokens, (B, D) float32."""
        inputs = self.as_read(texts)
        states = inputs.pad(self.module.encoder.encode(inputs))  # (B, T, D)
        return self.pooling.unpadded(tokens_of(states, texts.keep, count), texts.lengths).float()

    def measured(self, valid: Part) -> dict[str, float]:
        """The mean squared distance from the teacher's vectors, and the mean cosine with them."""
        inputs, targets, predicted = valid.inputs, valid.targets, torch.zeros_like(valid.targets)
        with torch.no_grad(), evaluating(self.module):
            for batch in watched(inputs.longest_first(self.input_format.pad, max_tokens=8192)):
                vectors = self._vectors(self.completed(batch).texts, int(batch.texts.lengths.sum()))
                predicted[batch.numbers] = vectors.cpu()
        return {
            "loss": float((predicted - targets).square().sum(-1).mean()),
            "cosine": float(torch.cosine_similarity(predicted, targets, dim=-1).mean()),
        }

    samples = Task.samples  # a vector says nothing in a report

    def attention_inputs(self, recipe: Any) -> list[str]:
        return [row[0] for row in recipe.data.samples()]

    # ---- predictions

    def predict(self, texts: Any, *, return_proba: bool = False, **options: Any) -> Any:
        """The vectors of texts, (N, D), or of one text, (D,)."""
        if return_proba:
            return super().predict(texts, return_proba=True, **options)
        return self.embed(texts, **options)

    def checked(self, texts: Any) -> list[Any]:
        """Texts, each as a tuple."""
        return [(as_text(text, index),) for index, text in enumerate(as_list(texts))]

    def _predictions(
        self, texts: Sequence[str], *, too_long: TooLong = "error"
    ) -> list[VectorPrediction]:
        """The vector of each text."""
        vectors = self.embed(texts, too_long=too_long)
        return [VectorPrediction(tuple(row)) for row in vectors.tolist()]

    def evaluate(
        self,
        rows: RowReader | Iterable[Sequence[Any]],
        *,
        columns: Sequence[int | str] = (),
        too_long: TooLong = "truncate",
    ) -> Scores:
        """Pearson's and Spearman's correlation of cosines with judgements.

        rows: (text, text, number).  columns: of a table.

        Raises:
            DataError: a row has no number in its third field.
        """
        rows = self.with_columns(rows, columns)
        rows = rows if isinstance(rows, RowReader) else read(rows)
        numbered = list(rows.numbered())
        judgements = [_number(row, rows.file_of(0), line) for line, row in numbered]
        vectors = [
            self.embed([row[side] for _, row in numbered], normalize=True, too_long=too_long)
            for side in (0, 1)
        ]
        cosines = np.einsum("nd,nd->n", *vectors)
        metrics = Pearson(), Spearman()
        for metric in metrics:
            metric.add(cosines, judgements)
        return Scores(metric.result() for metric in metrics)


def _number(row: Sequence[Any], file: str, line: int) -> float:
    if len(row) != 3:
        raise DataError(
            file,
            line,
            f"has {len(row)} fields, but these must be two texts and how alike they are.",
            "Name the three columns, such as 5,6,4.",
        )
    return number_in(row[2], file, line)
