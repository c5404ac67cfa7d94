"""The class of a text or of a pair of texts, by name.

Labels have names from the file to the prediction. Their order is that of the model's own head where
that head is kept, otherwise alphabetical.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Unpack

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from regard.data import RowReader
from regard.data.batches import moved
from regard.data.encoder_inputs import Texts
from regard.errors import ConfigError, DataError
from regard.metrics import Scores
from regard.metrics.score import ClassReport
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.suggest import nearest
from regard.tasks.batching import TooLong
from regard.tasks.distillation import SoftTargets
from regard.tasks.encoding import EncoderTask, Part, headed, labelled, report_by_label, transformed
from regard.tasks.predictions import Prediction
from regard.tasks.texts import (
    OneTargetRecipe,
    TextMetrics,
    TextObjective,
    TextOptions,
    add_data,
    one_target_options,
    one_target_problems,
    probabilities_of_labels,
    published_labels,
    scores_and_targets,
    soft_targets,
    targets_of,
    text_settings,
    texts_and_targets,
)
from regard.text import Tokenizer

METRICS = TextMetrics(
    "classification", allowed=("accuracy", "f1", "macro-f1", "matthews"), default=("accuracy",)
)

FEWEST_TO_REMARK = 20  # examples; of fewer, many labels may well have one each


class ClassificationObjective(TextObjective):
    """[objective]"""

    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """This share of the target's probability is spread over all labels or tokens."""
    class_weights: Literal["", "balanced"] | dict[str, Annotated[float, Field(ge=0)]] = ""
    """Weights of the labels in the training loss: "balanced", the inverse of their frequency, or by
    name, 1 for others. They are scaled so that their mean over the training examples is 1."""


class ClassificationRecipe(OneTargetRecipe):
    """A recipe's sections besides [model] and [training]."""

    objective: ClassificationObjective = ClassificationObjective()


@dataclass(frozen=True)
class LabelPrediction(Prediction):
    """The most probable label, and the probability of each label."""

    label: str
    probabilities: dict[str, float]


class TextClassifier(EncoderTask):
    """One of several classes for a text, or for a pair.

    labels: in the order of the head's scores.
    glue, metrics: see `OneTargetData` and `MetricsSection`.
    """

    name = "classification"
    head = "classes"
    prediction_type = LabelPrediction
    reads_pairs = True
    Recipe = ClassificationRecipe
    class_weights: Tensor | None  # (O,)

    def __init__(
        self,
        module: EncoderWithHeads,
        tokenizer: Tokenizer,
        *,
        labels: Sequence[str],
        glue: str = "",
        metrics: Sequence[str] = (),
        **options: Unpack[TextOptions],
    ):
        super().__init__(module, tokenizer, **options)
        self.labels = tuple(labels)
        self._index = {label: i for i, label in enumerate(self.labels)}
        self.metrics = replace(METRICS, glue=glue, names=tuple(metrics), labels=self.labels)
        self.metric_names = (*self.metrics.keys(), "loss")
        self.goal = (self.metric_names[0], "max")
        # in training alone
        self.label_smoothing, self.class_weights = 0.0, None
        self.soft_targets: SoftTargets | None = None

    @classmethod
    def from_recipe(
        cls, recipe: ClassificationRecipe, model: nn.Module, tokenizer: Tokenizer
    ) -> TextClassifier:
        """The task with its data and a head for its labels, ready to be trained.

        Raises:
            ConfigError: the model is not an encoder, or options do not fit together.
            DataError: the data has fewer than two labels, or a label that is not known.
        """
        source = headed(model)
        counts = label_counts(recipe)
        model, labels, remarks = labelled(source, cls.head, sorted(counts))
        model, tokenizer = transformed(model, tokenizer, source)
        task = cls(model, tokenizer, labels=labels, **one_target_options(recipe))
        task.remarks = [*remarks, *remark_on_single_labels(counts)]
        add_data(task, recipe, task.target)
        objective, targets = recipe.objective, task._parts().train.targets
        task.label_smoothing = objective.label_smoothing
        task.class_weights = class_weights(objective.class_weights, task.labels, targets)
        if recipe.teacher is not None:
            task.soft_targets = soft_targets(recipe.teacher, task)
        return task

    @classmethod
    def problems(cls, recipe: Any) -> Iterator[tuple[str, str]]:
        """Options without effect, or without what they need."""
        return one_target_problems(recipe, METRICS)

    def target(self, label: str, file: str, line: int) -> int:
        """The index of a label that stands in this line of a file.

        Raises:
            DataError: the model has no such label.
        """
        if label not in self._index:
            problem = f"has the label {label!r}, which is none of: {', '.join(self.labels[:10])}."
            raise DataError(file, line, problem)
        return self._index[label]

    def loss(self, scores: Tensor, batch: Any, targets: Tensor) -> tuple[Tensor, int]:
        """The sum of the cross-entropies in nats, and the number of examples; in training, mixed
        with the loss against a teacher's logits.

        scores: (B, O).  targets: (N,), of all examples.
        """
        learning = self.module.training
        weights = None if self.class_weights is None or not learning else self.class_weights
        total = F.cross_entropy(
            scores,
            targets_of(batch, targets, scores),
            weight=None if weights is None else moved(weights, scores.device),
            reduction="sum",
            label_smoothing=self.label_smoothing if learning else 0.0,
        )
        if self.soft_targets is not None and learning:
            total = self.soft_targets.mixed(total, scores, batch.numbers, classes=True)
        return total, len(batch)

    def identity(self) -> dict[str, str]:
        return {} if self.soft_targets is None else self.soft_targets.teacher.identity()

    def measured(self, valid: Part) -> dict[str, float]:
        """The metrics on the validation data, and the cross-entropy."""
        scores = self.text_scores(valid.inputs)
        values = self.metrics.values(self._named(scores.argmax(-1)), self._named(valid.targets))
        return {**values, "loss": float(F.cross_entropy(scores, valid.targets))}

    predict_proba = probabilities_of_labels

    def _predictions(
        self, texts: Sequence[Any], *, too_long: TooLong = "error"
    ) -> list[LabelPrediction]:
        """The label of each text or pair, with the probabilities of all labels."""
        predictions = []
        for shares in self.text_scores(self.encoded(texts, too_long)).softmax(-1).tolist():
            probabilities = dict(zip(self.labels, shares, strict=True))
            predictions.append(
                LabelPrediction(max(probabilities, key=probabilities.__getitem__), probabilities)
            )
        return predictions

    def read_to_evaluate(self, rows: Any) -> tuple[list[Texts], Tensor]:
        """The texts of rows of one text or two and their target, and the targets (N,)."""
        return texts_and_targets(rows, self.target)

    def evaluate(
        self, rows: RowReader | Iterable[Sequence[str]], *, columns: Sequence[int | str] = ()
    ) -> Scores:
        """The metrics of the predictions for rows of one text or two and their label.

        The first score has a `ClassReport`.

        columns: of texts and label in a table, where their names do not say which they are.
        """
        scores, targets = scores_and_targets(self, self.with_columns(rows, columns))
        report = ClassReport.of(scores.softmax(-1).numpy(), targets.numpy(), self.labels)
        metric_scores = self.metrics.scores(self._named(scores.argmax(-1)), self._named(targets))
        return Scores([replace(metric_scores[0], report=report), *metric_scores[1:]])

    classification_report = report_by_label

    def _named(self, indices: Tensor) -> list[str]:
        return [self.labels[i] for i in indices.tolist()]

    def settings(self) -> dict[str, Any]:
        """What `load` must know beside model and tokenizer."""
        return {**text_settings(self), **self.metrics.settings(), "labels": list(self.labels)}

    def published(self) -> dict[str, Any]:
        """The fields of config.json in which other libraries look for labels."""
        return published_labels(self.labels, "single_label_classification")


