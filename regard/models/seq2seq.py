"""Recurrent encoder-decoders: Bahdanau's RNNsearch, and LSTMs with and without attention."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from regard.attention.attend import (
    COSINE,
    PLAIN,
    SCALED,
    Additive,
    ContentBased,
    General,
    Location,
    SourceScore,
)
from regard.attention.cache import SourceMemory
from regard.attention.capture import CapturePoint
from regard.attention.selection import (
    AttentionFormStep,
    CrossAttentionStep,
    FormProgress,
    GlobalWindow,
    Hard,
    HardInEvaluation,
    MonotonicWindow,
    PredictiveWindow,
    Soft,
    SourceWindow,
    WeightSelection,
)
from regard.data.batches import Sequences
from regard.errors import ConfigError
from regard.layers import recurrent
from regard.layers.dropout import Dropout
from regard.layers.linear import Linear
from regard.layers.softmax import Softmax
from regard.models.config import RECURRENT, Count, Probability, Size, TokenId
from regard.models.protocols import EncoderDecoder, Output
from regard.state import Cells, State

# ---------------------------------------------------------------------------------------- RNNsearch
#
# RNNsearch: "Neural Machine Translation by Jointly Learning to Align and Translate"
# (Bahdanau et al. 2014).
#
#     source x -> embed -> GRU in both directions -> annotations h_j = [ahead_j; back_j]
#     s_0 = tanh(W_s back_1)
#     for each word y_(i-1) of the target, E y its embedding (sections A.1 and A.2)
#
#         e_ij = v · tanh(W_a s_(i-1) + U_a h_j)      alpha_i = softmax(e_i)
#         c_i = sum over j of alpha_ij h_j
#         t_i = maxout(U_o s_(i-1) + V_o E y + C_o c_i)   p(y_i) = softmax(W_o t_i)
#         s_i = GRU([E y; c_i], s_(i-1))
#
# The decoder attends before its recurrent step; Luong's (`lstm-seq2seq`) attends after it. Both
# sides have one vocabulary, and each its own embeddings.


@dataclass(frozen=True)
class RNNSearchConfig:
    """The defaults are the sizes of section A.2.3, which has no dropout."""

    vocab_size: Size  # of both languages together
    d_model: Size = 1000  # n, of the decoder and of each direction of the encoder
    d_embedding: Size = 620  # m
    d_score: Size = 1000  # n', inside the score
    d_maxout: Size = 500  # l: maxout takes the maximum of each pair of 2 l units
    dropout: Probability = 0.0  # of embeddings and of the input t_i of the output layer
    max_length: Size | None = None  # no limit
    pad: TokenId = 0
    bos: TokenId = 1  # the token with which the decoder starts
    eos: TokenId = 2


@dataclass
class SearchState(State):
    """The decoder's hidden state s (B, D), and the annotations of the source."""

    hidden: Tensor
    source: SourceMemory


