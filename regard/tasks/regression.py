"""A number for a text or for a pair: how similar two sentences are, from 0 to 5 (STS-B)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Unpack

from torch import Tensor, nn
from torch.nn import functional as F

from regard.data import RowReader
from regard.data.encoder_inputs import Texts
from regard.metrics import Scores
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.tasks.batching import TooLong
from regard.tasks.distillation import SoftTargets
from regard.tasks.encoding import EncoderTask, Part, headed, transformed
from regard.tasks.predictions import Prediction
from regard.tasks.texts import (
    OneTargetRecipe,
    TextMetrics,
    TextOptions,
    add_data,
    number_in,
    one_target_options,
    one_target_problems,
    published_labels,
    scores_and_targets,
    soft_targets,
    targets_of,
    text_settings,
    texts_and_targets,
)
from regard.text import Tokenizer

# of cross-encoders -> the class that sentence-transformers names
ACTIVATIONS = {
    "sigmoid": "torch.nn.modules.activation.Sigmoid",
    "identity": "torch.nn.modules.linear.Identity",
}
METRICS = TextMetrics(
    "regression", allowed=("pearson", "spearman"), default=("pearson", "spearman")
)


@dataclass(frozen=True)
class NumberPrediction(Prediction):
    """The number of a text or of a pair."""

    value: float

    def __str__(self) -> str:
        return f"{self.value:.7g}"


class TextRegressor(EncoderTask):
    """A number for a text, or for a pair.

    glue, metrics: see `OneTargetData` and `MetricsSection`.
    activation: of the score of a cross-encoder of sentence-transformers; None: it is none.
    """

    name = "regression"
    head = "classes"
    prediction_type = NumberPrediction
    reads_pairs = True
    Recipe = OneTargetRecipe

    def __init__(
        self,
        module: EncoderWithHeads,
        tokenizer: Tokenizer,
        *,
        glue: str = "",
        metrics: Sequence[str] = (),
        activation: Literal["identity", "sigmoid"] | None = None,
        **options: Unpack[TextOptions],
    ):
        super().__init__(module, tokenizer, **options)
        self.activation = activation
        self.metrics = replace(METRICS, glue=glue, names=tuple(metrics))
        self.metric_names = (*self.metrics.keys(), "loss")
        self.goal = (self.metric_names[0], "max")
        self.soft_targets: SoftTargets | None = None  # in training alone

    @classmethod
    def from_recipe(
        cls, recipe: OneTargetRecipe, model: nn.Module, tokenizer: Tokenizer
    ) -> TextRegressor:
        """The task with its data and a head for one number, ready to be trained.

        Raises:
            ConfigError: the model is not an encoder, or options do not fit together.
            DataError: a target is not a finite number.
        """
        source = headed(model)
        model, tokenizer = transformed(source.with_head(cls.head, 1), tokenizer, source)
        task = cls(model, tokenizer, **one_target_options(recipe))
        add_data(task, recipe, number_in)
        if recipe.teacher is not None:
            task.soft_targets = soft_targets(recipe.teacher, task)
        return task

    @classmethod
    def problems(cls, recipe: Any) -> Iterator[tuple[str, str]]:
        """Options without effect, or without what they need."""
        return one_target_problems(recipe, METRICS)

    def loss(self, scores: Tensor, batch: Any, targets: Tensor) -> tuple[Tensor, int]:
        """The sum of the squared errors, and the number of examples; in training, mixed with the
        loss against a teacher's numbers.

        scores: (B, 1).  targets: (N,), of all examples.
        """
        batch_targets = targets_of(batch, targets, scores)
        total = F.mse_loss(scores[:, 0], batch_targets.to(scores), reduction="sum")
        if self.soft_targets is not None and self.module.training:
            total = self.soft_targets.mixed(total, scores, batch.numbers, classes=False)
        return total, len(batch)

    def identity(self) -> dict[str, str]:
        return {} if self.soft_targets is None else self.soft_targets.teacher.identity()

    def measured(self, valid: Part) -> dict[str, float]:
        """The metrics on the validation data, and the mean squared error."""
        scores = self.text_scores(valid.inputs)[:, 0]
        values = self.metrics.values(scores.tolist(), valid.targets.tolist())
        return {**values, "loss": float(F.mse_loss(scores, valid.targets.to(scores)))}

    def _predictions(
        self, texts: Sequence[Any], *, too_long: TooLong = "error"
    ) -> list[NumberPrediction]:
        """The number of each text or pair."""
        scores = self.text_scores(self.encoded(texts, too_long))
        return [NumberPrediction(value) for value in self._numbers(scores)]

    def _numbers(self, scores: Tensor) -> list[float]:
        """The numbers that the head's scores (N, 1) stand for."""
        numbers = scores[:, 0].sigmoid() if self.activation == "sigmoid" else scores[:, 0]
        return numbers.tolist()

    def read_to_evaluate(self, rows: Any) -> tuple[list[Texts], Tensor]:
        """The texts of rows of one text or two and their target, and the targets (N,)."""
        return texts_and_targets(rows, number_in)

    def evaluate(
        self, rows: RowReader | Iterable[Sequence[str]], *, columns: Sequence[int | str] = ()
    ) -> Scores:
        """The metrics of the predictions for rows of one text or two and their number.

        columns: of texts and number in a table, where their names do not say which they are.
        """
        scores, targets = scores_and_targets(self, self.with_columns(rows, columns))
        return Scores(self.metrics.scores(self._numbers(scores), targets.tolist()))

    def settings(self) -> dict[str, Any]:
        """What `load` must know beside model and tokenizer."""
        activation = {} if self.activation is None else {"activation": self.activation}
        return {**text_settings(self), **self.metrics.settings(), **activation}

    def published(self) -> dict[str, Any]:
        """The fields of config.json in which other libraries look for the kind of the head."""
        fields = published_labels(self.module.labels[:1] or ("LABEL_0",), "regression")
        if self.activation is not None:
            fields["sentence_transformers"] = {"activation_fn": ACTIVATIONS[self.activation]}
        return fields
