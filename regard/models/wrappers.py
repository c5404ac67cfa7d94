"""Generators and encoders that wrap a model and compute parts of it faster.

Code that decodes or encodes asks `generator(model)` or `encoder(model)`. Where something faster is
registered that takes the model, such as the compiled kernels, this is a wrapper, which is kept
beside the model; else it is the model itself. A wrapper has all members of the protocols: those
that it does not override are the model's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import torch
from torch import Tensor, nn

from regard.data.batches import Sequences
from regard.data.layout import ALL, TokenSubset
from regard.models.protocols import (
    Encoder,
    Generator,
    Head,
    Model,
    S,
    SearchPlan,
    SearchResults,
    States,
)
from regard.ops import operation
from regard.text.templates import Template

if TYPE_CHECKING:
    from regard.layers.scalar_mix import LayerChoice
    from regard.models.config import TrainingFamily

M = TypeVar("M", bound=Model)


@operation
def generator(model: Generator) -> Generator:
    """The generator that decodes with a model: the model, where no wrapper is registered for it."""
    return model


@operation
def encoder(model: Encoder) -> Encoder:
    """The encoder that computes with a model: the model, where no wrapper is registered for it."""
    return model


def unwrapped(model: object) -> Any:
    """The model without its wrappers."""
    while isinstance(model, ModelWrapper):
        model = model.model
    return model


class ModelWrapper(Generic[M]):
    """What every wrapper has: the members of `Model`, which are those of the wrapped model."""

    def __init__(self, model: M):
        self.model = model

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self.model(*args, **named)

    @property
    def Config(self) -> type:  # noqa: N802
        return self.model.Config

    @property
    def config(self) -> Any:
        return self.model.config

    @property
    def family(self) -> TrainingFamily:
        return self.model.family

    @property
    def continues(self) -> bool:
        return self.model.continues

    @property
    def tokens_per_pass(self) -> int:
        return self.model.tokens_per_pass

    @property
    def unpadded(self) -> bool:
        return self.model.unpadded

    @property
    def longest(self) -> int | None:
        return self.model.longest

    @property
    def text_limit(self) -> int | None:
        return self.model.text_limit

    @property
    def SIZES(self) -> dict[str, Any]:
        return self.model.SIZES

    @property
    def PUBLISHED(self) -> dict[str, Any]:
        return self.model.PUBLISHED

    @property
    def training(self) -> bool:
        return self.model.training

    def train(self, mode: bool = True) -> Self:
        self.model.train(mode)
        return self

    @property
    def repeated_blocks(self) -> list[nn.Module]:
        return self.model.repeated_blocks

    @property
    def sharded_parts(self) -> list[nn.Module]:
        return self.model.sharded_parts

    @property
    def layer_groups(self) -> list[nn.Module]:
        return self.model.layer_groups


class GeneratorWrapper(ModelWrapper[Generator[S]], Generator[S]):  # type: ignore[override]
    """A generator that wraps another; a subclass overrides what it computes faster."""

    @property
    def extras(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.model.extras

    @property
    def head(self) -> Head:  # type: ignore[override]
        return self.model.head

    @property
    def first_token(self) -> int:
        return self.model.first_token

    def empty(self, sequences: int, dtype: torch.dtype | None = None) -> S:
        return self.model.empty(sequences, dtype)

    def prefill(self, tokens: Tensor, state: S, lengths: Tensor | None = None) -> S:
        return self.model.prefill(tokens, state, lengths)

    def read(self, source: Sequences) -> S:
        return self.model.read(source)

    def step(self, tokens: Tensor, state: S) -> tuple[Tensor, S]:
        return self.model.step(tokens, state)

    def search(self, tokens: Tensor, state: S, plan: SearchPlan) -> SearchResults | None:
        return self.model.search(tokens, state, plan)


class EncoderWrapper(ModelWrapper[Encoder], Encoder):  # type: ignore[override]
    """An encoder that wraps another; a subclass overrides what it computes faster."""

    @property
    def embedding(self) -> Any:  # type: ignore[override]
        return self.model.embedding

    @property
    def word_tables(self) -> list[nn.Embedding]:
        return self.model.word_tables

    @property
    def pooled(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.model.pooled

    @property
    def segment_types(self) -> int:
        return self.model.segment_types

    @property
    def is_causal(self) -> bool:
        return self.model.is_causal

    @property
    def adds_special_tokens(self) -> bool:
        return self.model.adds_special_tokens

    def states(self, batch: Sequences, tokens: TokenSubset = ALL) -> States:
        return self.model.states(batch, tokens)

    def input_tokenizer(self, tokenizer: Any) -> Any:
        return self.model.input_tokenizer(tokenizer)

    def complete(self, batch: Sequences, tokenizer: Any) -> Sequences:
        return self.model.complete(batch, tokenizer)

    def label_texts(self, rows: Sequence[Sequence[int]], label_of: Callable[[int], str]) -> bool:
        return self.model.label_texts(rows, label_of)

    def static(self, batch: Sequences) -> Tensor:
        return self.model.static(batch)

    def encode(self, batch: Sequences, tokens: TokenSubset = ALL) -> Tensor:
        return self.model.encode(batch, tokens)

    def chosen(self, batch: Sequences, choice: LayerChoice) -> Tensor:
        return self.model.chosen(batch, choice)

    def new_head(self, kind: str, outputs: int = 1) -> nn.Module:
        return self.model.new_head(kind, outputs)

    def template(self, tokenizer: Any) -> Template:
        return self.model.template(tokenizer)
