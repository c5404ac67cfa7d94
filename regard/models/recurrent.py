"""Recurrent language models: "Recurrent Neural Network Regularization" (Zaremba et al. 2014).

    ids -> embed -> L x recurrent layer -> softmax

Dropout is applied to every vertical connection (embedding to first layer, layer to layer, last
layer to softmax) and to none between steps. The state is carried from window to window of a stream,
and gradients stop at the start of a window (truncated backpropagation through time). Under a head
it is an encoder, from which classifiers and taggers are fine-tuned (Dai & Le 2015).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.data.batches import Sequences
from regard.data.layout import ALL, TokenSubset
from regard.layers.dropout import Dropout
from regard.layers.recurrent import RecurrentLayer, Stack, cell_class
from regard.layers.softmax import Softmax
from regard.layers.task_heads import ConcatPooling
from regard.models.config import InitScale, Probability, Size, TokenId
from regard.models.parts import linear_head
from regard.models.protocols import Encoder, LanguageModel, Output, Recurrent, States
from regard.state import Cells
from regard.text.templates import Template


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


class RecurrentLanguageModel(nn.Module, LanguageModel[Cells], Encoder, Recurrent):
    """A stack of RNN, GRU or LSTM layers, a `LanguageModel` and an `Encoder`.

    It is trained on streams in which every sentence ends with `eos` and none begins with `bos`.
    The first word of a sentence therefore follows an `eos`: without a prompt, or with an empty one,
    generation starts from `eos`.
    """

    Config = RecurrentConfig
    SIZES = SIZES
    PUBLISHED = PUBLISHED
    extras = ("undropped",)

    def __init__(self, config: RecurrentConfig):
        super().__init__()
        self.config = config
        width, vocab_size = config.d_model, config.vocab_size
        self.embedding = nn.Embedding(vocab_size, width)
        kind = cell_class(config.cell)
        self.stack = Stack(kind, width, width, config.layers, dropout=config.dropout)
        self.dropout = Dropout(config.dropout)
        tied = self.embedding if config.tied else None
        self.head = Softmax(width, vocab_size, tied=tied, bias=True)
        self._init(self)

    def _init(self, module: nn.Module) -> nn.Module:
        for parameter in module.parameters():
            nn.init.uniform_(parameter, -self.config.init_range, self.config.init_range)
        return module

    @property
    def layer_groups(self) -> list[nn.Module]:
        return [*self.stack.layers]

    # ---- a language model

    def forward(self, ids: Tensor, state: Cells | None = None) -> Output:
        """Hidden states (B, T, D) that predict the token after each of the ids (B, T), and the
        state.

        The auxiliary `undropped` are those before the output's dropout.
        """
        hidden, state = self.stack(self.embedded(ids), state)
        return Output(self.dropout(hidden), state, {"undropped": hidden})

    def empty(self, sequences: int, dtype: torch.dtype | None = None) -> Cells:
        """Zeros."""
        none = torch.empty(0, dtype=torch.long, device=self.embedding.weight.device)
        return self.stack.empty(sequences, self.embedding(none).to(dtype))

    def prefill(self, tokens: Tensor, state: Cells, lengths: Tensor | None = None) -> Cells:
        """The state after the tokens (B, T), or after the first `lengths` (B,) of them."""
        state.consume()
        return self.stack.read(self.embedded(tokens), state, lengths)

    @property
    def first_token(self) -> int:
        """`eos`: see above."""
        return self.config.eos

    def step(self, tokens: Tensor, state: Cells) -> tuple[Tensor, Cells]:
        """Logits (B, T, V) of the token after each of the tokens (B, T), and the next state."""
        state.consume()
        hidden, state = self.stack(self.embedded(tokens), state)
        return self.head.logits(self.dropout(hidden)), state

    @property
    def recurrent_layers(self) -> Sequence[RecurrentLayer]:
        return self.stack.layers

    def embedded(self, ids: Tensor) -> Tensor:
        return self.dropout(self.embedding(ids))

    # ---- an encoder

    @property
    def is_causal(self) -> bool:
        return True

    @property
    def adds_special_tokens(self) -> bool:
        """See `Encoder`: a text is read as the language model read it, between two `eos`."""
        return False

    def states(self, batch: Sequences, tokens: TokenSubset = ALL) -> States:
        """Those of the layers are without dropout."""
        hidden = self.embedded(batch.ids)
        yield hidden
        for n, layer in enumerate(self.stack.layers):
            hidden = self.stack.dropout(hidden) if n else hidden
            hidden, _ = layer(hidden, *layer.empty(len(batch), hidden))
            yield tokens.of(hidden) if n == self.config.layers - 1 else hidden

    def new_head(self, kind: str, outputs: int = 1) -> nn.Module:
        """A new head of a kind in `regard.models.encoder_with_heads.HEADS`.

        Those for texts read [h_T, max, mean] of the hidden states.

        Raises:
            ConfigError: this family has no head of that kind.
        """
        pooling, d_pooled = ConcatPooling(), 3 * self.config.d_model
        return self._init(linear_head(self, kind, outputs, pooling=pooling, d_pooled=d_pooled))

    @staticmethod
    def template(tokenizer: Any) -> Template:
        """The special tokens around a line in the training text of a language model."""
        return Template.lines(tokenizer.eos_id, tokenizer.bos_id)
