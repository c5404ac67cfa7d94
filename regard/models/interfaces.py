"""The shapes a model can have, as protocols: what tasks, decoders and pictures may rely on.

`forward` returns hidden states; the head turns them into scores or a loss. Decoding needs three
verbs and no model's name:

    state, tokens = model.start(source)         a memory, and the first tokens to feed
    scores, state = model.step(tokens, state)   (R, T) -> (R, T, V), up to a constant per position
    state = state.select(rows)                  rows reordered, repeated or dropped
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor, nn

from regard.data.batches import Sequences
from regard.state import State
from regard.text.templates import Template


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
    """From hidden states to words."""

    def logits(self, hidden: Tensor) -> Tensor: ...

    def loss(
        self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0, count: int | None = None
    ) -> tuple[Tensor, int]:
        """Sum of the losses over (N, D) hidden states, and how many targets counted: `count`, where
        that is known, so that nobody waits for a device.
        """
        ...


class Generator(Protocol):
    """What can be decoded.

    `continues` (False where it is not there) says that the source is a prompt to be continued, so
    that it counts for `max_length` and for repetitions, and not something to be answered.
    """

    config: Any  # with vocab_size, bos, eos and max_length (None: any length)

    def start(self, source: Sequences | None) -> tuple[State, Tensor]: ...

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, State]: ...


class Encoder(Protocol):
    """Gives a hidden state for each token of a text, for any task that puts a head on top.

    `template` says how texts become rows, where the tokenizer's file does not. `pooled` are the
    kinds of head whose inner layer comes out of pre-training. `unpadded` says that in training on a
    CPU its layers compute nothing of padding, so that batches may hold rows of any lengths.
    """

    config: Any  # with vocab_size, d_model, pad and max_length (None: any length)
    pooled: tuple[str, ...]
    unpadded: bool

    def encode(self, texts: Sequences) -> Tensor: ...

    def layers(self, texts: Sequences) -> Iterator[Tensor]:
        """Hidden states of the embeddings, then of each layer; `encode` gives the last."""
        ...

    def new_head(self, kind: str, outputs: int = 1) -> nn.Module:
        """A new head of one of the kinds in `regard.models.headed.HEADS`."""
        ...

    def template(self, tokenizer: Any) -> Template: ...


class LanguageModel(Generator, Protocol):
    """Predicts each token from those before it. `start` takes prompts, or None."""

    continues: bool  # True
    head: Head

    def forward(self, ids: Tensor, state: Any = None) -> Output: ...


class EncoderDecoder(Generator, Protocol):
    """Predicts each target token from a source and the target tokens before it."""

    head: Head

    def forward(
        self, source: Sequences, target_ids: Tensor, target_lengths: Tensor | None = None
    ) -> Output:
        """Hidden states for predicting what follows each of the ids (B, T).

        Where lengths (B,) of the targets are given, those behind them mean nothing.
        """
        ...
