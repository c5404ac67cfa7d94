"""ELMo: "Deep contextualized word representations" (Peters et al. 2018).

    characters -> convolutions, highways -> x -> L x LSTM forward  -> softmax: the next word
                                              -> L x LSTM backward -> softmax: the word before

A word enters by its characters alone, so that every word has a vector. Each direction is a language
model of its own; they share the character layers and the softmax. What a task reads of a word is a
mix of the layers that is learned with the task (eq. 1),

    ELMo = gamma * sum_j s_j h_j,  h_0 = [x; x],  h_j = [forward_j; backward_j]

As in the published models the hidden states of an LSTM are a projection of wider cells, both are
clipped, and layers above the first add their input to their output. Every sequence starts from
zeros, so that its states do not depend on earlier texts. `carried` continues from a state instead,
as the authors' program does from batch to batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from regard import ops
from regard.data.batches import ALL, Sequences, TokenSubset
from regard.layers.characters import (
    CharacterConvolution,
    FilterActivation,
    Highway,
    vectors_of_words,
    with_characters,
)
from regard.layers.dropout import Dropout
from regard.layers.linear import SharedWeightMatmul
from regard.layers.pooling import ScalarMix
from regard.layers.recurrent import last_states, reorder, reverse_order, stack_cells
from regard.layers.softmax import SampledSoftmax, Softmax
from regard.layers.task_heads import HEAD_INIT, init_weights, linear_head, mean_of_tokens
from regard.models.config import RECURRENT, Count, Filters, Limit, Probability, Size, TokenId
from regard.models.gpt2 import NoLMHead
from regard.models.protocols import Encoder, Output, States
from regard.state import Cells, State
from regard.text.closed_vocabulary import ELMO_CHARACTERS
from regard.text.templates import Template
from regard.text.tokenizer import OpenVocabulary

Direction = Literal["forward", "backward"]


@dataclass(frozen=True)
class ElmoConfig:
    """The defaults are the original model.

    d_model: width of a hidden state, both directions together.
    d_cell: width of the cells of one direction.
    filters: (width in characters, number of filters) of the character convolutions.
    word_length: characters of a word that are read, with the two that mark its ends.
    activation: activation function of the convolutions.
    cell_clip, projection_clip: the largest absolute value of cells and hidden states; None: any.
    residual: whether a layer above the first adds its input to its output.
    output: "own": a softmax over the vocabulary; "none": weights came without one.
    negative_samples: words that the softmax compares the target with in training; None: all.
    """

    vocab_size: Size
    d_model: Size = 1024
    d_cell: Size = 4096
    layers: Size = 2
    d_character: Size = 16
    filters: Filters = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
    word_length: Size = 50
    highway_layers: Count = 2
    activation: FilterActivation = "relu"
    cell_clip: Limit | None = 3.0
    projection_clip: Limit | None = 3.0
    residual: bool = True
    dropout: Probability = 0.1
    output: Literal["own", "none"] = "own"
    negative_samples: Size | None = None
    max_length: Size | None = None  # any
    pad: TokenId | None = 0
    bos: TokenId = 1
    eos: TokenId = 2

    def __post_init__(self) -> None:
        if self.d_model % 2:
            raise ValueError(f"`d_model` must be even, half a direction, but is {self.d_model}.")
        widest = max((width for width, _ in self.filters), default=0)
        if not 1 <= widest <= self.word_length or self.word_length < 3:
            raise ValueError(
                f"`filters` must have widths of at most `word_length`, which is at least 3, but "
                f"the widest is {widest} and `word_length` {self.word_length}."
            )


@dataclass
class BidirectionalCells(State):
    """The state of both directions: hidden (B, L, P) and cells (B, L, D) of each."""

    forward: Cells
    backward: Cells

    def cleared(self, rows: Tensor) -> BidirectionalCells:
        """The same state with zeros in these rows, (B,) bool."""
        self.consume()
        tensors = {
            name: torch.where(rows[:, None, None], 0.0, tensor)
            for name, tensor in self.tensors().items()
        }
        return self.with_tensors(tensors)


class ProjectedLSTM(nn.Module):
    """c' = clip(f c + i g),  h' = clip(R (o tanh(c')))     (Sak et al. 2014, clipped as in ELMo)

    One layer of D cells whose hidden states have P dimensions, gates in the order i, f, g, o.

    Args:
        d_in, d_cell, d_model: D_in, D and P.
        cell_clip, projection_clip: the largest absolute value of cells and of hidden states; None:
            no limit.
    """

    def __init__(
        self,
        d_in: int,
        d_cell: int,
        d_model: int,
        *,
        cell_clip: float | None = None,
        projection_clip: float | None = None,
    ):
        super().__init__()
        self.d_cell, self.d_model = d_cell, d_model
        self.cell_clip, self.projection_clip = cell_clip, projection_clip
        self.input = nn.Linear(d_in, 4 * d_cell)
        self.recurrent = nn.Linear(d_model, 4 * d_cell, bias=False)
        self.projection = nn.Linear(d_cell, d_model, bias=False)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(d_cell**-0.5), d_cell**-0.5)

    def forward(self, x: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        """Every hidden state (B, T, P), and every cell (B, T, D).

        Args:
            x: (B, T, D_in).
            hidden, cell: before the first step, (B, P) and (B, D).
        """
        if x.size(1) == 0:
            return hidden[:, None][:, :0], cell[:, None][:, :0]
        # One product for the inputs of all steps: (B, T, D_in) -> (T, B, 4 D)
        below = ops.linear(x.transpose(0, 1), self.input.weight, self.input.bias).to(cell.dtype)
        recurrent = SharedWeightMatmul(self.recurrent.weight)
        projection = SharedWeightMatmul(self.projection.weight)
        hiddens, cells = [], []
        for of_input in below.unbind():
            i, f, g, o = (of_input + recurrent(hidden)).chunk(4, 1)
            cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
            if self.cell_clip is not None:
                cell = cell.clamp(-self.cell_clip, self.cell_clip)
            hidden = projection(torch.sigmoid(o) * torch.tanh(cell))
            if self.projection_clip is not None:
                hidden = hidden.clamp(-self.projection_clip, self.projection_clip)
            hiddens.append(hidden)
            cells.append(cell)
        return torch.stack(hiddens, 1), torch.stack(cells, 1)

    def empty(self, rows: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """The state before anything was read: zeros, (B, P) and (B, D)."""
        return like.new_zeros(rows, self.d_model), like.new_zeros(rows, self.d_cell)


class LayerOutput(NamedTuple):
    """Of a layer of one direction: hidden states (B, T, P), cells (B, T, D), and both at the end,
    (B, P) and (B, D).
    """

    hidden: Tensor
    cells: Tensor
    end: tuple[Tensor, Tensor]


class WordEncoder(nn.Module):
    """characters -> convolutions -> highways -> projection."""

    def __init__(self, config: ElmoConfig):
        super().__init__()
        width, d_word = sum(count for _, count in config.filters), config.d_model // 2
        self.characters = CharacterConvolution(
            ELMO_CHARACTERS, config.d_character, config.filters, config.activation
        )
        self.highways = nn.Sequential(*(Highway(width) for _ in range(config.highway_layers)))
        # The authors' program projects where the widths differ.
        self.projection = nn.Identity() if width == d_word else nn.Linear(width, d_word)

    def forward(self, batch: Sequences) -> Tensor:
        """(B, T, P), zeros at the padding; "characters" of the extras are (B, T, C).

        Equal ids of a batch have equal characters.
        """
        return vectors_of_words(batch, self._of)

    def _of(self, characters: Tensor) -> Tensor:
        """(N, C) -> (N, P)"""
        vectors: Tensor = self.projection(self.highways(self.characters(characters)))
        return vectors


class Elmo(nn.Module, Encoder):
    """ELMo: "Deep contextualized word representations" (Peters et al. 2018).

    A bidirectional language model, an `Encoder` whose output is a mix of all its layers.
    """

    Config = ElmoConfig
    family = RECURRENT
    # Without the softmax 93.6M, 28.0M and 13.6M parameters (allennlp.org/elmo).
    SIZES = {
        "original": dict(d_model=1024, d_cell=4096, highway_layers=2),
        "medium": dict(d_model=512, d_cell=2048, highway_layers=1),
        "small": dict(d_model=256, d_cell=1024, highway_layers=1),
    }

    def __init__(self, config: ElmoConfig):
        super().__init__()
        self.config = config
        self.words = WordEncoder(config)
        self.ahead, self.back = self._direction(), self._direction()
        self.dropout = Dropout(config.dropout)
        self.head: Any = self._head()
        self.mix = ScalarMix(config.layers)

    def _direction(self) -> Sequence[ProjectedLSTM]:
        config, width = self.config, self.config.d_model // 2
        clips = dict(cell_clip=config.cell_clip, projection_clip=config.projection_clip)
        layers = [ProjectedLSTM(width, config.d_cell, width, **clips) for _ in range(config.layers)]
        for layer in layers:
            nn.init.constant_(layer.input.bias[config.d_cell : 2 * config.d_cell], 1.0)  # forget
        return cast("Sequence[ProjectedLSTM]", nn.ModuleList(layers))

    def _head(self) -> nn.Module:
        config, width = self.config, self.config.d_model // 2
        if config.output == "none":
            return NoLMHead()
        if config.negative_samples is None:
            return Softmax(width, config.vocab_size, tied=None, bias=True)
        return SampledSoftmax(width, config.vocab_size, config.negative_samples)

    # ---- words

    @property
    def embedding(self) -> nn.Embedding:  # type: ignore[override]
        """The embedding of characters; tokens have none."""
        return self.words.characters.embedding

    @property
    def word_tables(self) -> list[nn.Embedding]:
        """None: words are read by their characters."""
        return []

    def static(self, batch: Sequences) -> Tensor:
        """h_0, the features of the words' characters."""
        return next(self.states(batch))

    def input_tokenizer(self, tokenizer: Any) -> Any:
        """See `Encoder`: words outside of the vocabulary have characters."""
        return OpenVocabulary.of(tokenizer)

    def complete(self, batch: Sequences, tokenizer: Any) -> Sequences:
        """See `Encoder`: the extra "characters", (B, T, C).

        C is `word_length`, or less: the longest word of the batch and the widest filter. All later
        windows contain only padding and have the same maximum.
        """
        widest = max(width for width, _ in self.config.filters)
        return with_characters(batch, tokenizer, self.config.word_length, widest)

    # ---- an encoder

    def states(self, batch: Sequences, tokens: TokenSubset = ALL) -> States:
        """See `Encoder`: h_0, then of each layer both directions; every sequence from zeros."""
        for n, (hidden, _) in enumerate(self._layers(batch, self.empty(len(batch)))):
            yield tokens.of(hidden) if n == self.config.layers else hidden

    def encode(self, batch: Sequences, tokens: TokenSubset = ALL) -> Tensor:
        """The mix of h_0 and all layers, (B, T, D)."""
        return tokens.of(self.mix(self.states(batch)))

    def carried(
        self, batch: Sequences, state: BidirectionalCells | None = None
    ) -> tuple[list[Tensor], BidirectionalCells]:
        """As `states`, but each sequence continues from its row of a state; also the next state.

        The backward direction continues from its last state, that of the first word of the earlier
        text.
        """
        if state is not None:
            state.consume()
        layers = list(self._layers(batch, state or self.empty(len(batch))))
        ends = [end for _, end in layers[1:]]
        parts = (stack_cells([end[side] for end in ends]) for side in (0, 1))
        return [hidden for hidden, _ in layers], BidirectionalCells(*parts)

    def empty(self, rows: int) -> BidirectionalCells:
        """The state before anything was read: zeros."""
        like = self.ahead[0].projection.weight
        start = stack_cells([layer.empty(rows, like) for layer in self.ahead])
        return BidirectionalCells(start, start)

    def _layers(
        self, batch: Sequences, start: BidirectionalCells
    ) -> Iterator[tuple[Tensor, tuple[Any, ...]]]:
        """h_0, then the hidden states (B, T, D) of each layer and the last states of both
        directions.
        """
        x, order = self.words(batch), reverse_order(batch.lengths, batch.ids.size(1))
        yield torch.cat([x, x], -1), ()
        forward = self._read(self.ahead, x, start.forward, batch.lengths)
        backward = self._read(self.back, reorder(x, order), start.backward, batch.lengths)
        for ahead, back in zip(forward, backward, strict=True):
            hidden = torch.cat([ahead.hidden, reorder(back.hidden, order)], -1)
            yield hidden, (ahead.end, back.end)

    def cells(self, batch: Sequences, direction: Direction, start: Cells) -> tuple[Tensor, Cells]:
        """The cells (B, T, L, D) of one direction after each word, and its state at the end.

        Args:
            batch: without padding, in the order in which this direction reads it.
            start: of this direction, such as `empty(B).forward`.
        """
        layers = self.ahead if direction == "forward" else self.back
        outputs = list(self._read(layers, self.words(batch), start, batch.lengths))
        cells = torch.stack([output.cells for output in outputs], 2)
        return cells, stack_cells([output.end for output in outputs])

    def _read(
        self, layers: Sequence[ProjectedLSTM], x: Tensor, start: Cells, lengths: Tensor
    ) -> Iterator[LayerOutput]:
        """What each layer gives."""
        nonempty = lengths[:, None] > 0
        for n, layer in enumerate(layers):
            x, before = self.dropout(x), (start.hidden[:, n], start.cell[:, n])
            hiddens, cells = layer(x, *before)
            ends = zip((hiddens, cells), before, strict=True)
            end = [torch.where(nonempty, last_states(states, lengths), old) for states, old in ends]
            x = hiddens + x if n and self.config.residual else hiddens
            yield LayerOutput(x, cells, (end[0], end[1]))

    # ---- two language models

    def forward(self, batch: Sequences, state: BidirectionalCells | None = None) -> Output:
        """Hidden states of the last layer that predict the token after each token, (2B, T, P).

        Args:
            batch: without padding. The first B sequences are read by the forward direction; the
                other B are the same texts reversed, read by the backward one.
            state: of B sequences, from which both directions continue; None: zeros.
        """
        if state is not None:
            state.consume()
        rows = len(batch) // 2
        state = state or self.empty(rows)
        sides, ends = [], []
        for layers, x, start in zip(
            (self.ahead, self.back),
            self.words(batch).split(rows),
            (state.forward, state.backward),
            strict=True,
        ):
            outputs = list(self._read(layers, x, start, batch.lengths[:rows]))
            sides.append(outputs[-1].hidden)
            ends.append(stack_cells([output.end for output in outputs]))
        return Output(self.dropout(torch.cat(sides)), BidirectionalCells(*ends))

    # ---- heads and texts

    def new_head(self, kind: str, outputs: int = 1) -> nn.Module:
        """A new head of a kind in `regard.models.encoder_with_heads.HEADS`.

        Raises:
            ConfigError: this family has no head of that kind.
        """
        return init_weights(linear_head(self, kind, outputs, pooling=mean_of_tokens), HEAD_INIT)

    @staticmethod
    def template(tokenizer: Any) -> Template:
        """<S> A </S>, and <S> A </S> <S> B </S>."""
        begin, end = tokenizer.required_ids("bos", "eos")
        return Template.around((begin,), (end, begin), (end,))
