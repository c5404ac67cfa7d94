"""A hypothesis: tokens, score, log-probability."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from regard.attention.capture import NEXT


@dataclass(frozen=True)
class Hypothesis:
    """A decoded sequence.

    tokens: without the prompt or start token, and without the end-of-sequence token.
    score: `log_prob` divided by the length penalty; hypotheses of a source are ranked by it.
    log_prob: natural logarithm of the model's own probability of the tokens (and of the end, where
        `finished`), before temperature, top-k and top-p.
    finished: it ended with an end-of-sequence token or a stop sequence, which is the end of
        `tokens`; False where it was truncated: by the limit on its length, or because the filters
        allowed no token.
    stops: stop sequences; its text ends before the first of them.
    """

    tokens: list[int]
    score: float
    log_prob: float
    finished: bool
    stops: tuple[str, ...] = ()


def unfinished(results: Iterable[list[Hypothesis]]) -> int:
    """The number of sources whose best hypothesis was truncated."""
    return sum(1 for hypotheses in results if hypotheses and not hypotheses[0].finished)


def labels_of(found: Hypothesis, ids: Sequence[int], label_of: Callable[[int], str]) -> list[str]:
    """What pictures write for `ids`: a start token, the tokens of a hypothesis and its end, or the
    first of these. Where the hypothesis was truncated, what follows is not known.
    """
    labels = list(map(label_of, ids))
    if not found.finished and len(ids) == len(found.tokens) + 2:
        labels[-1] = NEXT
    return labels


def values_of(hypotheses: Sequence[Hypothesis], texts: Sequence[str]) -> list[dict[str, Any]]:
    """Hypotheses of one source, with their texts, as plain values for JSON."""
    return [
        {"text": text, "score": h.score, "log_prob": h.log_prob, "finished": h.finished}
        for h, text in zip(hypotheses, texts, strict=True)
    ]
