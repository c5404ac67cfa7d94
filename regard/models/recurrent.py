"""Recurrent language models: RNN, GRU and LSTM with dropout, and AWD-LSTM."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from regard.data.batches import ALL, Sequences, TokenSubset
from regard.errors import ConfigError
from regard.layers.convolution import BatchNormDense
from regard.layers.dropout import Dropout, EmbeddingDropout, VariationalDropout
from regard.layers.recurrent import (
    CELLS,
    BPTTWindows,
    RecurrentLayer,
    Stack,
    WeightDropLSTM,
    read_to,
    reorder,
    reverse_order,
    stack_cells,
)
from regard.layers.softmax import Softmax
from regard.layers.task_heads import ClassificationHead, ConcatPooling, linear_head, token_head
from regard.models.config import InitScale, Probability, Size, TokenId
from regard.models.protocols import Encoder, LanguageModel, Output, Recurrent, States
from regard.state import Cells, State
from regard.text.templates import Template

# ----------------------------------------------------------------------------------- RNN, GRU, LSTM
#
#     ids -> embed -> L x recurrent layer -> softmax
#
# Dropout is applied to every vertical connection (embedding to first layer, layer to layer, last
# layer to softmax) and to none between steps. The state is carried from window to window of a
# stream, and gradients stop at the start of a window (truncated backpropagation through time).
# Under a head it is an encoder, from which classifiers and taggers are fine-tuned (Dai & Le 2015).


@dataclass(frozen=True)
class RecurrentConfig:
    """The defaults are the small LSTM of the paper's section 4.1."""

    vocab_size: Size
    cell: Literal["rnn", "gru", "lstm"] = "lstm"
    d_model: Size = 200  # of embedding and layers
    layers: Size = 2
    dropout: Probability = 0.0
    init_range: InitScale = 0.1  # parameters start uniform in +- this
    tied: bool = False  # the embedding is the output's weight too (Press & Wolf 2017)
    max_length: Size | None = None  # any
    pad: TokenId = 0
    bos: TokenId = 1
    eos: TokenId = 2


class RecurrentLanguageModel(nn.Module, LanguageModel[Cells], Encoder, Recurrent):
    """Recurrent language models: "Recurrent Neural Network Regularization" (Zaremba et al. 2014).

    A stack of RNN, GRU or LSTM layers, a `LanguageModel` and an `Encoder`.

    It is trained on streams in which every sentence ends with `eos` and none begins with `bos`.
    The first word of a sentence therefore follows an `eos`: without a prompt, or with an empty one,
    generation starts from `eos`.
    """

    Config = RecurrentConfig
    # Penn Treebank, 10,000 words: 4.7M, 19.8M and 66.0M parameters. The paper's test perplexities
    # are 114.5, 82.7 and 78.4.
    SIZES = {
        "small": dict(d_model=200, layers=2, dropout=0.0, init_range=0.1),
        "medium": dict(d_model=650, layers=2, dropout=0.5, init_range=0.05),
        "large": dict(d_model=1500, layers=2, dropout=0.65, init_range=0.04),
    }
    # size -> quantity -> the printed figure, where it stands and why ours differs
    extras = ("undropped",)

    def __init__(self, config: RecurrentConfig):
        super().__init__()
        self.config = config
        width, vocab_size = config.d_model, config.vocab_size
        self.embedding = nn.Embedding(vocab_size, width)
        kind = CELLS[config.cell]
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


# ----------------------------------------------------------------------------------------- AWD-LSTM
#
#     ids -> embed -> L x LSTM -> softmax
#
# with five dropouts: of whole words, on the input, between the layers, on the output (each with one
# mask for all steps of a sequence), and on the recurrent matrices. The last layer is as wide as the
# embedding, whose matrix is the output's, too, there without dropout. Under a head it is the
# encoder of ULMFiT (Howard & Ruder 2018), which a classifier reads at its last state and pooled.


