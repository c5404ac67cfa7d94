"""Sentence order prediction: whether two neighbouring texts are in order or swapped.

ALBERT's second pre-training objective (Lan et al. 2020, section 3.1).

The head comes with published weights (`AlbertForPreTraining`) and is not trained here.
"""

from __future__ import annotations

from dataclasses import dataclass

from regard.tasks.next_sentence import NextSentencePrediction, NextSentencePredictor


@dataclass(frozen=True)
class SentenceOrderPrediction(NextSentencePrediction):
    """Whether two neighbouring texts are in order, and the probability that they are."""

    def __str__(self) -> str:
        return f"{'in order' if self.follows else 'swapped'} ({self.probability:.4f})"


class SentenceOrderPredictor(NextSentencePredictor):
    """Predicts whether of two neighbouring texts the second follows the first."""

    name = "sentence-order"
    prediction_type = SentenceOrderPrediction
    head = "sentence_order"
