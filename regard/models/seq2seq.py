"""Sequence to sequence with LSTMs, without attention (Sutskever et al. 2014) and with it.

    source -> embed -> bidirectional LSTM -> memory, and a first state for the decoder
    target -> embed -> LSTM -> hidden states, each looking at the memory where there is attention

Attention is Luong's (2015, section 3): c = attend(h, memory), ~h = tanh(W_c [c; h]), and ~h is fed
to the next step beside the next word ("input feeding", section 3.3). Its score is a part: additive
(Bahdanau et al. 2014), dot or general (Luong et al. 2015).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from regard.attention.attend import Score
from regard.attention.cache import SourceMemory
from regard.attention.capture import CapturePoint
from regard.attention.cross_step import CrossAttentionStep
from regard.attention.scores import PLAIN, Additive, General
from regard.data.batches import Sequences
from regard.layers.dropout import Dropout
from regard.layers.linear import Linear
from regard.layers.recurrent import LSTM, BidirectionalStack, LSTMStep, Stack
from regard.layers.softmax import Softmax
from regard.models.config import Probability, Size, TokenId
from regard.models.protocols import EncoderDecoder, Output
from regard.state import Cells, State


@dataclass(frozen=True)
class Seq2SeqConfig:
    """The defaults follow Luong et al. 2015, section 4.1, with the score that they found best."""

    vocab_size: Size  # of both languages together
    d_model: Size = 1000  # of embedding, decoder layers, and both directions of the encoder
    layers: Size = 4  # of encoder and decoder each
    attention: str = "general"  # none, additive, dot or general
    dropout: Probability = 0.2
    max_length: Size | None = None  # any
    pad: TokenId = 0
    bos: TokenId = 1  # the token with which the decoder starts
    eos: TokenId = 2


# "luong" and "bahdanau" are as deep and wide as the papers' models; ours have LSTMs throughout, an
# encoder of both directions that are half as wide, and one shared embedding.
SIZES = {
    "tiny": dict(d_model=256, layers=1, attention="general", dropout=0.3),
    "bahdanau": dict(d_model=1000, layers=1, attention="additive", dropout=0.0),
    "luong": dict(d_model=1000, layers=4, attention="general", dropout=0.2),
}

SCORES: dict[str, Callable[[int], Score]] = {
    "additive": lambda width: Additive(width, width, width),
    "dot": lambda width: PLAIN,
    "general": lambda width: General(width, width),
}


@dataclass
class FedState(State):
    """Cells, the attentional vector that is fed to the next step (R, D), and the source."""

    cells: Cells
    fed: Tensor
    source: SourceMemory


class PlainDecoder(nn.Module):
    """Knows of the source only what its first state says."""

    def __init__(self, config: Seq2SeqConfig):
        super().__init__()
        width = config.d_model
        self.stack = Stack(LSTM, width, width, config.layers, dropout=config.dropout)

    def start(self, memory: Tensor, lengths: Tensor, cells: Cells) -> Cells:
        return cells

    def forward(self, embedded: Tensor, state: Cells) -> tuple[Tensor, Cells]:
        """(B, T, D) -> (B, T, D), and the state after the last step."""
        return self.stack(embedded, state)


class AttentionDecoder(nn.Module):
    """Looks at the source at every step, and is fed with what it made of it (input feeding)."""

    def __init__(self, config: Seq2SeqConfig, score: Any):
        super().__init__()
        width = config.d_model
        self.words = Linear(width, 4 * width)
        # Each layer's gates from what comes from below (fed, at the bottom) beside its own state.
        gates = [Linear(2 * width, 4 * width, bias=n > 0) for n in range(config.layers)]
        self.gates = cast("Sequence[Linear]", nn.ModuleList(gates))
        self.dropout = Dropout(config.dropout)
        self.score = score
        self.combine = Linear(2 * width, width, bias=False)
        self.capture, self.look, self.cell = CapturePoint("cross"), CrossAttentionStep(), LSTMStep()
        for linear in (self.words, *gates):
            for parameter in linear.parameters():
                nn.init.uniform_(parameter, -(width**-0.5), width**-0.5)

    def start(self, memory: Tensor, lengths: Tensor, cells: Cells) -> FedState:
        """Nothing was attended to yet: the first step is fed with zeros."""
        keys = self.score.prepare(memory)[:, None, None]  # (B, S, K) -> (B, L=1, H=1, S, K)
        source = SourceMemory(keys, memory[:, None, None], lengths)
        return FedState(cells, memory.new_zeros(memory.size(0), memory.size(2)), source)

    def forward(self, embedded: Tensor, state: FedState) -> tuple[Tensor, FedState]:
        """(B, T, D) -> (B, T, D), and the state after the last step."""
        rows, fed = embedded.size(0), state.fed
        # What the words say is one product; (B, T, D) -> (T, B, 4D)
        words = self.words(embedded.transpose(0, 1).contiguous()).to(fed.dtype).unbind()
        shifts = [linear.bias.expand(rows, -1) for linear in self.gates[1:]]
        products = [linear.repeated() for linear in self.gates]
        combine = self.combine.repeated()
        look = self.look(state.source, self.score, self.capture)
        hiddens, cells = list(state.cells.hidden.unbind(1)), list(state.cells.cell.unbind(1))
        outputs = []
        for word in words:
            x = fed
            for n, shift in enumerate([word, *shifts]):
                x = self.dropout(x) if n else x
                gates = products[n](torch.cat([x, hiddens[n]], 1))
                x, cells[n] = self.cell(shift, gates, cells[n])
                hiddens[n] = x
            fed = torch.tanh(combine(torch.cat([look(x), x], 1)))
            outputs.append(fed)
        after = Cells(torch.stack(hiddens, 1), torch.stack(cells, 1))
        return torch.stack(outputs, 1), FedState(after, fed, state.source)


class Seq2Seq(nn.Module, EncoderDecoder[State]):
    """The recurrent `EncoderDecoder`."""

    Config = Seq2SeqConfig
    SIZES = SIZES

    def __init__(self, config: Seq2SeqConfig):
        super().__init__()
        self.config = config
        width = config.d_model
        self.embedding = nn.Embedding(config.vocab_size, width)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.encoder = BidirectionalStack(LSTM, width, width, config.layers, dropout=config.dropout)
        self.bridge = Linear(width, 2 * width)
        self.decoder = decoder(config)
        self.dropout = Dropout(config.dropout)
        self.head = Softmax(width, config.vocab_size, tied=self.embedding, bias=True)

    def forward(self, source: Sequences, target: Sequences) -> Output:
        """See `EncoderDecoder`; both must be padded."""
        # One lookup for both sides: the gradient of a lookup is as large as the whole vocabulary.
        both = self._embed(torch.cat([source.ids, target.ids], 1))
        sources, targets = both.split([source.ids.size(1), target.ids.size(1)], 1)
        hidden, _ = self.decoder(targets, self._read(sources, source.lengths))
        return Output(self.dropout(hidden))

    def read(self, source: Sequences) -> State:
        """The state before the first target token."""
        return self._read(self._embed(source.ids), source.lengths)

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Scores (R, T, V) of what follows each of the tokens (R, T)."""
        state.consume()
        hidden, state = self.decoder(self._embed(tokens), state)
        return self.head.logits(self.dropout(hidden)), state

    def _read(self, words: Tensor, lengths: Tensor) -> State:
        """The decoder's first state; its layer n begins with what the encoder's ended with."""
        memory, end = self.encoder(words, lengths)
        hidden, cell = self.bridge(end).to(memory.dtype).chunk(2, -1)  # 2 times (B, L, D)
        return self.decoder.start(memory, lengths, Cells(torch.tanh(hidden), cell))

    def _embed(self, ids: Tensor) -> Tensor:
        return self.dropout(self.embedding(ids))


def decoder(config: Seq2SeqConfig) -> PlainDecoder | AttentionDecoder:
    """The decoder with this configuration's attention, or with none."""
    if config.attention == "none":
        return PlainDecoder(config)
    if config.attention not in SCORES:
        raise ValueError(
            f"`attention` must be one of none, {', '.join(SCORES)}, but is {config.attention!r}."
        )
    return AttentionDecoder(config, SCORES[config.attention](config.d_model))