class RNNSearch(nn.Module, EncoderDecoder[SearchState]):
    """RNNsearch: "Neural Machine Translation by Jointly Learning to Align and Translate" (Bahdanau
    et al. 2014).

    RNNsearch: an `EncoderDecoder` of GRUs with additive attention, the first with attention.
    """

    Config = RNNSearchConfig
    family = RECURRENT
    SIZES = {"tiny": dict(d_model=256, d_embedding=256, d_score=256, d_maxout=256, dropout=0.3)}

    def __init__(self, config: RNNSearchConfig):
        super().__init__()
        self.config = config
        width, word = config.d_model, config.d_embedding
        self.source_embedding = nn.Embedding(config.vocab_size, word)
        self.embedding = nn.Embedding(config.vocab_size, word)
        for table in (self.source_embedding, self.embedding):
            nn.init.normal_(table.weight, std=word**-0.5)
        self.encoder = recurrent.BidirectionalStack(recurrent.ResetFirstGRU, word, 2 * width, 1)
        self.first = Linear(width, width)  # W_s
        self.score = Additive(width, 2 * width, config.d_score)
        self.cross_attention, self.capture = CrossAttentionStep(), CapturePoint("cross")
        self.gru = recurrent.ResetFirstGRU(word + 2 * width, width)
        self.readout = Linear(width + word + 2 * width, 2 * config.d_maxout)  # U_o, V_o, C_o
        self.dropout = Dropout(config.dropout)
        self.head = Softmax(config.d_maxout, config.vocab_size, tied=None, bias=True)  # W_o

    def forward(self, source: Sequences, target: Sequences) -> Output:
        """Hidden states (B, T, D); source and target must be padded."""
        hidden, _ = self._decode(target.ids, self.read(source))
        return Output(hidden)

    def read(self, source: Sequences) -> SearchState:
        """The state before the first target token."""
        words = self.dropout(self.source_embedding(source.ids))
        memory, ends = self.encoder(words, source.lengths)  # (B, S, 2D), (B, L=1, 2D)
        back = ends[:, 0, self.config.d_model :]  # the backward GRU ends at position 1: back_1
        first = torch.tanh(self.first(back)).to(memory.dtype)
        keys = self.score.prepare(memory)[:, None, None]  # (B, S, K) -> (B, L=1, H=1, S, K)
        return SearchState(first, SourceMemory(keys, memory[:, None, None], source.lengths))

    def step(self, tokens: Tensor, state: SearchState) -> tuple[Tensor, SearchState]:
        """Logits (B, T, V) of the token after each of the tokens (B, T), and the next state."""
        state.consume()
        hidden, state = self._decode(tokens, state)
        return self.head.logits(hidden), state

    def _decode(self, ids: Tensor, state: SearchState) -> tuple[Tensor, SearchState]:
        """The input t_i of the output layer (B, T, l), and the next state."""
        attend, hidden = self.cross_attention(state.source, self.score, self.capture), state.hidden
        words = self.dropout(self.embedding(ids))  # (B, T) -> (B, T, m)
        inputs = []
        for word in words.unbind(1):
            context = attend(hidden)  # (B, 2D)
            inputs.append(torch.cat([hidden, word, context], 1))
            below = self.gru.input(torch.cat([word, context], 1)).to(hidden.dtype)
            hidden = recurrent.reset_first_gru_step(below, hidden, self.gru.recurrent.weight)
        pairs = self.readout(torch.stack(inputs, 1)).unflatten(2, (-1, 2))  # -> (B, T, l, 2)
        return self.dropout(pairs.amax(-1)), SearchState(hidden, state.source)


# --------------------------------------------------------------------- LSTMs with Luong's attention
#
#     source -> embed -> bidirectional LSTM -> memory, and the initial state of the decoder
#     target -> embed -> LSTM -> hidden states, which attend to the memory
#
# Attention is Luong's (2015, section 3): c = attend(h, memory), ~h = tanh(W_c [c; h]), and ~h is
# fed to the next step beside the next word ("input feeding", section 3.3). Its parts are the score,
# the window (global, local-m or local-p) and the selection (soft or hard), in any combination.


ScoreKind = Literal[
    "none",
    "additive",
    "concat",
    "multi-layer-perceptron",
    "dot",
    "scaled-dot",
    "general",
    "bilinear",
    "location",
    "cosine",
    "content-based",
]
WindowKind = Literal["global", "local-m", "local-p"]
SelectionKind = Literal["soft", "hard", "hard-expected"]
HALF_WIDTH, EXPECTED_SHARE = 10, 0.5  # where a configuration names none


@dataclass(frozen=True)
class Seq2SeqConfig:
    """The defaults are those of OpenNMT with a width of 512, and the score that Luong et al. 2015
    found best; their own model is the size "luong"."""

    vocab_size: Size  # of both languages together
    d_model: Size = 512  # of decoder layers, and of both directions of the encoder together
    layers: Size = 2  # of encoder and decoder each
    attention: ScoreKind = "general"  # the score: see regard/attention/attend.py
    window: WindowKind = "global"  # see regard/attention/selection.py
    half_width: Size | None = None  # D of a local window; None: 10
    selection: SelectionKind = "soft"  # see regard/attention/selection.py
    expected_share: Probability | None = None  # of "hard" in training; None: 0.5
    choice_seed: Count | None = None  # of hard attention in use; None: the largest weight
    d_embedding: Size | None = None  # None: d_model
    tied: bool = True  # the embedding is the output's weight too
    dropout: Probability = 0.2
    max_length: Size | None = None  # any; with "location", the positions that have weights
    pad: TokenId = 0
    bos: TokenId = 1  # the token with which the decoder starts
    eos: TokenId = 2


