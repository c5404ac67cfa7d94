"""The class of a text or of a pair of texts, by name.

Labels have names from the file to the prediction. Their order is that of the model's own head where
that head is kept, otherwise alphabetical.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from regard.data import RowReader
from regard.data.batches import moved
from regard.errors import DataError
from regard.metrics import Score
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.tasks.batching import TooLong
from regard.tasks.encoding import AuxiliaryLM, EncoderTask, Part, headed, labelled
from regard.tasks.pair_order import BothOrders
from regard.tasks.predictions import Prediction
from regard.tasks.texts import (
    TextMetrics,
    TextObjective,
    TextRecipe,
    pictured_text,
    text_example,
    text_parts,
    text_problems,
    text_samples,
    texts_and_targets,
)
from regard.tasks.transformations import transformed
from regard.text import Tokenizer

METRICS = TextMetrics(
    "classification", known=("accuracy", "f1", "macro-f1", "matthews"), default=("accuracy",)
)


class ClassificationObjective(TextObjective):
    """[objective]"""

    label_smoothing: float = Field(default=0.0, ge=0, lt=1)


class ClassificationRecipe(TextRecipe):
    """A recipe's sections besides [model] and [training]."""

    objective: ClassificationObjective = ClassificationObjective()


@dataclass(frozen=True)
class LabelPrediction(Prediction):
    """The most probable label, and the probability of each label."""

    label: str
    probabilities: dict[str, float]

    @property
    def result(self) -> str:
        """The label."""
        return self.label

    def __str__(self) -> str:
        return self.label