@dataclass(frozen=True)
class AwdLstmConfig:
    """The defaults are the model of the paper for the Penn Treebank (section 5).

    d_model: of the embedding and of the last layer.  d_hidden: of the other layers.
    backward: whether it reads texts from their end, as the second model of ULMFiT does. The encoder
        reverses its texts itself; a language model's task gives it reversed texts.
    window, learning_windows: in training the encoder reads a text in windows of `window` tokens, of
        which the last `learning_windows` get gradients.
    head_dropout, inner_dropout, inner: of the head for classes: the dropout before and after its
        inner layer, and the width of this layer.
    """

    vocab_size: Size
    d_model: Size = 400
    d_hidden: Size = 1150
    layers: Size = 3
    embedding_dropout: Probability = 0.1  # of words: rows of the embedding
    input_dropout: Probability = 0.4
    weight_dropout: Probability = 0.5  # of the recurrent matrices
    hidden_dropout: Probability = 0.3  # between layers
    output_dropout: Probability = 0.4
    tied: bool = True
    init_range: InitScale = 0.1  # the embedding starts uniform in +- this
    backward: bool = False
    window: Size = 70
    learning_windows: Size = 20
    head_dropout: Probability = 0.4
    inner_dropout: Probability = 0.1
    inner: Size = 50
    max_length: Size | None = None  # any
    pad: TokenId | None = 0
    bos: TokenId | None = 1
    eos: TokenId | None = 2


# ulmfit has the sizes of Howard & Ruder 2018 (section 4.1) and the dropouts of the wt103 weights;
# ulmfit-300 is narrower, as in the published printouts of its modules.
_WT103: dict[str, Any] = dict(
    layers=3,
    embedding_dropout=0.02,
    input_dropout=0.25,
    weight_dropout=0.2,
    hidden_dropout=0.15,
    output_dropout=0.1,
)


@dataclass
class AwdState(State):
    """wide: of all layers but the last, (B, L - 1, D_hidden).  last: (B, 1, D)."""

    JOINS = True

    wide: Cells
    last: Cells


