"""The sections of a language modeling recipe, and its text as batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, Literal, cast

from pydantic import Field

from regard.data.corpus_folder import is_corpus
from regard.data.lm_streams import ParallelStreams, ShuffledBlocks, VariableStreams
from regard.data.sampler import EpochData
from regard.data.token_arrays import TokenArray
from regard.errors import ConfigError, DataError
from regard.recipe import Options
from regard.tasks.auxiliary_losses import LMObjective
from regard.tasks.running_text import TextData, lost_text
from regard.tasks.sections import DecodingRecipe, TokenizerSection, starts_from_folder
from regard.tasks.stateful_perplexity import StateOptions
from regard.text import Tokenizer

Unit = Literal["word", "token", "character", "byte"]
SAMPLED = 500  # texts, lines mostly, in which a tokenizer's losses are looked for


class PerplexitySection(Options):
    """[evaluation]"""

    unit: Unit = "token"
    """What perplexity is per: word, token, or character (then bits per character)."""
    window: int | None = Field(default=None, ge=1)
    """Tokens that are read at a time. None: the model's context, or for a model that carries a
    state the whole text."""
    stride: int | None = Field(default=None, ge=1)
    """Tokens from one window to the next. None: the window's length, so that windows do not overlap
    and the first token of each has no context. (Validation in training never overlaps.)"""
    target_length: int | None = Field(default=None, ge=1)
    """Tokens that a model with a state reads at a time. None: the model's own number, or where it
    does not matter any."""
    memory_length: int | None = Field(default=None, ge=0)
    """Positions that a Transformer-XL reads before these. None: as many as in training."""
    max_distance: int | None = Field(default=None, ge=1)
    """Distances above this one are set to it (Transformer-XL). None: as in training."""
    neural_cache: int | None = Field(default=None, ge=1)
    """Positions of a neural cache (Grave et al. 2017) in tests. None: no cache."""
    neural_cache_theta: float | None = Field(default=None, ge=0)
    """The sharpness of the distribution of the neural cache. None: 0.3."""
    neural_cache_weight: float | None = Field(default=None, ge=0, lt=1)
    """The weight of the neural cache in the mixture with the model's distribution. None: 0.1."""

    def state_options(self) -> StateOptions:
        """The options of a model that carries a state."""
        values = self.model_dump(include={*StateOptions.__annotations__}, exclude_none=True)
        return cast(StateOptions, values)


class LanguageModelingRecipe(DecodingRecipe):
    """A recipe's sections besides [model] and [training]."""

    new_tokenizer: ClassVar[TokenizerSection] = TokenizerSection(kind="byte-bpe")

    data: TextData
    objective: LMObjective = LMObjective()
    evaluation: PerplexitySection = PerplexitySection()


@dataclass(frozen=True)
class TrainingText:
    """Encoded training and validation text, and how it is batched.

    notes: what the user should know of the tokenizer and of the model's context.
    """

    train: TokenArray
    valid: TokenArray
    batches: EpochData
    batch_size: int
    notes: list[str]


def training_batches(
    text: TokenArray, recipe: LanguageModelingRecipe, limit: int | None
) -> EpochData:
    """The training batches for a model with this context; None: with a state.

    Raises:
        ConfigError: batches of variable length for a model with a context.
    """
    data, variable = recipe.data, recipe.objective.variable_length
    size = {"batch_size": data.batch_size, "sequence_length": data.sequence_length}
    if limit is None:
        if variable:
            return VariableStreams(text, **size, seed=recipe.seed)
        return ParallelStreams(text, **size)
    if variable:
        raise ConfigError(
            "[objective] `variable_length` is for models that carry a state, but this one has a "
            f"context of {limit:,} tokens. Leave it out."
        )
    return ShuffledBlocks(text, **size, seed=recipe.seed)


def text_notes(
    recipe: LanguageModelingRecipe, tokenizer: Tokenizer, limit: int | None
) -> Iterator[str]:
    """What a user should know before the training; limit: the model's context."""
    data, steps = recipe.data, recipe.data.sequence_length
    if data.format == "text" and not is_corpus(data.train):
        yield from filter(None, [lost_text(tokenizer, islice(data.texts(), SAMPLED))])
    if limit is not None and limit > steps and not starts_from_folder(recipe):
        yield (
            f"the model's context is {limit:,} tokens, but blocks have {steps:,} "
            "(`sequence_length` of [data]): it learns nothing about longer texts. Set "
            f"`max_length` of [model] to {steps}"
        )


def check_text_length(path: Any, predicted: int, streams: int) -> None:
    """Raise DataError for a text too short for `streams` streams, or for one block."""
    if predicted >= streams:
        return
    if streams == 1:
        raise DataError(path, None, "has one token at most: there is nothing to predict.")
    raise DataError(
        path,
        None,
        f"has {predicted + 1} tokens, too few for {streams} parallel streams.",
        f"Give more text, or set `batch_size` of [data] to at most {max(1, predicted)}.",
    )
