"""Training of an encoder that gives vectors of texts, by the vectors that a teacher gives them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.checkpoints.sentence_transformers import read_pooling
from regard.data import RowReader
from regard.data.batches import Sequences, moved
from regard.data.encoder_inputs import EncodedInputs, InputBatch, InputFormat
from regard.data.token_arrays import ReadReport
from regard.errors import ConfigError, DataError
from regard.layers.pooling import Pooling
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.models.protocols import Encoder
from regard.tasks.batching import device_of, without_padding
from regard.tasks.distillation import Teacher, VectorsTeacherSection, hidden_loss, tokens_of
from regard.tasks.embedder import TextEncoder, VectorBatches
from regard.tasks.encoder_sections import EncoderData, EncoderRecipe
from regard.tasks.encoding import Part, input_format_of, keep_short
from regard.tasks.sections import TableOptions
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
    teacher: VectorsTeacherSection


@dataclass(frozen=True)
class VectorTeacher:
    """The teacher of vectors of texts."""

    teacher: Teacher
    section: VectorsTeacherSection
    pooling: Pooling

    @classmethod
    def of(
        cls, section: VectorsTeacherSection, student: EncoderWithHeads, tokenizer: Tokenizer
    ) -> Self:
        """The teacher of a recipe; a folder that does not say how it pools has the mean.

        Raises:
            ConfigError: its vectors have another width; or hidden states are to be compared, and
                its tokenizer is another one.
        """
        teacher = Teacher.read(section, student)
        teacher.check_width(student, "the loss")
        if section.hidden_weight:
            teacher.check_vocabulary(tokenizer)
            if type(student.encoder).encode is not Encoder.encode:
                kind = type(student.encoder).__name__
                raise ConfigError(
                    f"[teacher] `hidden_weight` compares layers, but the vectors of {kind} are a "
                    "mix of all its layers. Leave it out."
                )
        return cls(teacher, section, read_pooling(section.path) or Pooling())

    @property
    def encoder(self) -> Encoder:
        """The teacher's."""
        return self.teacher.model.encoder

    def vectors(self, texts: Sequence[str], max_length: int | None) -> Tensor:
        """Its vectors of texts, (N, D) float32; of longer ones the first `max_length` tokens. On
        the meta device, where nothing is computed, zeros.
        """
        model, tokenizer = self.teacher.model, self.teacher.tokenizer
        format = input_format_of(model, tokenizer, _smaller(max_length, self.pooling.max_length))
        embedder = VectorBatches.of(TextEncoder(self.encoder, format, self.pooling))
        if device_of(self.encoder).type == "meta":
            return torch.zeros(len(texts), embedder.width)
        chunks = [torch.as_tensor(chunk) for chunk in embedder.chunks(texts, "truncate")]
        return torch.cat(chunks) if chunks else torch.zeros(0, embedder.width)

    def part(self, rows: RowReader, data: VectorsData, input_format: InputFormat) -> Part:
        """The texts of rows as the student reads them, and the teacher's vectors of them, (N, D).

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
        inputs = input_format.encode([(text,) for text in texts])
        kept = keep_short(inputs, lines, input_format, data, report)
        report.kept = len({lines[i] for i in kept})
        if not kept:
            raise DataError(rows.file_of(0), None, f"no text is left. {report}.")
        vectors = self.vectors([texts[i] for i in kept], input_format.max_length)
        return Part(EncodedInputs.of([inputs[i] for i in kept]), vectors, report)

    def losses(
        self,
        vectors: Tensor,
        states: Sequence[Tensor],
        batch: InputBatch,
        teacher_texts: Sequences,
        teacher_vectors: Tensor,
        count: int,
    ) -> dict[str, tuple[Tensor, int]]:
        """The sum of the squared distances of vectors (B, D) and the teacher's, those of the batch
        among `teacher_vectors` (N, D); and that of hidden states, weighted: see `hidden_loss`.

        states: the student's, (B, T, D) of the embeddings and of every layer.  batch: padded, of
        `count` tokens.  teacher_texts: its texts as the teacher reads them.
        """
        target_vectors = moved(teacher_vectors[batch.numbers.cpu()], vectors.device)
        losses = {
            "loss": (F.mse_loss(vectors.float(), target_vectors, reduction="sum"), len(batch))
        }
        if self.section.hidden_weight:
            with torch.no_grad():
                layers = list(self.encoder.states(teacher_texts))
            total = hidden_loss(states, layers, batch.texts.keep, count)
            losses["hidden"] = self.section.hidden_weight * total, count
        return losses


def _smaller(first: int | None, second: int | None) -> int | None:
    limits = [limit for limit in (first, second) if limit is not None]
    return min(limits, default=None)


def student_vectors(
    model: EncoderWithHeads, pooling: Pooling, texts: Sequences, count: int, *, every: bool
) -> tuple[Tensor, list[Tensor]]:
    """A student's vectors of a batch, (B, D), and hidden states (B, T, D) behind them.

    texts: padded, of `count` tokens.  every: whether the states are those of the embeddings and of
    all layers, or of the last alone.
    """
    encoder, inputs = model.encoder, without_padding(model.encoder, texts)
    layers = list(encoder.states(inputs)) if every else [encoder.encode(inputs)]
    states = [inputs.pad(hidden) for hidden in layers]
    return pooling.unpadded(tokens_of(states[-1], texts.keep, count), texts.lengths), states
