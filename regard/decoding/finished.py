"""The finished hypotheses of a beam search: the best few of every sentence."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.decoding.filters import NEG_INF
from regard.decoding.hypothesis import Hypothesis


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
