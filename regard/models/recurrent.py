"""Recurrent language models: "Recurrent Neural Network Regularization" (Zaremba et al. 2014).

    ids -> embed -> L x recurrent layer -> softmax

Dropout stands on every connection that goes up (embedding to first layer, layer to layer, last
layer to softmax) and on none that goes from step to step. The state travels from window to window,
so that a stream is read in one go while gradients stop at a window's start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.layers.dropout import Dropout
from regard.layers.recurrent import RecurrentLayer, Stack, cell_class
from regard.layers.softmax import Softmax
from regard.models.config import InitScale, Probability, Size, TokenId
from regard.models.protocols import LanguageModel, Output, Recurrent
from regard.state import Cells


@dataclass(frozen=True)
class RecurrentConfig:
    """The defaults are the small LSTM of the paper's section 4.1."""

    vocab_size: Size
    cell: str = "lstm"  # rnn, gru or lstm
    d_model: Size = 200  # of embedding and layers
    layers: Size = 2
    dropout: Probability = 0.0
    init_range: InitScale = 0.1  # parameters start uniform in +- this
    tied: bool = False  # the embedding is the output's weight too (Press & Wolf 2017)
    max_length: Size | None = None  # any
    pad: TokenId = 0
    bos: TokenId = 1
    eos: TokenId = 2


# Penn Treebank, 10,000 words: 4.7M, 19.8M and 66.0M parameters. The paper's test perplexities are
# 114.5, 82.7 and 78.4.
SIZES = {
    "small": dict(d_model=200, layers=2, dropout=0.0, init_range=0.1),
    "medium": dict(d_model=650, layers=2, dropout=0.5, init_range=0.05),
    "large": dict(d_model=1500, layers=2, dropout=0.65, init_range=0.04),
}

_MERITY = "Merity et al. 2016, for the Penn Treebank's 10,000 words; the paper prints none"
# size -> quantity -> the printed figure, where it stands and why ours differs
PUBLISHED = {
    "medium": {"parameters": (20e6, _MERITY)},
    "large": {"parameters": (66e6, _MERITY)},
}


class RecurrentLanguageModel(nn.Module, LanguageModel[Cells], Recurrent):
    """A stack of RNN, GRU or LSTM layers, a `LanguageModel`.

    It is trained on streams in which every sentence ends with `eos` and none begins with `bos`.
    So what stands before the first word is the end of another sentence: without a prompt, or with
    an empty one, it starts from `eos`.
    """

    Config = RecurrentConfig
    SIZES = SIZES
    PUBLISHED = PUBLISHED
    extras = ("undropped",)

    def __init__(self, config: RecurrentConfig):
        super().__init__()
        self.config = config
        width, words = config.d_model, config.vocab_size
        self.embedding = nn.Embedding(words, width)
        kind = cell_class(config.cell)
        self.stack = Stack(kind, width, width, config.layers, dropout=config.dropout)
        self.dropout = Dropout(config.dropout)
        tied = self.embedding if config.tied else None
        self.head = Softmax(width, words, tied=tied, bias=True)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -config.init_range, config.init_range)

    def forward(self, ids: Tensor, state: Cells | None = None) -> Output:
        """Hidden states (B, T, D) for predicting what follows each id (B, T), and the state.

        The auxiliary `undropped` are those before the output's dropout.
        """
        hidden, state = self.stack(self.embedded(ids), state)
        return Output(self.dropout(hidden), state, {"undropped": hidden})

    def empty(self, sequences: int, dtype: torch.dtype | None = None) -> Cells:
        """Zeros."""
        none = torch.empty(0, dtype=torch.long, device=self.embedding.weight.device)
        return self.stack.empty(sequences, self.embedding(none).to(dtype))

    def prefill(self, tokens: Tensor, state: Cells, lengths: Tensor | None = None) -> Cells:
        """The state after the tokens (R, T), or the first `lengths` (R,) of them."""
        state.consume()
        return self.stack.read(self.embedded(tokens), state, lengths)

    @property
    def first_token(self) -> int:
        """`eos`: see above."""
        return self.config.eos

    def step(self, tokens: Tensor, state: Cells) -> tuple[Tensor, Cells]:
        """Scores (R, T, V) of what follows each of the tokens (R, T)."""
        state.consume()
        hidden, state = self.stack(self.embedded(tokens), state)
        return self.head.logits(self.dropout(hidden)), state

    @property
    def recurrent_layers(self) -> Sequence[RecurrentLayer]:
        """See `Recurrent`."""
        return self.stack.layers

    def embedded(self, ids: Tensor) -> Tensor:
        """See `Recurrent`."""
        return self.dropout(self.embedding(ids))
