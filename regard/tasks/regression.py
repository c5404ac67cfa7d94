"""A number for a text or for a pair: how similar two sentences are, from 0 to 5 (STS-B)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from regard.data import RowReader
from regard.data.batches import moved
from regard.data.encoder_inputs import Texts, Truncation
from regard.errors import DataError
from regard.metrics import Score
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.tasks.batching import TooLong
from regard.tasks.encoding import AuxiliaryLM, EncoderTask, Part, headed
from regard.tasks.pair_order import BothOrders
from regard.tasks.predictions import Prediction
from regard.tasks.texts import (
    TextMetrics,
    TextRecipe,
    text_example,
    text_options,
    text_parts,
    text_problems,
    texts_and_targets,
)
from regard.tasks.transformations import transformed
from regard.text import Tokenizer

METRICS = TextMetrics("regression", known=("pearson", "spearman"), default=("pearson", "spearman"))


@dataclass(frozen=True)
class NumberPrediction(Prediction):
    """The number of a text or of a pair."""

    value: float

    def __str__(self) -> str:
        return f"{self.value:.7g}"


class Regression(EncoderTask):
    """A number for a text, or for a pair.

    glue, metrics: see `TextsData` and `MetricsSection`.  both_orders: see `TextObjective`.
    """

    name = "regression"
    head = "classes"
    prediction_type = NumberPrediction
    reads_pairs = True
    Recipe = TextRecipe

    def __init__(
        self,
        model: EncoderWithHeads,
        tokenizer: Tokenizer,
        *,
        glue: str = "",
        metrics: Sequence[str] = (),
        both_orders: bool = False,
        max_length: int | None = None,
        truncation: Truncation = "longest_first",
    ):
        super().__init__(model, tokenizer, max_length=max_length, truncation=truncation)
        self.metrics = replace(METRICS, glue=glue, names=tuple(metrics))
        self.metric_names = (*self.metrics.keys(), "loss")
        self.goal = (self.metric_names[0], "max")
        if both_orders:
            self.order = BothOrders(self.input_format.template)

    @classmethod
    def from_recipe(cls, recipe: TextRecipe, model: nn.Module, tokenizer: Tokenizer) -> Regression:
        """The task with its data and a head for one number, ready to be trained.

        Raises:
            ConfigError: the model is not an encoder, or options do not fit together.
            DataError: a target is not a finite number.
        """
        source = headed(model)
        model, tokenizer = transformed(source.with_head(cls.head, 1), tokenizer, source)
        task = cls(model, tokenizer, **text_options(recipe))
        task.aux_lm = AuxiliaryLM.of(model, recipe.objective.aux_lm_weight)
        task.parts = text_parts(task, recipe, number_in)
        return task

    @classmethod
    def problems(cls, recipe: Any) -> Iterator[tuple[str, str]]:
        """Options without effect, or without what they need."""
        return text_problems(recipe, METRICS)

    example = staticmethod(text_example)

    def loss(self, scores: Tensor, batch: Any, targets: Tensor) -> tuple[Tensor, int]:
        """The sum of the squared errors, and the number of examples.

        scores: (B, 1).  targets: (N,), of all examples.
        """
        wanted = moved(targets[batch.numbers.cpu()], scores.device)
        return F.mse_loss(scores[:, 0], wanted.to(scores), reduction="sum"), len(batch)

    def measured(self, valid: Part) -> dict[str, float]:
        """The metrics on the validation data, and the mean squared error."""
        scores = self.text_scores(valid.inputs)[:, 0]
        values = self.metrics.values(scores.tolist(), valid.targets.tolist())
        return {**values, "loss": float(F.mse_loss(scores, valid.targets.to(scores)))}

    def predictions(
        self, texts: Sequence[Any], *, too_long: TooLong = "error"
    ) -> list[NumberPrediction]:
        """The number of each text or pair."""
        scores = self.text_scores(self.encoded(texts, too_long))
        return [NumberPrediction(value) for value in scores[:, 0].tolist()]

    def read_to_evaluate(self, rows: Any) -> tuple[list[Texts], Tensor]:
        """The texts of rows of one text or two and their target, and the targets (N,)."""
        return texts_and_targets(rows, number_in)

    def evaluate(self, rows: RowReader | Iterable[Sequence[str]]) -> list[Score]:
        """The metrics of the predictions for rows of one text or two and their number."""
        texts, targets = self.read_to_evaluate(rows)
        self.warn_if_truncated(texts)
        scores = self.text_scores(self.encoded(texts, "truncate"))
        return self.metrics.scores(scores[:, 0].tolist(), targets.tolist())

    def settings(self) -> dict[str, Any]:
        """What `load` must know beside model and tokenizer."""
        options = {**self.metrics.settings(), "both_orders": isinstance(self.order, BothOrders)}
        options["truncation"] = self.input_format.truncation
        return {**super().settings(), **options}

    def published(self) -> dict[str, Any]:
        """The fields of config.json in which other libraries look for the kind of the head."""
        (name,) = self.model.labels or ("LABEL_0",)
        return {"id2label": {0: name}, "label2id": {name: 0}, "problem_type": "regression"}


def number_in(text: str, file: str, line: int) -> float:
    """The number that a field in this line of a file holds.

    Raises:
        DataError: it holds none, or one that is not finite.
    """
    try:
        number = float(text)
    except ValueError:
        raise DataError(file, line, f"has {text!r:.60} where a number should be.") from None
    if not math.isfinite(number):
        raise DataError(file, line, f"has {text!r}, but a target must be finite.")
    return number