class AwdLstm(nn.Module, LanguageModel[AwdState], Encoder, Recurrent):
    """AWD-LSTM: "Regularizing and Optimizing LSTM Language Models" (Merity et al. 2018).

    AWD-LSTM, a `LanguageModel` and an `Encoder`.

    It is trained on streams in which every sentence ends with `eos` and none begins with `bos`; see
    `regard.models.recurrent.RecurrentLanguageModel`.
    """

    Config = AwdLstmConfig
    SIZES: dict[str, dict[str, Any]] = {
        "ptb": dict(d_model=400, d_hidden=1150, layers=3),
        "wikitext-2": dict(d_model=400, d_hidden=1150, layers=3, input_dropout=0.65),
        "ulmfit": dict(d_model=400, d_hidden=1150, **_WT103),
        "ulmfit-300": dict(d_model=300, d_hidden=1150, **_WT103),
    }
    extras = ("undropped",)

    def __init__(self, config: AwdLstmConfig):
        super().__init__()
        if config.layers < 2:
            raise ConfigError(f"`layers` of AWD-LSTM must be at least 2, but is {config.layers}.")
        self.config = config
        width, wide, drop = config.d_model, config.d_hidden, config.weight_dropout
        self.embedding = nn.Embedding(config.vocab_size, width)
        widths = [width, *[wide] * (config.layers - 1)]
        layers = nn.ModuleList(WeightDropLSTM(below, wide, drop) for below in widths[:-1])
        self.layers = cast("Sequence[RecurrentLayer]", layers)
        self.last = WeightDropLSTM(wide, width, drop)
        self.embedding_dropout = EmbeddingDropout(config.vocab_size, config.embedding_dropout)
        self.input_dropout = VariationalDropout(config.input_dropout)
        self.hidden_dropout = VariationalDropout(config.hidden_dropout)
        self.output_dropout = VariationalDropout(config.output_dropout)
        tied = self.embedding if config.tied else None
        self.head = Softmax(width, config.vocab_size, tied=tied, bias=True)
        for matrix in {self.embedding.weight, self.head.weight}:
            nn.init.uniform_(matrix, -config.init_range, config.init_range)

    @property
    def layer_groups(self) -> list[nn.Module]:
        return [*cast(nn.ModuleList, self.layers), self.last]

    @property
    def reads_backward(self) -> bool:
        return self.config.backward

    # ---- a language model

    def forward(self, ids: Tensor, state: AwdState | None = None) -> Output:
        """Hidden states (B, T, D) that predict the token after each of the ids (B, T), and the
        state.

        The auxiliary `undropped` are those before the output's dropout.
        """
        hidden, state = self._read(self.embedded(ids), state)
        return Output(self.output_dropout(hidden), state, {"undropped": hidden})

    def empty(self, sequences: int, dtype: torch.dtype | None = None) -> AwdState:
        """Zeros."""
        none = torch.empty(0, dtype=torch.long, device=self.embedding.weight.device)
        like = self.embedding(none).to(dtype)
        wide = stack_cells([layer.empty(sequences, like) for layer in self.layers])
        return AwdState(wide, stack_cells([self.last.empty(sequences, like)]))

    def prefill(self, tokens: Tensor, state: AwdState, lengths: Tensor | None = None) -> AwdState:
        """The state after the tokens (B, T), or after the first `lengths` (B,) of them."""
        state.consume()
        embedded = self.embedded(tokens)
        if lengths is None:
            return self._read(embedded, state)[1]
        return read_to(
            lengths, state, lambda part, before: self._read(embedded[:, part], before)[1]
        )

    def step(self, tokens: Tensor, state: AwdState) -> tuple[Tensor, AwdState]:
        """Logits (B, T, V) of the token after each of the tokens (B, T), and the next state."""
        state.consume()
        hidden, state = self._read(self.embedded(tokens), state)
        return self.head.logits(self.output_dropout(hidden)), state

    @property
    def recurrent_layers(self) -> Sequence[RecurrentLayer]:
        return [*self.layers, self.last]

    def embedded(self, ids: Tensor) -> Tensor:
        return self.input_dropout(self.embedding_dropout(self.embedding(ids), ids))

    def _read(self, hidden: Tensor, state: AwdState | None) -> tuple[Tensor, AwdState]:
        """The last layer's hidden states (B, T, D) without dropout, and the state."""
        state = self.empty(hidden.size(0), hidden.dtype) if state is None else state
        ends = []
        for n, layer in enumerate(self.layers):
            hidden, end = layer(hidden, state.wide.hidden[:, n], state.wide.cell[:, n])
            hidden = self.hidden_dropout(hidden)
            ends.append(end)
        hidden, end = self.last(hidden, state.last.hidden[:, 0], state.last.cell[:, 0])
        return hidden, AwdState(stack_cells(ends), stack_cells([end]))

    # ---- an encoder

    @property
    def is_causal(self) -> bool:
        return not self.config.backward

    @property
    def adds_special_tokens(self) -> bool:
        """See `Encoder`: a text is read as the language model read it, between two `eos`."""
        return False

    def states(self, batch: Sequences, tokens: TokenSubset = ALL) -> States:
        """Those of the layers are without dropout."""
        order = reverse_order(batch.lengths, batch.width) if self.config.backward else None
        hidden = self.embedded(batch.ids if order is None else batch.ids.gather(1, order))
        yield _in_text_order(hidden, order)
        for layer in self.layers:
            hidden = self._read_text(layer, hidden, batch.lengths)
            yield _in_text_order(hidden, order)
            hidden = self.hidden_dropout(hidden)
        yield tokens.of(_in_text_order(self._read_text(self.last, hidden, batch.lengths), order))

    def _read_text(self, layer: RecurrentLayer, x: Tensor, lengths: Tensor) -> Tensor:
        if not self.training:
            return layer(x, *layer.empty(x.size(0), x))[0]
        return BPTTWindows(lengths, self.config.window, self.config.learning_windows).read(layer, x)

    def new_head(self, kind: str, outputs: int = 1) -> nn.Module:
        """A new head of a kind in `regard.models.encoder_with_heads.HEADS`.

        That for classes is ULMFiT's: [h_T, max, mean] of the hidden states, an inner layer between
        two batch norms, and the output (Howard & Ruder 2018, section 3.3).

        Raises:
            ConfigError: this family has no head of that kind.
        """
        config, width, drop = self.config, self.config.d_model, self.config.head_dropout
        pooling = ConcatPooling(backward=config.backward)
        match kind:
            case "classes":
                inner = BatchNormDense(3 * width, config.inner, drop)
                options: dict[str, Any] = {"inner": inner, "dropout": config.inner_dropout}
                return ClassificationHead(config.inner, outputs, pooling=pooling, **options)
            case "multiple_choice":
                return ClassificationHead(3 * width, 1, pooling=pooling, dropout=drop)
            case _:
                return token_head(self, kind, outputs, dropout=drop)

    def template(self, tokenizer: Any) -> Template:
        """The special tokens around a line in the training text of a language model."""
        return Template.lines(tokenizer.eos_id, tokenizer.bos_id)


def _in_text_order(hidden: Tensor, order: Tensor | None) -> Tensor:
    """Hidden states (B, T, D) of reversed texts, in the order of the texts; order: None: same."""
    return hidden if order is None else reorder(hidden, order)
