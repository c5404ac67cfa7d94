"""The sections of a language modeling recipe, its losses beside the cross-entropy, and its text as
batches.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from regard.data.batches import StreamBatch
from regard.data.corpus import is_corpus
from regard.data.lm_streams import ParallelStreams, ShuffledBlocks, VariableStreams
from regard.data.sampler import EpochData
from regard.data.token_arrays import TokenArray
from regard.errors import ConfigError, DataError
from regard.models.protocols import LanguageModel, Output
from regard.recipe import Options
from regard.tasks.running_text import TextData, lost_text
from regard.tasks.sections import DecodingRecipe, TokenizerSection, starts_from_folder
from regard.tasks.stateful_perplexity import StateOptions
from regard.text import Tokenizer

Unit = Literal["word", "token", "character", "byte"]
SAMPLED = 500  # texts, lines mostly, in which a tokenizer's losses are looked for


@dataclass(frozen=True)
class AuxiliaryLoss:
    """A loss that is added to the mean cross-entropy of the next tokens.

    name: of the loss, in metrics.jsonl.
    total: from the model's output the sum over its items, times its weight: ().
    count: how many items a batch of B T tokens has, known before anything is computed.
    extra: the name of the auxiliary of `Output` that it reads; "" for none.
    """

    name: str
    total: Callable[[Output], Tensor]
    count: Callable[[StreamBatch], int] = lambda batch: batch.tokens.numel()
    extra: str = ""


def activation_regularization(alpha: float) -> AuxiliaryLoss:
    """alpha * mean(h^2) of the hidden states that the output reads (Merity et al. 2018, 4.6)."""
    return AuxiliaryLoss(
        "activation", lambda output: alpha * output.hidden.float().square().mean(-1).sum()
    )


def temporal_activation_regularization(beta: float) -> AuxiliaryLoss:
    """beta * mean((h_t - h_t+1)^2) of the hidden states before the output's dropout, in a batch."""

    def total(output: Output) -> Tensor:
        return beta * output.extras["undropped"].float().diff(dim=1).square().mean(-1).sum()

    def count(batch: StreamBatch) -> int:
        return batch.tokens[:, 1:].numel()  # differences, B (T - 1)

    return AuxiliaryLoss("temporal_activation", total, count, "undropped")


# What attention loses where positions are compressed, from which the compression learns (Rae et al.
# 2019, section 3.2). The weights of the prediction get no gradient from it, so that it has no
# weight to be chosen.
RECONSTRUCTION = AuxiliaryLoss(
    "reconstruction", lambda output: output.extras["reconstruction"], extra="reconstruction"
)


class LMObjective(Options):
    """[objective]"""

    activation_regularization: float = Field(default=0.0, ge=0)
    """alpha: the mean square of the hidden states, after dropout, times this is added."""
    temporal_activation_regularization: float = Field(default=0.0, ge=0)
    """beta: the mean square of their differences from step to step, before dropout, times this."""

    variable_length: bool = False
    """Backpropagation through batches that differ in length around `sequence_length`, the learning
    rate of each in proportion to it (Merity et al. 2018, section 4.1)."""

    def losses(self, model: LanguageModel) -> tuple[AuxiliaryLoss, ...]:
        """The losses whose weight is above 0, and that of a compression which learns.

        Raises:
            ConfigError: the model does not give what one of them reads.
        """
        losses = []
        if alpha := self.activation_regularization:
            losses.append(activation_regularization(alpha))
        if beta := self.temporal_activation_regularization:
            losses.append(temporal_activation_regularization(beta))
            if "undropped" not in model.extras:
                raise ConfigError(
                    "[objective] `temporal_activation_regularization` reads `undropped` of the "
                    f"model's output, which {type(model).__name__} does not give. Leave it out."
                )
        reconstructs = RECONSTRUCTION.extra in model.extras
        return (*losses, *([RECONSTRUCTION] if reconstructs else ()))


class PerplexitySection(StateOptions):
    """[evaluation]"""

    unit: Unit = "token"
    """What perplexity is per: word, token, or character (then bits per character)."""
    window: int | None = Field(default=None, ge=1)
    """Tokens that are read at a time. None: the model's context, or for a model that carries a
    state the whole text."""
    stride: int | None = Field(default=None, ge=1)
    """Tokens from one window to the next. None: the window's length, so that windows do not overlap
    and the first token of each has no context. (Validation in training never overlaps.)"""


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
