"""Captions of images by a recurrent decoder: "Show, Attend and Tell" (Xu et al. 2015).

    regions a_i (S vectors) -> their mean -> first state of the LSTM
    word, h -> context z of the regions -> LSTM -> h -> output

At each step (section 3.1.2, equations 1 to 3 and 7; section 4.2.1)

    e_i = f_att(a_i, h)        alpha = softmax(e)
    z = beta phi(a, alpha)     beta = sigmoid(f_beta(h))
    h, c = LSTM([E y; z], h, c)
    p(next word) = softmax(L_o (E y + L_h h + L_z z))

f_att is the additive score, and phi the sum of alpha_i a_i (soft attention), or one region that is
drawn with probability alpha_i (hard attention, section 4.1: REINFORCE as in `regard.tasks`).
"""

from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from regard.attention.attend import EQUAL, Additive, SourceScore
from regard.attention.cache import SourceMemory
from regard.attention.capture import CapturePoint
from regard.attention.selection import (
    AttentionFormLoop,
    AttentionFormStep,
    FormProgress,
    GlobalWindow,
    Hard,
    HardInEvaluation,
    Soft,
    WeightSelection,
)
from regard.data.batches import Sequences
from regard.data.images import regions_of
from regard.errors import ConfigError, check_choice
from regard.layers.dropout import Dropout
from regard.layers.linear import Linear
from regard.layers.recurrent import LSTMStep
from regard.layers.softmax import Softmax
from regard.models.config import RECURRENT, Count, Probability, Size, TokenId
from regard.models.protocols import EncoderDecoder, Output
from regard.state import Cells, State

# In `Output.extras` of training: of each step the weight of each region, (B, T, S).
ATTENTION_WEIGHTS = "attention_weights"
Attention = Literal["soft", "hard", "hard-expected", "mean"]
EXPECTED_SHARE = 0.5  # where a configuration names none


@dataclass(frozen=True)
class ShowAttendTellConfig:
    """d_region: width of the vector of a region.

    attention: "soft", "hard", "hard-expected" (regard/attention/selection.py), or "mean" of all
        regions, which is a decoder without attention.
    expected_share, choice_seed: options of hard attention, as of `Seq2SeqConfig`.
    """

    vocab_size: Size
    d_region: Size = 1280
    d_model: Size = 512
    d_embedding: Size = 512
    attention: Attention = "soft"
    expected_share: Probability | None = None
    choice_seed: Count | None = None
    dropout: Probability = 0.5
    max_length: Size | None = None
    pad: TokenId = 0
    bos: TokenId = 1
    eos: TokenId = 2

    def __post_init__(self) -> None:
        check_choice("attention", self.attention, get_args(Attention))
        if self.expected_share is not None and self.attention != "hard":
            raise ConfigError('`expected_share` has no effect without attention = "hard".')
        if self.choice_seed is not None and not self.attention.startswith("hard"):
            raise ConfigError("`choice_seed` has no effect without hard attention.")


def selection(config: ShowAttendTellConfig) -> WeightSelection:
    """Soft or hard attention."""
    match config.attention:
        case "hard":
            share = config.expected_share
            return Hard(config.choice_seed, EXPECTED_SHARE if share is None else share)
        case "hard-expected":
            return HardInEvaluation(config.choice_seed)
        case _:
            return Soft()


@dataclass
class CaptionState(State):
    """The LSTM's state, the regions, and the counters of hard attention."""

    cells: Cells
    source: SourceMemory
    progress: FormProgress