def class_weights(
    chosen: str | Mapping[str, float], labels: Sequence[str], targets: Tensor
) -> Tensor | None:
    """The weights (O,) of the labels, with the mean 1 over the targets (N,); None where all are 1.

    "balanced" is N / (O' n) for a label with n of the N targets, O' being the labels that occur, as
    in scikit-learn.

    Raises:
        ConfigError: a weight is of no label, or no target has a weight above 0.
    """
    if not chosen:
        return None
    counts = torch.bincount(targets, minlength=len(labels)).double()
    if isinstance(chosen, str):
        weights = torch.where(counts > 0, 1 / counts.clamp(min=1), 0.0)
    else:
        for name in chosen:
            if name not in labels:
                hint = nearest(name, labels)
                raise ConfigError(f"[objective] `class_weights` has no label {name!r}. {hint}")
        weights = torch.tensor([chosen.get(label, 1.0) for label in labels], dtype=torch.double)
    mean = (weights * counts).sum() / counts.sum()
    if not mean > 0:
        raise ConfigError("[objective] `class_weights` are 0 for every training example.")
    return (weights / mean).float()


def remark_on_single_labels(counts: Counter[str]) -> list[str]:
    """A remark where most examples have a label of their own, as where a text is read as the label.

    counts: of the training examples of each label.
    """
    single, total = sum(count == 1 for count in counts.values()), counts.total()
    if total < FEWEST_TO_REMARK or single <= total / 2:
        return []
    return [
        f"{single:,} of {total:,} examples have a label that no other has: are the columns in the "
        "order text, label?"
    ]


def label_counts(recipe: ClassificationRecipe) -> Counter[str]:
    """The labels of the training rows, and how many rows have each.

    Raises:
        DataError: there are fewer than two.
    """
    data = recipe.data
    rows = data.read(data.train, "train")  # of which `valid` may be a share
    labels = Counter[str]()
    for line, row in rows.numbered():
        if not row[-1].strip():
            raise DataError(
                rows.file_of(0), line, "the label is empty.", "Give it, or drop the row."
            )
        labels[row[-1]] += 1
    if len(labels) < 2:
        where = f"task {data.glue}" if data.glue else f"column {data.columns[-1]}"
        raise DataError(
            rows.file_of(0),
            None,
            f"has {len(labels)} label ({where}), {next(iter(labels))!r:.40}.",
            "A class is one of at least two. Is it the right column?",
        )
    return labels
