"""A number for a text or for a pair: how alike two sentences are, from 0 to 5 (STS-B)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from regard.errors import DataError
from regard.tasks.batching import TooLong
from regard.tasks.encoding import EncoderRecipe, headed
from regard.tasks.predictions import Prediction
from regard.tasks.texts import MetricsSection, TextObjective, TextsData, TextTask
from regard.tasks.transformations import transformed
from regard.text import Tokenizer


class RegressionRecipe(EncoderRecipe):
    """A recipe's sections besides [model] and [training]."""

    data: TextsData
    objective: TextObjective = TextObjective()
    evaluation: MetricsSection = MetricsSection()


@dataclass(frozen=True)
class NumberPrediction(Prediction):
    """The number of a text or of a pair."""

    value: float

    def __str__(self) -> str:
        return f"{self.value:.7g}"


class Regression(TextTask):
    """A number for a text, or for a pair."""

    name = "regression"
    prediction_type = NumberPrediction
    Recipe = RegressionRecipe
    KNOWN = ("pearson", "spearman")
    DEFAULT = ("pearson", "spearman")

    @classmethod
    def from_recipe(cls, recipe: Any, model: Any, tokenizer: Tokenizer) -> Any:
        """The task with its data and a head for one number, ready to be trained."""
        source = headed(model)
        model, tokenizer = transformed(source.with_head(cls.head, 1), tokenizer, source)
        task = cls(
            model,
            tokenizer,
            glue=recipe.data.glue,
            metrics=recipe.evaluation.metrics,
            both_orders=recipe.objective.both_orders,
            max_length=recipe.data.max_length,
        )
        task.begin(recipe)
        return task

    def target(self, text: str, file: str, line: int) -> float:
        """The number that a field holds.

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

    def errors(self, scores: Tensor, targets: Tensor) -> Tensor:
        """Squared errors, (N,)."""
        return F.mse_loss(scores[:, 0], targets.to(scores), reduction="none")

    def predictions(
        self, texts: Sequence[Any], *, too_long: TooLong = "error"
    ) -> list[NumberPrediction]:
        """The number of each text or pair."""
        scores = self.text_scores(self.encoded(texts, too_long))
        return [NumberPrediction(value) for value in scores[:, 0].tolist()]

    @staticmethod
    def value(answer: NumberPrediction) -> float:
        """The number."""
        return answer.value

    def answered(self, scores: Tensor, targets: Tensor) -> tuple[list[float], list[float]]:
        """Numbers."""
        return scores[:, 0].tolist(), targets.tolist()

    def published(self) -> dict[str, Any]:
        """What config.json says of the answer where other libraries read it."""
        (name,) = self.model.labels or ("LABEL_0",)
        return {
            "id2label": {0: name},
            "label2id": {name: 0},
            "problem_type": "regression",
        }
