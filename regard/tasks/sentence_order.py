"""Whether two neighbouring texts stand in their order, ALBERT's second objective (Lan et al. 2020).

The head comes with published weights (`AlbertForPreTraining`) and is not trained here.
"""

from __future__ import annotations

from dataclasses import dataclass

from regard.tasks.next_sentence import NextSentence, NextSentencePrediction


@dataclass(frozen=True)
class SentenceOrderPrediction(NextSentencePrediction):
    """Whether the second text follows the first, and the probability that it does."""

    def __str__(self) -> str:
        return f"{'in order' if self.follows else 'exchanged'} ({self.probability:.4f})"


class SentenceOrder(NextSentence):
    """Predicts whether of two neighbouring texts the second follows the first."""

    name = "sentence-order"
    prediction_type = SentenceOrderPrediction
    head = "sentence_order"
