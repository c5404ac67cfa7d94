"""Scores, hidden states and losses that are infinite or not numbers answer nothing.

Weights that diverged, or activations beyond what a precision holds, would give an answer that looks
like any other. They are refused where they leave a model, in one look at the last numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from regard.errors import RegardError, TextError

HINT = (
    "The model's weights may have diverged in training, or be too large for this precision: use "
    "other weights, or float32."
)


class NonFiniteScores(TextError):
    """What a model computes from a text is infinite or not a number."""


def check_texts(finite: Tensor, texts: Sequence[int], what: str = "scores") -> None:
    """Refuses what was computed from texts if not all of it is finite.

    finite: (B,) bool, for each row.  texts: (B,) the number of the text of each row, from 0.

    Raises:
        NonFiniteScores: a row is not finite; the first text that has one is named.
    """
    if bool(finite.all()):
        return
    raise not_finite(min(texts[row] for row in (~finite).nonzero()[:, 0].tolist()), what)


def not_finite(text: int, what: str) -> NonFiniteScores:
    """The error for the text with this number, from 0."""
    problem = f"has {what} that are infinite or not numbers, so they answer nothing."
    return NonFiniteScores(text, problem, HINT)


def check_likelihood(nats: float, value: float) -> None:
    """Refuses a measure of a text whose likelihood is no number, or beyond all numbers.

    nats: minus the logarithm of the text's probability.  value: what is reported of it.

    Raises:
        RegardError: one of them is not finite.
    """
    if not math.isfinite(nats):
        raise RegardError(
            f"The loss of this text is {nats}: some of the model's scores are infinite or not "
            f"numbers. {HINT}"
        )
    if not math.isfinite(value):
        raise RegardError(
            f"The perplexity of this text is beyond what a number holds: its loss is {nats:.6g} "
            f"nats. {HINT} Or measure per token, where it is measured per word."
        )
