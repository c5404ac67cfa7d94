"""From hidden states to answers: what fine-tuning puts on top of an encoder.

    scores = W drop(a(U drop(h)))        at every token, or at the one place that sums up a text

Families differ in where they read, whether there is an inner layer (BERT's pooler is one) and where
they drop; so these are the parts of one head.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from regard.data.batches import Sequences
from regard.layers.dropout import Dropout
from regard.layers.feedforward import activation_of
from regard.layers.linear import Linear
from regard.layers.output import Softmax, counting

Place = Callable[[Tensor, Sequences], Tensor]


def everywhere(hidden: Tensor, texts: Sequences) -> Tensor:
    """Every token: (B, T, D) as it is."""
    return hidden


def first(hidden: Tensor, texts: Sequences) -> Tensor:
    """The first token of each row, BERT's [CLS]: (B, T, D) -> (B, D)."""
    return hidden[:, 0]


def last(hidden: Tensor, texts: Sequences) -> Tensor:
    """The last token of each row, GPT's [EXTRACT]: (B, T, D) -> (B, D)."""
    rows = torch.arange(hidden.size(0), device=hidden.device)
    return hidden[rows, texts.lengths - 1]


def mean(hidden: Tensor, texts: Sequences) -> Tensor:
    """The mean over the tokens of each row, padding left out: (B, T, D) -> (B, D)."""
    kept = hidden * texts.keep[..., None].to(hidden.dtype)
    return kept.sum(1) / texts.lengths.clamp(min=1)[:, None].to(hidden.dtype)


class Inner(nn.Module):
    """a(U drop(h) + b), as wide as the model."""

    def __init__(self, d_model: int, activation: str, dropout: float = 0.0):
        super().__init__()
        self.dropout = Dropout(dropout)
        self.dense = Linear(d_model, d_model)
        self.activation = activation_of(activation)

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., D)"""
        return self.activation(self.dense(self.dropout(hidden)))


class Pooler(nn.Module):
    """tanh(U h + b) at the first token, trained with BERT (Devlin et al. 2019, section A.1)."""

    def __init__(self, d_model: int):
        super().__init__()
        self.inner = Inner(d_model, "tanh")

    def forward(self, hidden: Tensor, texts: Sequences) -> Tensor:
        """(B, T, D) -> (B, D)"""
        return self.inner(first(hidden, texts))


class Answers(nn.Module):
    """`outputs` scores for a text, or for each of its tokens: what `place` selects decides."""

    def __init__(
        self,
        d_model: int,
        outputs: int,
        *,
        place: Place,
        inner: Inner | None = None,
        dropout: float = 0.0,
        bias: bool = True,
    ):
        super().__init__()
        self.place, self.inner = place, inner
        self.dropout = Dropout(dropout)
        self.output = Linear(d_model, outputs, bias=bias)

    @property
    def outputs(self) -> int:
        """How many scores there are."""
        return self.output.out_features

    def forward(self, hidden: Tensor, texts: Sequences) -> Tensor:
        """(B, T, D) -> (B, O), or (B, T, O) of a head that reads everywhere."""
        return self.scores(self.place(hidden, texts))

    def scores(self, read: Tensor) -> Tensor:
        """Of what was read: (..., D) -> (..., O)."""
        if self.inner is not None:
            read = self.inner(read)
        return self.output(self.dropout(read))


class MaskedWords(nn.Module):
    """Which word stands here: softmax(E norm(a(U h + b)) + c), E the embedding (BERT, section 3.1).

    It has the two verbs of every head over words, `logits` and `loss`.
    """

    def __init__(self, d_model: int, activation: str, norm_eps: float, softmax: Softmax):
        super().__init__()
        self.inner = Inner(d_model, activation)
        self.norm = nn.LayerNorm(d_model, eps=norm_eps)
        self.softmax = softmax

    def forward(self, hidden: Tensor, texts: Sequences) -> Tensor:
        """(B, T, D) -> (B, T, V)"""
        return self.logits(hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., V)"""
        return self.softmax.logits(self.norm(self.inner(hidden)))

    def loss(
        self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0, count: int | None = None
    ) -> tuple[Tensor, int]:
        """Sum of the losses over (N, D) hidden states, and how many targets counted; see
        `Softmax.loss`.
        """
        # The hidden states of masked words alone pass the head: about one in seven.
        hidden, targets = counting(hidden, targets, count)
        read = self.norm(self.inner(hidden))
        return self.softmax.loss(read, targets, smoothing, targets.numel())