class ShowAttendTell(nn.Module, EncoderDecoder[CaptionState]):
    """Captions of images by a recurrent decoder: "Show, Attend and Tell" (Xu et al. 2015).

    An `EncoderDecoder` whose source is the regions of an image.
    """

    Config = ShowAttendTellConfig
    family = RECURRENT
    reads_regions = True
    SIZES: dict[str, Any] = {"tiny": dict(d_model=256, d_embedding=128)}  # noqa: RUF012

    def __init__(self, config: ShowAttendTellConfig):
        super().__init__()
        self.config = config
        width, region, word = config.d_model, config.d_region, config.d_embedding
        self.embedding = nn.Embedding(config.vocab_size, word)
        nn.init.normal_(self.embedding.weight, std=word**-0.5)
        self.first_hidden, self.first_cell = Linear(region, width), Linear(region, width)
        self.score: SourceScore = EQUAL
        if config.attention != "mean":
            self.score = Additive(width, region, width)  # f_att
        self.look = AttentionFormStep(GlobalWindow(), selection(config))
        self.capture = CapturePoint("cross")
        self.gate = Linear(width, 1)  # f_beta
        self.words = Linear(word, 4 * width)
        self.gates = Linear(region + width, 4 * width, bias=False)
        self.cell = LSTMStep()
        self.hidden_output = Linear(width, word, bias=False)  # L_h
        self.context_output = Linear(region, word, bias=False)  # L_z
        self.dropout = Dropout(config.dropout)
        self.head = Softmax(word, config.vocab_size, tied=None, bias=True)  # L_o
        self.extras = (ATTENTION_WEIGHTS, *self.look.selection.extras)

    def forward(self, source: Sequences, target: Sequences) -> Output:
        """See `EncoderDecoder`; both must be padded, and the source has `regions`."""
        hidden, _, loop = self._decode(target.ids, self.read(source))
        if not self.training:
            return Output(hidden)
        # T times (N, H=1, B/N, S) -> (B, T, S)
        weights = torch.stack([step.flatten(0, 2) for step in loop.weights], 1)
        return Output(hidden, extras={ATTENTION_WEIGHTS: weights, **loop.extras()})

    def read(self, source: Sequences) -> CaptionState:
        """The state before the first word; h and c are functions of the mean region."""
        regions = regions_of(source, self.words.bias)
        mean = source.mean(regions)  # zeros of an image without regions
        hidden = torch.tanh(self.first_hidden(mean))[:, None]  # (B, F) -> (B, L=1, D)
        cell = torch.tanh(self.first_cell(mean))[:, None]
        keys = self.score.prepare(regions)[:, None, None]  # (B, S, K) -> (B, L=1, H=1, S, K)
        memory = SourceMemory(keys, regions[:, None, None], source.lengths)
        progress = FormProgress.start(self.look.selection.keys(source))
        return CaptionState(Cells(hidden, cell), memory, progress)

    def step(self, tokens: Tensor, state: CaptionState) -> tuple[Tensor, CaptionState]:
        """Logits (B, T, V) of the token after each of the tokens (B, T), and the next state."""
        state.consume()
        hidden, state, _ = self._decode(tokens, state)
        return self.head.logits(hidden), state

    def _decode(
        self, ids: Tensor, state: CaptionState
    ) -> tuple[Tensor, CaptionState, AttentionFormLoop]:
        """The input of the head (B, T, d_embedding), the next state, and the attention."""
        loop = self.look(state.source, state.progress, self.score, self.capture)
        embedded = self.embedding(ids)  # (B, T) -> (B, T, d_embedding)
        hidden, cell = state.cells.hidden[:, 0], state.cells.cell[:, 0]
        hiddens, contexts = [], []
        for word in self.words(embedded).to(hidden.dtype).unbind(1):
            context = torch.sigmoid(self.gate(hidden)) * loop(hidden)  # (B, d_region)
            gates = self.gates(torch.cat([context, hidden], 1))
            hidden, cell = self.cell(word, gates, cell)
            hiddens.append(hidden)
            contexts.append(context)
        after = CaptionState(Cells(hidden[:, None], cell[:, None]), state.source, loop.progress)
        outputs = self._output(embedded, torch.stack(hiddens, 1), torch.stack(contexts, 1))
        return outputs, after, loop

    def _output(self, embedded: Tensor, hidden: Tensor, context: Tensor) -> Tensor:
        """Equation 7 without L_o: (B, T, d_embedding)."""
        update = self.hidden_output(self.dropout(hidden)) + self.context_output(context)
        output: Tensor = self.dropout(embedded + update)
        return output
