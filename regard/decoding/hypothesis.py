"""A hypothesis: tokens, score, log-probability."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from regard.attention.capture import NEXT
from regard.data.batches import Sequences
from regard.decoding.filters import NEG_INF
from regard.models.protocols import Generator


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


@runtime_checkable
class Method(Protocol):
    """A frozen dataclass of the options of a decoding method.

    Its class method `from_settings` takes the options back, as `regard.decoding.settings.Settings`.
    """

    def run(self, model: Generator, source: Sequences | None) -> list[list[Hypothesis]]:
        """The hypotheses of each source or prompt, best first; without any, of one empty prompt."""

    def settings(self) -> dict[str, Any]:
        """The options under the names of generation_config.json."""


def unfinished(results: Iterable[list[Hypothesis]]) -> int:
    """The number of sources whose best hypothesis was truncated."""
    return sum(1 for hypotheses in results if hypotheses and not hypotheses[0].finished)


def labels_of(
    hypothesis: Hypothesis, ids: Sequence[int], label_of: Callable[[int], str]
) -> list[str]:
    """What pictures write for `ids`: a start token, the tokens of a hypothesis and its end, or the
    first of these. Where the hypothesis was truncated, what follows is not known.
    """
    labels = list(map(label_of, ids))
    if not hypothesis.finished and len(ids) == len(hypothesis.tokens) + 2:
        labels[-1] = NEXT
    return labels


def values_of(hypotheses: Sequence[Hypothesis], texts: Sequence[str]) -> list[dict[str, Any]]:
    """Hypotheses of one source, with their texts, as plain values for JSON."""
    return [
        {"text": text, "score": h.score, "log_prob": h.log_prob, "finished": h.finished}
        for h, text in zip(hypotheses, texts, strict=True)
    ]


class FinishedHypotheses:
    """For each of A sentences the `size` best finished hypotheses, best first.

    scores: (A, size) float64, minus infinity where there are fewer.
    """

    def __init__(self, sentences: int, size: int, device: torch.device):
        shape = (sentences, size)
        self.scores = torch.full(shape, NEG_INF, dtype=torch.float64, device=device)
        self._indices = torch.full(shape, -1, device=device)  # in `_all`
        self._all: list[Hypothesis] = []

    def add(self, ended: Tensor, scores: Tensor, hypotheses: list[Hypothesis]) -> None:
        """Add hypotheses; of equal scores the one that was added first stays first.

        Args:
            ended: (A, N) bool, which of the best N continuations are finished hypotheses.
            scores: (A, N) theirs; those of the others are not read.
            hypotheses: those for which `ended` is True, row by row.
        """
        indices = torch.full_like(self._indices[:, :1], -1).expand(ended.shape).clone()
        first = len(self._all)
        indices[ended] = torch.arange(first, first + len(hypotheses), device=ended.device)
        self._all += hypotheses
        joined = torch.cat([self.scores, scores.masked_fill(~ended, NEG_INF)], 1)
        self.scores, order = joined.sort(dim=1, descending=True, stable=True)
        size = self._indices.size(1)
        self.scores, order = self.scores[:, :size], order[:, :size]
        self._indices = torch.cat([self._indices, indices], 1).gather(1, order)

    def of(self, sentence: int, count: int) -> list[Hypothesis]:
        """The best `count` of a sentence, or as many as there are."""
        indices = self._indices[sentence, :count].tolist()
        return [self._all[index] for index in indices if index >= 0]

    def select(self, sentences: Tensor) -> None:
        """Keep these sentences (A',) alone."""
        self.scores = self.scores.index_select(0, sentences)
        self._indices = self._indices.index_select(0, sentences)
