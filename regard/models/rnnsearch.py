"""RNNsearch: "Neural Machine Translation by Jointly Learning to Align and Translate"
(Bahdanau et al. 2014).

    source x -> embed -> GRU in both directions -> annotations h_j = [ahead_j; back_j]
    s_0 = tanh(W_s back_1)
    for each word y_(i-1) of the target, E y its embedding (sections A.1 and A.2)

        e_ij = v · tanh(W_a s_(i-1) + U_a h_j)      alpha_i = softmax(e_i)
        c_i = sum over j of alpha_ij h_j
        t_i = maxout(U_o s_(i-1) + V_o E y + C_o c_i)   p(y_i) = softmax(W_o t_i)
        s_i = GRU([E y; c_i], s_(i-1))

The decoder attends before its recurrent step; Luong's (`lstm-seq2seq`) attends after it. Both sides
have one vocabulary, and each its own embeddings.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.attention.cache import SourceMemory
from regard.attention.capture import CapturePoint
from regard.attention.scores import Additive
from regard.attention.selection import CrossAttentionStep
from regard.data.batches import Sequences
from regard.layers.dropout import Dropout
from regard.layers.linear import Linear
from regard.layers.recurrent import BidirectionalStack, ResetFirstGRU, reset_first_gru_step
from regard.layers.softmax import Softmax
from regard.models.config import RECURRENT, Probability, Size, TokenId
from regard.models.protocols import EncoderDecoder, Output
from regard.state import State


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


SIZES = {"tiny": dict(d_model=256, d_embedding=256, d_score=256, d_maxout=256, dropout=0.3)}


@dataclass
class SearchState(State):
    """The decoder's hidden state s (B, D), and the annotations of the source."""

    hidden: Tensor
    source: SourceMemory


class RNNSearch(nn.Module, EncoderDecoder[SearchState]):
    """RNNsearch: an `EncoderDecoder` of GRUs with additive attention, the first with attention."""

    Config = RNNSearchConfig
    family = RECURRENT
    SIZES = SIZES

    def __init__(self, config: RNNSearchConfig):
        super().__init__()
        self.config = config
        width, word = config.d_model, config.d_embedding
        self.source_embedding = nn.Embedding(config.vocab_size, word)
        self.embedding = nn.Embedding(config.vocab_size, word)
        for table in (self.source_embedding, self.embedding):
            nn.init.normal_(table.weight, std=word**-0.5)
        self.encoder = BidirectionalStack(ResetFirstGRU, word, 2 * width, 1)
        self.first = Linear(width, width)  # W_s
        self.score = Additive(width, 2 * width, config.d_score)
        self.cross_attention, self.capture = CrossAttentionStep(), CapturePoint("cross")
        self.gru = ResetFirstGRU(word + 2 * width, width)
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
            hidden = reset_first_gru_step(below, hidden, self.gru.recurrent.weight)
        pairs = self.readout(torch.stack(inputs, 1)).unflatten(2, (-1, 2))  # -> (B, T, l, 2)
        return self.dropout(pairs.amax(-1)), SearchState(hidden, state.source)
