"""What decoding gives back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Hypothesis:
    """A decoded sequence.

    tokens: without the first token and without `eos`.
    score: `log_prob` divided by the length penalty; hypotheses of a sentence are ranked by it.
    log_prob: natural logarithm of the model's own probability of the tokens (and of `eos` when
        finished), before temperature, top-k and top-p.
    finished: it ended with `eos`; False where a limit on the length, or filters that allowed no
        token at all, cut it off.
    """

    tokens: list[int]
    score: float
    log_prob: float
    finished: bool


def unfinished(results: Iterable[list[Hypothesis]]) -> int:
    """How many sentences have a best hypothesis that was cut off: a number to report."""
    return sum(1 for hypotheses in results if hypotheses and not hypotheses[0].finished)
