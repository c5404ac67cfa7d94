"""Whether one text follows another, as BERT was asked in its pre-training (section 3.1).

The head comes with published weights (`BertForNextSentencePrediction`); nothing trains it here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from regard.errors import TextError
from regard.tasks.batching import TooLong
from regard.tasks.encoding import Answering
from regard.tasks.inputs import is_single
from regard.tasks.predictions import Prediction

FOLLOWS = 0  # of the head's two answers, in all published files


@dataclass(frozen=True)
class NextSentencePrediction(Prediction):
    """Whether the second text follows the first, and the probability that it does."""

    follows: bool
    probability: float

    def __str__(self) -> str:
        return f"{'follows' if self.follows else 'does not follow'} ({self.probability:.4f})"


class NextSentence(Answering):
    """A model that tells texts which follow one another from texts that do not."""

    name = "next-sentence"
    prediction_type = NextSentencePrediction
    verbs = ("predict", "embed", "look")
    reads_pairs = True
    head = "next_sentence"

    def follows(self, first: str, second: str, *, too_long: TooLong = "error") -> float:
        """The probability that the second text follows the first."""
        return self.predictions([(first, second)], too_long=too_long)[0].probability

    def predict(self, pairs: Any, *, too_long: TooLong = "error") -> list[bool] | bool:
        """Whether the second text of each pair follows the first: a list for a list, one for one.

        A pair is a tuple of two texts.
        """
        if is_single(pairs):
            return self.predictions([pairs], too_long=too_long)[0].follows
        return [answer.follows for answer in self.predictions(pairs, too_long=too_long)]

    def predictions(
        self, pairs: Sequence[Any], *, too_long: TooLong = "error"
    ) -> list[NextSentencePrediction]:
        """The same, with the probability that it follows.

        Raises:
            TextError: something is one text and no pair.
        """
        scores = self.text_scores(self.encoded(pairs, too_long))
        found = scores.softmax(-1)[:, FOLLOWS].tolist()
        return [NextSentencePrediction(share >= 0.5, share) for share in found]

    def checked(self, texts: Any) -> list[Any]:
        """Pairs of texts."""
        found = super().checked(texts)
        for place, pair in enumerate(found):
            if len(pair) != 2:
                hint = "Whether a text follows is asked of two: give a pair (a, b)."
                raise TextError(place, f"is one text, {pair[0]!r:.80}.", hint)
        return found
