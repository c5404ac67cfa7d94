"""Sentence order prediction: whether two neighbouring texts are in order or swapped.

ALBERT's second pre-training objective (Lan et al. 2020, section 3.1).

The head comes with published weights (`AlbertForPreTraining`) and is not trained here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from regard.tasks.batching import TooLong
from regard.tasks.encoding import EncoderTask
from regard.tasks.next_sentence import checked_pairs, following_probabilities
from regard.tasks.predictions import Prediction


@dataclass(frozen=True)
class SentenceOrderPrediction(Prediction):
    """Whether the second text follows the first, and the probability that it does."""

    follows: bool
    probability: float

    def __str__(self) -> str:
        return f"{'in order' if self.follows else 'swapped'} ({self.probability:.4f})"


class SentenceOrder(EncoderTask):
    """Predicts whether of two neighbouring texts the second follows the first."""

    name = "sentence-order"
    prediction_type = SentenceOrderPrediction
    verbs = ("predict", "embed", "look")
    reads_pairs = True
    head = "sentence_order"

    def follows(self, first: str, second: str, *, too_long: TooLong = "error") -> float:
        """The probability that the second text follows the first."""
        return self.predictions([(first, second)], too_long=too_long)[0].probability

    def predictions(
        self, pairs: Sequence[Any], *, too_long: TooLong = "error"
    ) -> list[SentenceOrderPrediction]:
        """Whether the second text of each pair follows the first, with the probability."""
        found = following_probabilities(self, pairs, too_long)
        return [SentenceOrderPrediction(one >= 0.5, one) for one in found]

    def checked(self, texts: Any) -> list[Any]:
        """Pairs of texts.

        Raises:
            TextError: an item is one text.
        """
        return checked_pairs(super().checked(texts))
