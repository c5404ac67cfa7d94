"""Several numbers for a text or for a pair of texts.

The head comes with published weights and is not trained here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from regard.models.encoder_with_heads import EncoderWithHeads
from regard.tasks.batching import TooLong
from regard.tasks.encoding import EncoderTask
from regard.tasks.predictions import Prediction
from regard.text import Tokenizer


@dataclass(frozen=True)
class NumbersPrediction(Prediction):
    """The numbers of a text or of a pair, by name."""

    numbers: dict[str, float]

    def __str__(self) -> str:
        return ", ".join(f"{name} {number:.7g}" for name, number in self.numbers.items())


class MultiRegression(EncoderTask):
    """Predicts several numbers for a text, or for a pair.

    labels: the names of the numbers, in the order of the head's scores.
    """

    name = "multi-regression"
    prediction_type = NumbersPrediction
    verbs = ("predict", "embed", "look")
    reads_pairs = True
    head = "classes"

    def __init__(
        self,
        model: EncoderWithHeads,
        tokenizer: Tokenizer,
        *,
        labels: Sequence[str],
        max_length: int | None = None,
    ):
        super().__init__(model, tokenizer, max_length=max_length)
        self.labels = tuple(labels)

    def predictions(
        self, texts: Sequence[Any], *, too_long: TooLong = "error"
    ) -> list[NumbersPrediction]:
        """The numbers of each text or pair."""
        rows = self.text_scores(self.encoded(texts, too_long)).tolist()
        return [NumbersPrediction(dict(zip(self.labels, row, strict=True))) for row in rows]

    def settings(self) -> dict[str, Any]:
        """What `load` must know beside model and tokenizer."""
        return {**super().settings(), "labels": list(self.labels)}

    def published(self) -> dict[str, Any]:
        """The fields of config.json in which other libraries look for the kind of the head."""
        return {
            "id2label": dict(enumerate(self.labels)),
            "label2id": {label: i for i, label in enumerate(self.labels)},
            "problem_type": "regression",
        }