class Classification(EncoderTask):
    """One of several classes for a text, or for a pair.

    labels: in the order of the head's scores.  label_smoothing: in training alone.
    glue, metrics: see `TextsData` and `MetricsSection`.  both_orders: see `TextObjective`.
    """

    name = "classification"
    head = "classes"
    prediction_type = LabelPrediction
    reads_pairs = True
    Recipe = ClassificationRecipe

    def __init__(
        self,
        model: EncoderWithHeads,
        tokenizer: Tokenizer,
        *,
        labels: Sequence[str],
        label_smoothing: float = 0.0,
        glue: str = "",
        metrics: Sequence[str] = (),
        both_orders: bool = False,
        max_length: int | None = None,
    ):
        super().__init__(model, tokenizer, max_length=max_length)
        self.labels, self.label_smoothing = tuple(labels), label_smoothing
        self._index = {label: i for i, label in enumerate(self.labels)}
        self.metrics = replace(METRICS, glue=glue, names=tuple(metrics), labels=self.labels)
        self.goal = (self.metrics.keys()[0], "max")
        if both_orders:
            self.order = BothOrders(self.pieces.template)

    @classmethod
    def from_recipe(
        cls, recipe: ClassificationRecipe, model: nn.Module, tokenizer: Tokenizer
    ) -> Classification:
        """The task with its data and a head for its labels, ready to be trained.

        Raises:
            ConfigError: the model is not an encoder, or options do not fit together.
            DataError: the data has fewer than two labels, or a label that is not known.
        """
        data, source = recipe.data, headed(model)
        model, labels, remarks = labelled(source, cls.head, labels_of(recipe))
        model, tokenizer = transformed(model, tokenizer, source)
        task = cls(
            model,
            tokenizer,
            labels=labels,
            label_smoothing=recipe.objective.label_smoothing,
            glue=data.glue,
            metrics=recipe.evaluation.metrics,
            both_orders=recipe.objective.both_orders,
            max_length=data.max_length,
        )
        task.remarks = remarks
        task.aux_lm = AuxiliaryLM.of(model, recipe.objective.aux_lm_weight)
        task.parts = text_parts(task, recipe, task.target)
        return task

    @classmethod
    def problems(cls, recipe: Any) -> Iterator[tuple[str, str]]:
        """Options without effect, or without what they need."""
        yield from super().problems(recipe)
        yield from text_problems(recipe, METRICS)

    @classmethod
    def example(cls, recipe: Any, words: int) -> Any:
        """A batch as the recipe asks for, if every text had `words` tokens: for estimates."""
        return text_example(recipe, super().example(recipe, words * (1 + recipe.data.pairs)))

    def target(self, label: str, file: str, line: int) -> int:
        """The index of a label that stands in this line of a file.

        Raises:
            DataError: the model has no such label.
        """
        if label not in self._index:
            known = ", ".join(self.labels[:10])
            raise DataError(file, line, f"has the label {label!r}, which is none of: {known}.")
        return self._index[label]

    def loss(self, scores: Tensor, batch: Any, targets: Tensor) -> tuple[Tensor, int]:
        """The sum of the cross-entropies in nats, and the number of examples.

        scores: (B, O).  targets: (N,), of all examples.
        """
        wanted = moved(targets[batch.numbers.cpu()], scores.device)
        smoothing = self.label_smoothing if self.model.training else 0.0
        total = F.cross_entropy(scores, wanted, reduction="sum", label_smoothing=smoothing)
        return total, len(batch)

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The metrics, the goal first, and the loss."""
        return (*self.metrics.keys(), "loss")

    def measured(self, valid: Part) -> dict[str, float]:
        """The metrics on the validation data, and the cross-entropy."""
        scores = self.text_scores(valid.rows)
        values = self.metrics.values(self._named(scores.argmax(-1)), self._named(valid.targets))
        return {**values, "loss": float(F.cross_entropy(scores, valid.targets))}

    def predictions(
        self, texts: Sequence[Any], *, too_long: TooLong = "error"
    ) -> list[LabelPrediction]:
        """The label of each text or pair, with the probabilities of all labels."""
        found = []
        for shares in self.text_scores(self.encoded(texts, too_long)).softmax(-1).tolist():
            named = dict(zip(self.labels, shares, strict=True))
            found.append(LabelPrediction(max(named, key=named.__getitem__), named))
        return found

    def evaluate(self, rows: RowReader | Iterable[Sequence[str]]) -> list[Score]:
        """The metrics of the predictions for rows of one text or two and their label."""
        texts, targets = texts_and_targets(rows, self.target)
        self.warn_if_truncated(texts)
        scores = self.text_scores(self.encoded(texts, "truncate"))
        return self.metrics.scores(self._named(scores.argmax(-1)), self._named(targets))

    def _named(self, indices: Tensor) -> list[str]:
        return [self.labels[i] for i in indices.tolist()]

    def samples(self, recipe: ClassificationRecipe) -> list[tuple[str, str, str]]:
        """The first validation rows: (text, predicted label, label)."""
        return text_samples(self, recipe.data)

    def attention_inputs(self, sample: Sequence[str]) -> list[tuple[str, ...]] | None:
        """See `pictured_text`."""
        return pictured_text(self, sample)

    def settings(self) -> dict[str, Any]:
        """What `load` must know beside model and tokenizer."""
        options = {**self.metrics.settings(), "both_orders": isinstance(self.order, BothOrders)}
        return {**super().settings(), **options, "labels": list(self.labels)}

    def published(self) -> dict[str, Any]:
        """The fields of config.json in which other libraries look for labels."""
        return {
            "id2label": dict(enumerate(self.labels)),
            "label2id": self._index,
            "problem_type": "single_label_classification",
        }


def labels_of(recipe: ClassificationRecipe) -> list[str]:
    """The labels of the training rows, in alphabetical order.

    Raises:
        DataError: there are fewer than two.
    """
    data = recipe.data
    rows = data.records("train")
    labels = sorted({row[-1] for row in rows})
    if len(labels) < 2:
        where = f"task {data.glue}" if data.glue else f"column {data.columns[-1]}"
        raise DataError(
            rows.file_of(0),
            None,
            f"has {len(labels)} label ({where}), {labels[0]!r:.40}.",
            "A class is one of at least two. Is it the right column?",
        )
    return labels
