"""Generators and encoders that wrap a model and compute parts of it faster.

Code that decodes or encodes asks `generator(model)` or `encoder(model)`. Where something faster is
registered that takes the model, such as the compiled kernels, this is a wrapper, which is kept
beside the model; else it is the model itself. A wrapper has all members of the protocols: those
that it does not override are the model's.
"""

from typing import Any, Generic, Self, TypeVar

from regard.models.protocols import Encoder, Generator, Model, S
from regard.ops import operation

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


class Wrapped:
    """An attribute or a method that is the wrapped model's."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, wrapper: Any, owner: type) -> Any:
        return self if wrapper is None else getattr(wrapper.model, self.name)


class ModelWrapper(Generic[M]):
    """What every wrapper has: the members of `Model`, which are those of the wrapped model."""

    Config, config, family, continues = Wrapped(), Wrapped(), Wrapped(), Wrapped()
    tokens_per_pass, unpadded, longest, text_limit = Wrapped(), Wrapped(), Wrapped(), Wrapped()
    SIZES, training = Wrapped(), Wrapped()
    repeated_blocks, sharded_parts, layer_groups = Wrapped(), Wrapped(), Wrapped()

    def __init__(self, model: M):
        self.model = model

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self.model(*args, **named)

    def train(self, mode: bool = True) -> Self:
        self.model.train(mode)
        return self


class GeneratorWrapper(ModelWrapper[Generator[S]], Generator[S]):  # type: ignore[override]
    """A generator that wraps another; a subclass overrides what it computes faster."""

    extras, check_extra, head, first_token = Wrapped(), Wrapped(), Wrapped(), Wrapped()
    empty, prefill, read, step, search = Wrapped(), Wrapped(), Wrapped(), Wrapped(), Wrapped()


class EncoderWrapper(ModelWrapper[Encoder], Encoder):  # type: ignore[override]
    """An encoder that wraps another; a subclass overrides what it computes faster."""

    embedding, word_tables, pooled, segment_types = Wrapped(), Wrapped(), Wrapped(), Wrapped()
    is_causal, adds_special_tokens, states = Wrapped(), Wrapped(), Wrapped()
    input_tokenizer, complete, label_texts = Wrapped(), Wrapped(), Wrapped()
    static, encode, chosen, new_head, template = (Wrapped() for _ in range(5))
