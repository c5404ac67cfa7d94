"""Scores of spans of words for constituency parsing (Stern et al. 2017; Kitaev and Klein 2018)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.data.batches import Sequences
from regard.layers.chart import Spans
from regard.layers.dropout import Dropout
from regard.layers.linear import Linear
from regard.layers.task_heads import every_token

INNER = 250  # width of the hidden layer in both papers
DROPOUT = 0.2


class ChartHead(nn.Module):
    """s(i, j, .) = W relu(norm(U (f_j - f_i) + b)) + c

    f_k is the fencepost between the words k and k + 1: the first half of the hidden state of word k
    and the second half of that of word k + 1. With a bidirectional LSTM these are the states of its
    forward and its backward direction. Vectors for the ends of a sentence are learned.

    outputs: O, the number of labels of constituents.
    """

    pooling = staticmethod(every_token)

    def __init__(self, d_model: int, outputs: int, *, d_inner: int = INNER):
        super().__init__()
        self.ends = nn.Parameter(torch.zeros(2, d_model))  # before the first, after the last word
        self.dropout = Dropout(DROPOUT)
        self.inner = Linear(d_model, d_inner, bias=False)
        self.bias = nn.Parameter(torch.zeros(d_inner))
        self.norm = nn.LayerNorm(d_inner)
        self.output = Linear(d_inner, outputs)

    @property
    def outputs(self) -> int:
        """How many labels there are."""
        return self.output.out_features

    def forward(self, hidden: Tensor, batch: Sequences) -> Tensor:
        """The scores of all M spans of tokens: (B, T, D) or (1, N, D) -> (M, O)."""
        return self.span_scores(batch.pad(hidden), Spans.of(batch.lengths, batch.width))

    def scores(self, pooled: Tensor) -> Tensor:
        """The hidden states themselves: `span_scores` computes the scores when words are known."""
        return pooled

    def span_scores(self, words: Tensor, spans: Spans) -> Tensor:
        """The scores of the labels of spans: (B, N, D) -> (M, O).

        Args:
            words: hidden states of the words; those after a sentence are ignored.
        """
        before, after = self.ends.to(words.dtype).expand(len(words), 1, 2, -1).unbind(2)
        words = torch.cat([before, self.dropout(words), after], 1)  # (B, N + 2, D)
        row = torch.arange(len(words), device=words.device)
        words = words.index_put((row, spans.lengths + 1), self.ends[1].to(words.dtype))
        half = words.size(-1) // 2
        between = torch.cat([words[:, :-1, :half], words[:, 1:, half:]], -1)  # (B, N + 1, D)
        # U (f_j - f_i) = U f_j - U f_i: N + 1 products instead of one for each span.
        projected = self.inner(between)  # (B, N + 1, D')
        differences = (
            projected[spans.row, spans.stops] - projected[spans.row, spans.starts] + self.bias
        )  # (M, D')
        return self.output(self.dropout(self.norm(differences).relu()))
