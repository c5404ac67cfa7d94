"""The finished hypotheses of a beam search: the best few of every sentence."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.decoding.hypothesis import Hypothesis


class FinishedHypotheses:
    """For each of A sentences the `size` best finished hypotheses, best first.

    scores: (A, size), minus infinity where there are fewer.
    """

    def __init__(self, sentences: int, size: int, device: torch.device):
        shape = (sentences, size)
        self.scores = torch.full(shape, float("-inf"), dtype=torch.float64, device=device)
        self._numbers = torch.full(shape, -1, device=device)  # places in `_all`
        self._all: list[Hypothesis] = []

    def add(self, where: Tensor, scores: Tensor, hypotheses: list[Hypothesis]) -> None:
        """New hypotheses, as many as `where` (A, K) is True, row by row; `scores` is (A, K).

        Among equal scores the one that was first stays first.
        """
        numbers = torch.full_like(self._numbers[:, :1], -1).expand(where.shape).clone()
        first = len(self._all)
        numbers[where] = torch.arange(first, first + len(hypotheses), device=where.device)
        self._all += hypotheses
        both = torch.cat([self.scores, scores.masked_fill(~where, float("-inf"))], 1)
        self.scores, order = both.sort(dim=1, descending=True, stable=True)
        size = self._numbers.size(1)
        self.scores, order = self.scores[:, :size], order[:, :size]
        self._numbers = torch.cat([self._numbers, numbers], 1).gather(1, order)

    def of(self, sentence: int, count: int) -> list[Hypothesis]:
        """The best `count` of a sentence, or as many as there are."""
        numbers = self._numbers[sentence, :count].tolist()
        return [self._all[number] for number in numbers if number >= 0]

    def select(self, sentences: Tensor) -> None:
        """Only these sentences stay."""
        self.scores = self.scores.index_select(0, sentences)
        self._numbers = self._numbers.index_select(0, sentences)
