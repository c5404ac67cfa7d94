"""Whether one text follows another, BERT's second pre-training objective (section 3.1).

The head comes with published weights (`BertForNextSentencePrediction`) and is not trained here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from regard.errors import TextError
from regard.tasks.batching import TooLong
from regard.tasks.encoding import EncoderTask
from regard.tasks.inputs import pairs_of
from regard.tasks.predictions import Prediction

FOLLOWS = 0  # the index of "follows" in the head's two scores, in all published files


@dataclass(frozen=True)
class NextSentencePrediction(Prediction):
    """Whether the second text follows the first, and the probability that it does."""

    follows: bool
    probability: float

    def __str__(self) -> str:
        return f"{'follows' if self.follows else 'does not follow'} ({self.probability:.4f})"


class NextSentencePredictor(EncoderTask):
    """Predicts whether one text follows another."""

    name = "next-sentence"
    prediction_type: ClassVar[type[NextSentencePrediction]] = NextSentencePrediction
    commands = ("predict", "embed", "look")
    reads_pairs = True
    head = "next_sentence"

    def follows(self, first: Any, second: Any, *, too_long: TooLong = "error") -> Any:
        pairs = pairs_of(first, second)
        predictions = self.predict(pairs, return_proba=True, too_long=too_long)
        return (
            predictions.probability
            if isinstance(pairs, tuple)
            else [prediction.probability for prediction in predictions]
        )

    def _predictions(
        self, pairs: Sequence[Any], *, too_long: TooLong = "error"
    ) -> list[NextSentencePrediction]:
        """Whether the second text of each pair follows the first, with the probability."""
        scores = self.text_scores(self.encoded(pairs, too_long))  # (pairs, 2)
        probabilities = scores.softmax(-1)[:, FOLLOWS].tolist()
        return [
            self.prediction_type(probability >= 0.5, probability) for probability in probabilities
        ]

    def checked(self, texts: Any) -> list[Any]:
        """Pairs of texts.

        Raises:
            TextError: an item is one text.
        """
        pairs = super().checked(texts)
        for index, pair in enumerate(pairs):
            if len(pair) != 2:
                hint = "Whether a text follows is asked of two: give a pair (a, b)."
                raise TextError(index, f"is one text, {pair[0]!r:.80}.", hint)
        return pairs


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