def _additive(config: Seq2SeqConfig) -> SourceScore:
    return Additive(config.d_model, config.d_model, config.d_model)


def _general(config: Seq2SeqConfig) -> SourceScore:
    return General(config.d_model, config.d_model)


def _location(config: Seq2SeqConfig) -> SourceScore:
    if config.max_length is None:
        raise ConfigError(
            '`attention` = "location" has weights for each position of a source: `max_length` '
            "must say how many positions there are."
        )
    return Location(config.d_model, config.max_length)


# "concat" (Luong et al. 2015) and "multi-layer-perceptron" are other names of the additive score,
# whose two matrices are one there; "bilinear" is another name of "general".
SCORES: dict[str, Callable[[Seq2SeqConfig], SourceScore]] = {
    "additive": _additive,
    "concat": _additive,
    "multi-layer-perceptron": _additive,
    "dot": lambda config: PLAIN,
    "scaled-dot": lambda config: SCALED,
    "general": _general,
    "bilinear": _general,
    "location": _location,
    "cosine": lambda config: COSINE,
    "content-based": lambda config: ContentBased(config.d_model),
}


def _half_width(config: Seq2SeqConfig) -> int:
    return config.half_width or HALF_WIDTH


WINDOWS: dict[str, Callable[[Seq2SeqConfig], SourceWindow]] = {
    "global": lambda config: GlobalWindow(),
    "local-m": lambda config: MonotonicWindow(_half_width(config)),
    "local-p": lambda config: PredictiveWindow(config.d_model, _half_width(config)),
}


def _hard(config: Seq2SeqConfig) -> Hard:
    share = config.expected_share
    return Hard(config.choice_seed, EXPECTED_SHARE if share is None else share)


SELECTIONS: dict[str, Callable[[Seq2SeqConfig], WeightSelection]] = {
    "soft": lambda config: Soft(),
    "hard": _hard,
    "hard-expected": lambda config: HardInEvaluation(config.choice_seed),
}


class DecoderOutput(NamedTuple):
    """Hidden states (B, T, D), the state after the last step, and what a loss needs beside them."""

    hidden: Tensor
    state: State
    extras: dict[str, Tensor]


@dataclass
class InputFeedingState(State):
    """The LSTM's states, the attentional vector ~h, (B, D), that is fed to the next step, and the
    source.
    """

    cells: Cells
    fed: Tensor
    source: SourceMemory


@dataclass
class AttentionFormState(InputFeedingState):
    """Also the counters of windows and of hard attention."""

    progress: FormProgress


class PlainDecoder(nn.Module):
    """A decoder without attention (Sutskever et al. 2014)."""

    extras: tuple[str, ...] = ()

    def __init__(self, config: Seq2SeqConfig):
        super().__init__()
        width = config.d_model
        self.stack = recurrent.Stack(
            recurrent.LSTM,
            config.d_embedding or width,
            width,
            config.layers,
            dropout=config.dropout,
        )

    def start(self, memory: Tensor, source: Sequences, cells: Cells) -> Cells:
        return cells

    def forward(self, embedded: Tensor, state: Cells) -> DecoderOutput:
        """(B, T, D) -> (B, T, D), and the state after the last step."""
        hidden, after = self.stack(embedded, state)
        return DecoderOutput(hidden, after, {})


