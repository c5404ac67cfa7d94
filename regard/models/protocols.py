"""The shapes a model can have: what tasks, decoders and pictures may ask of it, and nothing else.

`forward` returns hidden states; the head turns them into scores or a loss. Decoding needs three
verbs and no model's name:

    state, tokens = model.start(source)         a memory, and the first tokens to feed
    scores, state = model.step(tokens, state)   (R, T) -> (R, T, V), up to a constant per position
    state = state.select(rows)                  rows reordered, repeated or dropped

A model inherits the shapes that it has. What a shape offers beyond its abstract methods has a plain
form here, which a model replaces where it can do better.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor, nn

from regard.data.batches import Sequences
from regard.state import State
from regard.text.templates import Template

Chosen = Callable[[Iterator[Tensor]], Tensor]


@dataclass(frozen=True)
class Output:
    """What every model's `forward` returns.

    hidden: (B, T, D), what the head reads.
    state: what a recurrent model carries to the next window.
    extras: named auxiliaries that an objective needs.
    """

    hidden: Tensor
    state: State | None = None
    extras: dict[str, Tensor] = field(default_factory=dict)


class Head(Protocol):
    """From hidden states to tokens."""

    def logits(self, hidden: Tensor) -> Tensor: ...

    def loss(
        self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0, count: int | None = None
    ) -> tuple[Tensor, int]:
        """Sum of the losses over (N, D) hidden states, and how many targets counted: `count`, where
        that is known, so that nobody waits for a device.
        """
        ...


class Model(ABC):
    """What every model has.

    continues: whether the source of a generation is a prompt to be continued, so that it counts for
        `max_length` and for repetitions, and not something to be answered.
    places: tokens of a padded batch that pass at once on a CPU.
    """

    config: Any  # with vocab_size, d_model, pad and max_length (None: any length)
    training: bool = False  # as of every `nn.Module`
    continues: bool = False
    places: int = 1024
    SIZES: dict[str, Any] = {}  # noqa: RUF012  # name of a published size -> its options


class Generator(Model):
    """What can be decoded. `config` has bos and eos, too."""

    head: Any  # a `Head`

    @abstractmethod
    def start(self, source: Any) -> tuple[Any, Tensor]:
        """The state before the first tokens that are fed, and these, (R, 1).

        source: `Sequences` that are answered or, where the model `continues`, prompts or None.
        """

    @abstractmethod
    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Scores (R, T, V) of what follows each of the tokens (R, T), and the state after them."""


class Encoder(Model):
    """Gives a hidden state for each token of a text, for any task that puts a head on top.

    embedding: the vectors of tokens.
    pooled: the kinds of head whose inner layer comes out of pre-training.
    unpadded: whether in training on a CPU its layers compute nothing of padding, so that batches
        may hold rows of any lengths.
    segment_types: how many texts of a row it tells apart by their segments.
    """

    embedding: Any  # ids (...,) -> (..., D)
    pooled: tuple[str, ...] = ()
    unpadded: bool = False

    @property
    def segment_types(self) -> int:
        """See above."""
        return 1

    @abstractmethod
    def encode(self, texts: Sequences) -> Tensor:
        """Hidden states of the last layer, (B, T, D)."""

    @abstractmethod
    def layers(self, texts: Sequences) -> Iterator[Tensor]:
        """Hidden states of the embeddings, then of each layer; `encode` gives the last."""

    @abstractmethod
    def new_head(self, kind: str, outputs: int = 1) -> nn.Module:
        """A new head of one of the kinds in `regard.models.headed.HEADS`.

        Raises:
            ConfigError: this family has no head of that kind.
        """

    @abstractmethod
    def template(self, tokenizer: Any) -> Template:
        """How texts become rows, where the tokenizer's file does not say it."""

    def encode_first(self, texts: Sequences) -> Tensor:
        """Hidden states of the first token of each text, (B, 1, D)."""
        return self.encode(texts)[:, :1]

    def encode_at(self, texts: Sequences, places: Tensor) -> Tensor:
        """Hidden states of some tokens, row by row: places (B, T), boolean -> (M, D)."""
        return self.encode(texts)[places]

    def chosen(self, texts: Sequences, choice: Chosen) -> Tensor:
        """What is chosen of all layers for the tokens of all rows, end to end, (N, D)."""
        return choice(self.layers(texts))[texts.keep]


class LanguageModel(Generator):
    """Predicts each token from those before it. `start` takes prompts, or None."""

    continues = True

    @abstractmethod
    def forward(self, ids: Tensor, state: Any = None) -> Output:
        """Hidden states (B, T, D) for predicting what follows each of the ids (B, T)."""


class EncoderDecoder(Generator):
    """Predicts each target token from a source and the target tokens before it."""

    @abstractmethod
    def forward(
        self, source: Sequences, target_ids: Tensor, target_lengths: Tensor | None = None
    ) -> Output:
        """Hidden states for predicting what follows each of the ids (B, T).

        Where lengths (B,) of the targets are given, those behind them mean nothing.
        """
