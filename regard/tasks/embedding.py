"""Vectors of texts from an encoder without a head, compared by their cosine.

Texts are pooled as sentence-transformers does, and vectors are scored by the correlation of their
cosines with human judgements of pairs of sentences. An encoder is trained by the vectors of a
teacher; one that is trained in another task (classification, regression) gives vectors too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from regard.data import RowReader, read
from regard.decoding.steps import evaluating
from regard.errors import DataError
from regard.layers.pooling import Pooling
from regard.metrics import Pearson, Scores, Spearman
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.recipe import Recipe
from regard.tasks.batching import TooLong, device_of, watched
from regard.tasks.embedder import TextEncoder, as_text
from regard.tasks.encoder_sections import SAMPLES
from regard.tasks.encoding import EncoderTask, Part, Parts, headed
from regard.tasks.inputs import as_list
from regard.tasks.predictions import Prediction
from regard.tasks.vector_distillation import VectorsRecipe, VectorTeacher, student_vectors
from regard.text import Tokenizer

SAMPLED = 200  # texts among which the report of a run shows nearest ones


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
    Recipe: ClassVar[type[Recipe] | None] = VectorsRecipe
    goal = ("loss", "min")
    score_options = ("teacher.path",)
    metric_names = ("loss", "cosine")
    teacher: VectorTeacher | None = None

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
        self.pooling = Pooling(tuple(kinds), normalize, self.input_format.max_length)

    def text_encoder(self) -> TextEncoder:
        """The encoder, and how it pools a text."""
        return TextEncoder(self.encoder, self.input_format, self.pooling)

    # ---- training

    @classmethod
    def from_recipe(cls, recipe: Any, model: nn.Module, tokenizer: Tokenizer) -> Embedder:
        """The task with its texts and the vectors that the teacher gives them; vectors are pooled
        as the teacher pools its own.

        Raises:
            ConfigError: the model is not an encoder, or does not fit the teacher.
            DataError: a file cannot be read.
        """
        data, student = recipe.data, EncoderWithHeads(headed(model).encoder, {})
        teacher = VectorTeacher.of(recipe.teacher, student, tokenizer)
        options: Any = {"kinds": teacher.pooling.kinds, "normalize": teacher.pooling.normalize}
        task = cls(student, tokenizer, max_length=data.max_length, **options)
        task.teacher = teacher
        if recipe.teacher.hidden_weight:
            teacher.teacher.check_length(task.input_format.max_length)
        parts = [
            None if part is None else teacher.part(data.records(part), data, task.input_format)
            for part in ("train", None if data.valid is None else "valid")
        ]
        task.parts = Parts(cast(Part, parts[0]), parts[1], data, recipe.seed)
        return task

    @classmethod
    def problems(cls, recipe: Any) -> Iterator[tuple[str, str]]:
        """Options without effect, or without what they need."""
        yield from super().problems(recipe)
        if recipe.data.test is not None:
            yield "data.test", "has no target here. Use: regard evaluate FOLDER FILE"

    def identity(self) -> dict[str, str]:
        return {} if self.teacher is None else self.teacher.teacher.identity()

    def counts(self, batch: Any) -> dict[str, int]:
        """Texts, and the tokens whose hidden states are compared."""
        assert self.teacher is not None
        compared = self.teacher.section.hidden_weight > 0
        return {
            "loss": len(batch),
            **({"hidden": int(batch.texts.lengths.sum())} if compared else {}),
        }

    def losses(self, batch: Any, carry: None = None) -> tuple[dict[str, tuple[Tensor, int]], None]:
        """The squared distances from the teacher's vectors, and from its hidden states."""
        assert self.teacher is not None
        here, every = self.completed(batch), self.teacher.section.hidden_weight > 0
        count, targets = int(batch.texts.lengths.sum()), self._parts().train.targets
        vectors_and_states = student_vectors(
            self.module, self.pooling, here.texts, count, every=every
        )
        theirs = self.teacher.encoder.complete(batch.texts, self.tokenizer) if every else here.texts
        theirs = theirs.to(device_of(self.module))
        return self.teacher.losses(*vectors_and_states, here, theirs, targets, count), None

    def measured(self, valid: Part) -> dict[str, float]:
        """The mean squared distance from the teacher's vectors, and the mean cosine with them."""
        inputs, targets, predicted = valid.inputs, valid.targets, torch.zeros_like(valid.targets)
        with torch.no_grad(), evaluating(self.module):
            for batch in watched(inputs.longest_first(self.input_format.pad, max_tokens=8192)):
                here = self.completed(batch)
                count = int(batch.texts.lengths.sum())
                vectors, _ = student_vectors(
                    self.module, self.pooling, here.texts, count, every=False
                )
                predicted[batch.numbers] = vectors.float().cpu()
        return {
            "loss": float((predicted - targets).square().sum(-1).mean()),
            "cosine": float(torch.cosine_similarity(predicted, targets, dim=-1).mean()),
        }

    def samples(self, recipe: Any) -> list[tuple[str, str, str]]:
        """Texts of the validation data, or of the training data, and the text among them whose
        vector is nearest by the student, and by the teacher.
        """
        texts = [row[0] for row in recipe.data.samples(SAMPLED)]
        assert self.teacher is not None
        by_student = _nearest(torch.as_tensor(self.embed(texts, too_long="truncate")))
        by_teacher = _nearest(self.teacher.vectors(texts, None))
        rows = zip(texts, by_student, by_teacher, strict=True)
        return [
            (text, texts[near_student], texts[near_teacher])
            for text, near_student, near_teacher in rows
        ][:SAMPLES]

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

    def settings(self) -> dict[str, Any]:
        """What `load` must know beside model and tokenizer."""
        pooling = self.pooling
        return {**super().settings(), "kinds": list(pooling.kinds), "normalize": pooling.normalize}


def _nearest(vectors: Tensor) -> list[int]:
    """For each of the rows (N, D) another one with the largest cosine; of one row itself."""
    normed = torch.nn.functional.normalize(vectors, dim=-1)
    cosines = normed @ normed.T
    if len(cosines) > 1:
        cosines.fill_diagonal_(-2.0)
    return cosines.argmax(-1).tolist()


def _number(row: Sequence[Any], file: str, line: int) -> float:
    if len(row) != 3:
        raise DataError(
            file,
            line,
            f"has {len(row)} fields, but these must be two texts and how alike they are.",
            "Name the three columns, such as 5,6,4.",
        )
    try:
        number = float(row[2])
    except ValueError:
        raise DataError(file, line, f"has {row[2]!r} where a number should be.") from None
    if not math.isfinite(number):
        raise DataError(file, line, f"has {row[2]!r}, but how alike two texts are must be finite.")
    return number