class InputFeedingDecoder(nn.Module, ABC):
    """A decoder that attends to the source at every step, with input feeding: ~h of a step is an
    input of the next one.
    """

    extras: tuple[str, ...] = ()

    def __init__(self, config: Seq2SeqConfig, score: SourceScore):
        super().__init__()
        width = config.d_model
        self.words = Linear(config.d_embedding or width, 4 * width)
        # The gates of each layer, from its input (~h at the first layer) and its own hidden state.
        gates = [Linear(2 * width, 4 * width, bias=n > 0) for n in range(config.layers)]
        self.gates = cast("Sequence[Linear]", nn.ModuleList(gates))
        self.dropout = Dropout(config.dropout)
        self.score = score
        self.combine = Linear(2 * width, width, bias=False)
        self.capture, self.cell = CapturePoint("cross"), recurrent.LSTMStep()
        for linear in (self.words, *gates):
            for parameter in linear.parameters():
                nn.init.uniform_(parameter, -(width**-0.5), width**-0.5)

    @abstractmethod
    def start(self, memory: Tensor, source: Sequences, cells: Cells) -> InputFeedingState:
        """The state before the first step."""

    def first_state(self, memory: Tensor, source: Sequences, cells: Cells) -> InputFeedingState:
        """The state before the first step; ~h is zeros."""
        keys = self.score.prepare(memory)[:, None, None]  # (B, S, K) -> (B, L=1, H=1, S, K)
        source_memory = SourceMemory(keys, memory[:, None, None], source.lengths)
        return InputFeedingState(
            cells, memory.new_zeros(memory.size(0), memory.size(2)), source_memory
        )

    def read(
        self, embedded: Tensor, state: InputFeedingState, attend: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, InputFeedingState]:
        """All ~h, (B, T, D), and the state after the last step.

        attend: from hidden states (B, D) to contexts (B, D).
        """
        rows, fed = embedded.size(0), state.fed
        # The words' part of the gates is one product; (B, T, D) -> (T, B, 4D)
        words = self.words(embedded.transpose(0, 1).contiguous()).to(fed.dtype).unbind()
        shifts = [linear.bias.expand(rows, -1) for linear in self.gates[1:]]
        products = [linear.step_matmul() for linear in self.gates]
        combine = self.combine.step_matmul()
        hiddens, cells = list(state.cells.hidden.unbind(1)), list(state.cells.cell.unbind(1))
        outputs = []
        for word in words:
            x = fed
            for n, shift in enumerate([word, *shifts]):
                x = self.dropout(x) if n else x
                gates = products[n](torch.cat([x, hiddens[n]], 1))
                x, cells[n] = self.cell(shift, gates, cells[n])
                hiddens[n] = x
            fed = torch.tanh(combine(torch.cat([attend(x), x], 1)))
            outputs.append(fed)
        after = Cells(torch.stack(hiddens, 1), torch.stack(cells, 1))
        return torch.stack(outputs, 1), InputFeedingState(after, fed, state.source)


class AttentionDecoder(InputFeedingDecoder):
    """Soft attention to all of the source."""

    def __init__(self, config: Seq2SeqConfig, score: SourceScore):
        super().__init__(config, score)
        self.look = CrossAttentionStep()

    def start(self, memory: Tensor, source: Sequences, cells: Cells) -> InputFeedingState:
        return self.first_state(memory, source, cells)

    def forward(self, embedded: Tensor, state: InputFeedingState) -> DecoderOutput:
        """(B, T, D) -> (B, T, D), and the state after the last step."""
        attend = self.look(state.source, self.score, self.capture)
        hidden, after = self.read(embedded, state, attend)
        return DecoderOutput(hidden, after, {})


class AttentionFormDecoder(InputFeedingDecoder):
    """Attention through a window, or hard attention; see `regard.attention.selection`."""

    def __init__(self, config: Seq2SeqConfig, score: SourceScore, form: AttentionFormStep):
        super().__init__(config, score)
        self.form, self.extras = form, form.selection.extras

    def start(self, memory: Tensor, source: Sequences, cells: Cells) -> AttentionFormState:
        first = self.first_state(memory, source, cells)
        progress = FormProgress.start(self.form.selection.keys(source))
        return AttentionFormState(first.cells, first.fed, first.source, progress)

    def forward(self, embedded: Tensor, state: AttentionFormState) -> DecoderOutput:
        """(B, T, D) -> (B, T, D), and the state after the last step."""
        loop = self.form(state.source, state.progress, self.score, self.capture)
        hidden, after = self.read(embedded, state, loop)
        following = AttentionFormState(after.cells, after.fed, after.source, loop.progress)
        return DecoderOutput(hidden, following, loop.extras())


