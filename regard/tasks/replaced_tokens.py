"""Which words of a text were put in place of others, ELECTRA's objective (Clark et al. 2020).

    found = load("electra").predictions(["the chef ate the meal"])[0]
    found.replaced                          the words that are probably not the original ones
    found.words, found.probabilities        of every word, that it was replaced

The head comes with published discriminators (`ElectraForPreTraining`) and is not trained here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from regard.errors import TextError
from regard.tasks.batching import TooLong
from regard.tasks.encoding import EncoderTask
from regard.tasks.inputs import as_list, checked_text
from regard.tasks.predictions import Prediction
from regard.text.encoding import Encoding
from regard.text.word_spans import WordSpans


@dataclass(frozen=True)
class ReplacedTokens(Prediction):
    """The words that were probably replaced, and for every word and every token the probability.

    The probability of a word is the largest of its tokens. Words behind the tokens that the model
    reads are left out.
    """

    replaced: tuple[str, ...]
    words: tuple[str, ...]
    probabilities: tuple[float, ...]
    tokens: tuple[str, ...]
    token_probabilities: tuple[float, ...]

    @property
    def result(self) -> list[str]:
        """The words that were probably replaced."""
        return list(self.replaced)

    def __str__(self) -> str:
        pairs = zip(self.words, self.probabilities, strict=True)
        return " ".join(f"{word}/{probability:.2f}" for word, probability in pairs)


class ReplacedTokenDetection(EncoderTask):
    """Tells for each token whether it stands in place of another."""

    name = "replaced-tokens"
    prediction_type = ReplacedTokens
    verbs = ("predict", "embed", "look")
    head = "replaced"

    def predictions(
        self, texts: Sequence[str], *, too_long: TooLong = "error"
    ) -> list[ReplacedTokens]:
        """For each text the probability of each word and token that it was replaced."""
        texts = as_list(texts)
        found: list[Any] = [None] * len(texts)
        inputs = self.encode(self.checked(texts))
        for batch, scores in self.passes(self.encoded(texts, too_long)):
            probabilities = scores[:, :, 0].sigmoid()
            for row, number in enumerate(batch.numbers.tolist()):
                one = self.input_format.truncate(inputs[number])
                start, count = one.starts[0], one.counts[0]
                encoding = self._tokens_read(texts[number], count)
                found[number] = _prediction(
                    texts[number], encoding, probabilities[row, start:][:count]
                )
        return found

    def checked(self, texts: Any) -> list[Any]:
        """Texts, each as a tuple.

        Raises:
            TextError: an item is a pair, or is no text.
        """
        for index, text in enumerate(as_list(texts)):
            if isinstance(text, tuple):
                raise TextError(index, "is a pair of texts.", "Give each text alone.")
        return [(checked_text(text, index),) for index, text in enumerate(as_list(texts))]

    def _tokens_read(self, text: str, count: int) -> Encoding:
        """The tokens of a text that are read: the first ones, or on the other side the last."""
        whole = self.tokenizer.encode(text)
        left = self.tokenizer.sides.get("truncation_side") == "left"
        kept = slice(len(whole) - count, None) if left else slice(count)
        return Encoding(whole.ids[kept], whole.tokens[kept], whole.offsets[kept])


def _prediction(text: str, encoding: Encoding, probabilities: torch.Tensor) -> ReplacedTokens:
    """Of the probabilities of tokens, (N,)."""
    values, given = probabilities.tolist(), WordSpans.of(text)
    words: list[tuple[str, float]] = []
    for word, (start, stop) in zip(given.words, given.spans, strict=True):
        inside = [
            probability
            for probability, (first, last) in zip(values, encoding.offsets, strict=True)
            if first < stop and start < last
        ]
        if inside:
            words.append((word, max(inside)))
    return ReplacedTokens(
        tuple(word for word, probability in words if probability >= 0.5),
        tuple(word for word, _ in words),
        tuple(probability for _, probability in words),
        tuple(encoding.tokens),
        tuple(values),
    )
