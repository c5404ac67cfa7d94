"""Generators and encoders around a model, which do some of it faster and leave it as it is.

Code that decodes or encodes asks `generator(model)` or `encoder(model)`. Where something faster is
registered that takes the model, such as the compiled kernels, this is a wrapper, which is kept
beside the model; else it is the model itself.
"""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor, nn

from regard.data.batches import Sequences
from regard.data.layout import ALL, TokenSubset
from regard.models.protocols import Encoder, Generator, Output, S, SearchPlan, SearchResults, States
from regard.ops import TopKTokens, operation
from regard.text.templates import Template


@operation
def generator(model: Any) -> Generator:
    """What decodes with a model: the model itself, where nothing faster is registered."""
    return model


@operation
def encoder(model: Any) -> Encoder:
    """What encodes with a model: the model itself, where nothing faster is registered."""
    return model


def unwrapped(model: object) -> Any:
    """The model itself, without what is around it."""
    while isinstance(model, Around):
        model = model.model
    return model


class Around:
    """What every wrapper has: the mode is the model's."""

    model: Any

    @property
    def training(self) -> bool:
        """As of the model."""
        return self.model.training

    def train(self, mode: bool = True) -> Self:
        """As of the model."""
        self.model.train(mode)
        return self


class GeneratorAround(Around, Generator[S]):  # type: ignore[override]
    """A generator around another, which does some of it faster; the rest is the other's."""

    def __init__(self, model: Any):
        self.model = model
        self.config, self.head, self.continues = model.config, model.head, model.continues

    def __call__(self, *arguments: Any) -> Output:
        """As `forward` of the model."""
        return self.model(*arguments)

    @property
    def first_token(self) -> int:
        """As of the model."""
        return self.model.first_token

    def empty(self, sequences: int, dtype: torch.dtype | None = None) -> S:
        """As of the model."""
        return self.model.empty(sequences, dtype)

    def prefill(self, tokens: Tensor, state: S, lengths: Tensor | None = None) -> S:
        """As of the model."""
        return self.model.prefill(tokens, state, lengths)

    def read(self, source: Sequences) -> S:
        """As of the model."""
        return self.model.read(source)

    def step(self, tokens: Tensor, state: S) -> tuple[Tensor, S]:
        """As of the model."""
        return self.model.step(tokens, state)

    def topk(self, tokens: Tensor, state: S, count: int) -> tuple[TopKTokens, S] | None:
        """As of the model."""
        return self.model.topk(tokens, state, count)

    def search(self, tokens: Tensor, state: S, plan: SearchPlan) -> SearchResults | None:
        """As of the model."""
        return self.model.search(tokens, state, plan)


class EncoderAround(Around, Encoder):  # type: ignore[override]
    """An encoder around another, which does some of it faster; the rest is the other's."""

    def __init__(self, model: Any):
        self.model = model
        self.config, self.embedding, self.pooled = model.config, model.embedding, model.pooled
        self.continues = model.continues

    @property
    def segment_types(self) -> int:
        """As of the model."""
        return self.model.segment_types

    def states(self, batch: Sequences, rows: TokenSubset = ALL) -> States:
        """As of the model."""
        return self.model.states(batch, rows)

    def complete(self, batch: Sequences, tokenizer: Any) -> Sequences:
        """As of the model."""
        return self.model.complete(batch, tokenizer)

    def new_head(self, kind: str, outputs: int = 1) -> nn.Module:
        """As of the model."""
        return self.model.new_head(kind, outputs)

    def template(self, tokenizer: Any) -> Template:
        """As of the model."""
        return self.model.template(tokenizer)
