"""Raises errors for logits, hidden states and losses that are infinite or NaN.

Weights that diverged, or activations that overflow, would give a result that looks like any other.
So the last numbers that a model computes are checked once, before a result is made of them.
"""

import math
from collections.abc import Sequence

from torch import Tensor

from regard.errors import RegardError, TextError

HINT = (
    "The model's weights may have diverged in training, or be too large for this precision: use "
    "other weights, or float32."
)


class NonFiniteScores(TextError):
    """What a model computes from a text is infinite or NaN."""


def check_finite(finite: Tensor, texts: Sequence[int], what: str = "scores") -> None:
    """Raise an error if what was computed from any text is not finite.

    finite: (B,) bool, for each example.  texts: (B,) index of the text of each example.

    Raises:
        NonFiniteScores: an example is not finite; the error names the first such text.
    """
    if bool(finite.all()):
        return
    raise not_finite_error(min(texts[row] for row in (~finite).nonzero()[:, 0].tolist()), what)


def not_finite_error(text: int, what: str) -> NonFiniteScores:
    """The error for the text with this index."""
    problem = f"has {what} that are infinite or NaN, so there is no result."
    return NonFiniteScores(text, problem, HINT)


def check_likelihood(nats: float, value: float) -> None:
    """Raise an error if the likelihood or the perplexity of a text is not finite.

    nats: minus the natural logarithm of the text's probability.  value: the reported perplexity.

    Raises:
        RegardError: one of them is not finite.
    """
    if not math.isfinite(nats):
        raise RegardError(
            f"The loss of this text is {nats}: some of the model's scores are infinite or "
            f"NaN. {HINT}"
        )
    if not math.isfinite(value):
        raise RegardError(
            f"The perplexity of this text is too large for a float: its loss is {nats:.6g} "
            f"nats. {HINT} If it is measured per word, measure it per token."
        )
