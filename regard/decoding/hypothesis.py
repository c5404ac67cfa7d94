"""A hypothesis: tokens, score, log-probability."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Hypothesis:
    """A decoded sequence.

    tokens: without the prompt or start token, and without the end-of-sequence token.
    score: `log_prob` divided by the length penalty; hypotheses of a source are ranked by it.
    log_prob: natural logarithm of the model's own probability of the tokens (and of the end, where
        `finished`), before temperature, top-k and top-p.
    finished: it ended with an end-of-sequence token; False where the limit on the length truncated
        it, or filters that allowed no token.
    """

    tokens: list[int]
    score: float
    log_prob: float
    finished: bool


def unfinished(results: Iterable[list[Hypothesis]]) -> int:
    """Of how many sources the best hypothesis was truncated."""
    return sum(1 for hypotheses in results if hypotheses and not hypotheses[0].finished)