class Seq2Seq(nn.Module, EncoderDecoder[State]):
    """Sequence to sequence with LSTMs, without attention (Sutskever et al. 2014) and with it.

    The recurrent `EncoderDecoder`.
    """

    Config = Seq2SeqConfig
    family = RECURRENT
    # "luong" and "bahdanau" are as deep and wide as the papers' models; ours have LSTMs throughout,
    # an encoder of both directions that are half as wide, and one shared embedding.
    SIZES = {
        "tiny": dict(d_model=256, layers=1, attention="general", dropout=0.3),
        "bahdanau": dict(d_model=1000, layers=1, attention="additive", dropout=0.0),
        "luong": dict(d_model=1000, layers=4, attention="general", dropout=0.2),
    }

    def __init__(self, config: Seq2SeqConfig):
        super().__init__()
        self.config = config
        width, d_embedding = config.d_model, config.d_embedding or config.d_model
        check_forms(config)
        self.embedding = nn.Embedding(config.vocab_size, d_embedding)
        nn.init.normal_(self.embedding.weight, std=d_embedding**-0.5)
        self.encoder = recurrent.BidirectionalStack(
            recurrent.LSTM, d_embedding, width, config.layers, dropout=config.dropout
        )
        self.bridge = Linear(width, 2 * width)
        self.decoder = decoder(config)
        self.extras = self.decoder.extras
        self.dropout = Dropout(config.dropout)
        tied = self.embedding if config.tied else None
        self.head = Softmax(width, config.vocab_size, tied=tied, bias=True)

    def forward(self, source: Sequences, target: Sequences) -> Output:
        """Hidden states (B, T, D); source and target must be padded."""
        # One lookup for both sides: the gradient of a lookup is as large as the whole vocabulary.
        embedded = self._embed(torch.cat([source.ids, target.ids], 1))
        sources, targets = embedded.split([source.ids.size(1), target.ids.size(1)], 1)
        output = self.decoder(targets, self._read(sources, source))
        return Output(self.dropout(output.hidden), extras=output.extras)

    def read(self, source: Sequences) -> State:
        """The state before the first target token."""
        return self._read(self._embed(source.ids), source)

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Logits (B, T, V) of the token after each of the tokens (B, T), and the next state."""
        state.consume()
        hidden, state, _ = self.decoder(self._embed(tokens), state)
        return self.head.logits(self.dropout(hidden)), state

    def _read(self, words: Tensor, source: Sequences) -> State:
        """The decoder's initial state: layer n starts from the last state of layer n of the
        encoder.
        """
        memory, end = self.encoder(words, source.lengths)
        hidden, cell = self.bridge(end).to(memory.dtype).chunk(2, -1)  # 2 times (B, L, D)
        return self.decoder.start(memory, source, Cells(torch.tanh(hidden), cell))

    def _embed(self, ids: Tensor) -> Tensor:
        return self.dropout(self.embedding(ids))


def decoder(config: Seq2SeqConfig) -> PlainDecoder | AttentionDecoder | AttentionFormDecoder:
    """The decoder with this configuration's attention, or with none."""
    if config.attention == "none":
        return PlainDecoder(config)
    score = SCORES[config.attention](config)
    if (config.window, config.selection) == ("global", "soft"):
        return AttentionDecoder(config, score)
    form = AttentionFormStep(WINDOWS[config.window](config), SELECTIONS[config.selection](config))
    return AttentionFormDecoder(config, score, form)


# option -> the option on which it depends, and the values of that with which it has an effect
DEPENDS = {
    "window": ("attention", (*SCORES,)),
    "selection": ("attention", (*SCORES,)),
    "half_width": ("window", ("local-m", "local-p")),
    "expected_share": ("selection", ("hard",)),
    "choice_seed": ("selection", ("hard", "hard-expected")),
}


def check_forms(config: Seq2SeqConfig) -> None:
    """Check the options against each other.

    Raises:
        ConfigError: an option has no effect with the value of another; or the output is tied to an
            embedding of another width.
    """
    if config.tied and config.d_embedding not in (None, config.d_model):
        raise ConfigError(
            f"`d_embedding` must be `d_model` ({config.d_model}) where the output is tied to the "
            f"embedding, but is {config.d_embedding}: leave it out, or set tied = false."
        )
    defaults = {option.name: option.default for option in fields(config)}
    for name, (other, values) in DEPENDS.items():
        chosen = vars(config)
        if chosen[name] != defaults[name] and chosen[other] not in values:
            must = " or ".join(f'"{value}"' for value in values)
            raise ConfigError(
                f'`{name}` has no effect with {other} = "{chosen[other]}": leave it out, or choose '
                f"{other} = {must}."
            )
