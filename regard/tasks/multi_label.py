"""The labels of a text or of a pair of texts, any number of them.

Other libraries have such heads as `problem_type` multi_label_classification. The head
comes with published weights and is not trained here.
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

THRESHOLD = 0.5  # a label at least as probable as this is predicted


@dataclass(frozen=True)
class LabelsPrediction(Prediction):
    """The labels that are more probable than not, and the probability of each label."""

    labels: list[str]
    probabilities: dict[str, float]

    def __str__(self) -> str:
        return ", ".join(self.labels) or "(no label)"


class MultiLabel(EncoderTask):
    """Predicts for each label whether a text, or a pair, has it.

    labels: in the order of the head's scores.
    """

    name = "multi-label-classification"
    prediction_type = LabelsPrediction
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
    ) -> list[LabelsPrediction]:
        """The labels of each text or pair, with the probabilities of all labels."""
        found = []
        for shares in self.text_scores(self.encoded(texts, too_long)).sigmoid().tolist():
            named = dict(zip(self.labels, shares, strict=True))
            likely = [label for label, share in named.items() if share >= THRESHOLD]
            found.append(LabelsPrediction(likely, named))
        return found

    def settings(self) -> dict[str, Any]:
        """What `load` must know beside model and tokenizer."""
        return {**super().settings(), "labels": list(self.labels)}

    def published(self) -> dict[str, Any]:
        """The fields of config.json in which other libraries look for labels."""
        return {
            "id2label": dict(enumerate(self.labels)),
            "label2id": {label: i for i, label in enumerate(self.labels)},
            "problem_type": "multi_label_classification",
        }
