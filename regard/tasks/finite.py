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
    place = min(texts[row] for row in (~finite).nonzero()[:, 0].tolist())
    problem = f"has {what} that are infinite or not numbers, so they answer nothing."
    raise NonFiniteScores(place, problem, HINT)


def check_loss(nats: float, tokens: int) -> float:
    """The sum of the losses of so many tokens, if it is finite.

    Raises:
        RegardError: it is not.
    """
    if math.isfinite(nats):
        return nats
    raise RegardError(
        f"The loss of this text, {tokens:,} tokens, is {nats}: some of the model's scores are "
        f"infinite or not numbers. {HINT}"
    )
