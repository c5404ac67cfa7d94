"""The class of a text or of a pair of texts, by name.

Labels go by name from the file to the prediction: their order is that of the model whose head goes
on answering them, else the alphabet's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from regard.errors import ConfigError, DataError
from regard.metrics import F1
from regard.models.headed import Headed
from regard.tasks.batching import TooLong
from regard.tasks.encoding import EncoderRecipe, headed, labelled
from regard.tasks.predictions import Prediction
from regard.tasks.texts import MetricsSection, TextObjective, TextsData, TextTask, rows_of
from regard.tasks.transformations import transformed
from regard.text import Tokenizer


class ClassificationObjective(TextObjective):
    """[objective]"""

    label_smoothing: float = Field(default=0.0, ge=0, lt=1)


class ClassificationRecipe(EncoderRecipe):
    """A recipe's sections besides [model] and [training]."""

    data: TextsData
    objective: ClassificationObjective = ClassificationObjective()
    evaluation: MetricsSection = MetricsSection()


@dataclass(frozen=True)
class LabelPrediction(Prediction):
    """The best label, and the probability of each."""

    label: str
    probabilities: dict[str, float]

    def __str__(self) -> str:
        return self.label


class Classification(TextTask):
    """One of several classes for a text, or for a pair."""

    name = "classification"
    prediction_type = LabelPrediction
    Recipe = ClassificationRecipe
    KNOWN = ("accuracy", "f1", "macro-f1", "matthews")
    DEFAULT = ("accuracy",)

    def __init__(
        self,
        model: Headed,
        tokenizer: Tokenizer,
        *,
        labels: Sequence[str],
        label_smoothing: float = 0.0,
        **options: Any,
    ):
        self.labels, self.label_smoothing = tuple(labels), label_smoothing
        self._number = {label: i for i, label in enumerate(self.labels)}
        super().__init__(model, tokenizer, **options)

    @classmethod
    def from_recipe(cls, recipe: Any, model: Any, tokenizer: Tokenizer) -> Any:
        """The task with its data and a head for its labels, ready to be trained."""
        data, source = recipe.data, headed(model)
        model, labels, remarks = labelled(source, cls.head, labels_of(data))
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
        task.begin(recipe, remarks)
        return task

    def target(self, label: str, file: str, line: int) -> int:
        """The number of a label.

        Raises:
            DataError: the model has no such label.
        """
        if label not in self._number:
            known = ", ".join(self.labels[:10])
            raise DataError(file, line, f"has the label {label!r}, which is none of: {known}.")
        return self._number[label]

    def errors(self, scores: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy in nats, (N,); smoothed only where the model learns."""
        smoothing = self.label_smoothing if self.model.training else 0.0
        return F.cross_entropy(scores, targets, reduction="none", label_smoothing=smoothing)

    def predictions(
        self, texts: Sequence[Any], *, too_long: TooLong = "error"
    ) -> list[LabelPrediction]:
        """The label of each text or pair, with the probabilities of all labels."""
        scores = self.text_scores(self.encoded(texts, too_long))
        found = []
        for row in scores.softmax(-1).tolist():
            named = dict(zip(self.labels, row, strict=True))
            found.append(LabelPrediction(max(named, key=named.__getitem__), named))
        return found

    @staticmethod
    def value(answer: LabelPrediction) -> str:
        """The label."""
        return answer.label

    def answered(self, scores: Tensor, targets: Tensor) -> tuple[list[str], list[str]]:
        """Labels by name."""
        found = [self.labels[i] for i in scores.argmax(-1).tolist()]
        return found, [self.labels[i] for i in targets.tolist()]

    def metric(self, name: str) -> Any:
        """`f1` is that of the last of two labels, which is the positive one ("0" and "1")."""
        if name != "f1":
            return super().metric(name)
        if len(self.labels) != 2:
            raise ConfigError(
                f"[evaluation] `f1` is of the positive one of two labels, but there are "
                f"{len(self.labels)}. Choose macro-f1, the mean over all of them."
            )
        return F1(self.labels[-1], labels=self.labels)

    def settings(self) -> dict[str, Any]:
        """What `load` must know beside model and tokenizer."""
        return {**super().settings(), "labels": list(self.labels)}

    def published(self) -> dict[str, Any]:
        """What config.json says of the labels where other libraries read it."""
        return {
            "id2label": dict(enumerate(self.labels)),
            "label2id": self._number,
            "problem_type": "single_label_classification",
        }


def labels_of(data: TextsData) -> list[str]:
    """The labels of the training rows, in the alphabet's order.

    Raises:
        DataError: there are fewer than two.
    """
    rows = rows_of(data, "train")
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
