"""The base class of tasks: what the command line, training, pictures and folders ask of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from regard.errors import ConfigError, NotSupportedError, RegardError
from regard.models import described
from regard.models.protocols import Encoder, Generator
from regard.models.wrappers import encoder, generator
from regard.tasks.methods import Methods

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from regard.data.batches import Batches
    from regard.data.encoder_inputs import InputFormat
    from regard.metrics.score import NamedScore
    from regard.recipe import Recipe
    from regard.tasks.predictions import Prediction
    from regard.text import Tokenizer

T = TypeVar("T")


def of_training(data: T | None) -> T:
    """The data of a task in training.

    Raises:
        RegardError: it has none.
    """
    if data is None:
        raise RegardError("This model was loaded to be used: it has no data to train on.")
    return data


class Task(Methods):
    """Base of tasks: all that the command line, training, pictures and folders ask of a task.

    An attribute without a value here belongs to some tasks alone: those that decode, those that are
    trained, those on an encoder. What users call is in `Methods`.

    commands: the commands of `regard` that the task supports, its own first.
    Recipe: the type of its recipes; None where it is not trained.
    items: what its first loss counts.
    limited: what `over_limit` counts the tokens of.
    usual: how many items of a loss a batch has on average, where the objective divides by that.
    aux_lm: a second objective, the prediction of the next token, where training has it.
    input_format: how texts become encoder inputs; None where the task has no encoder.
    goal: the score that tells which weights are best, and "max" or "min".
    score_options: dotted names of options outside [data] and [evaluation] on which that score
        depends, so that models with different ones cannot be compared by it.
    length_option: the option of [data] whose value may not exceed the model's context; "": none.
    method: how texts are decoded.
    half_precision: the type of half precision of the weights in the folder that the task was loaded
        from, in which they are saved again; None for another type.
    """

    commands: ClassVar[tuple[str, ...]]
    Recipe: ClassVar[type[Recipe] | None] = None
    items: ClassVar[str] = "tokens"
    limited: ClassVar[str] = "text"
    score_options: ClassVar[tuple[str, ...]] = ()
    length_option: ClassVar[str] = ""
    usual: Mapping[str, float] = MappingProxyType({})
    aux_lm: Any = None
    input_format: InputFormat | None = None
    half_precision: torch.dtype | None = None
    module: Any
    tokenizer: Tokenizer
    goal: tuple[str, str]
    method: Any

    # of all tasks
    settings: Callable[[], dict[str, Any]]
    over_limit: Callable[..., dict[int, int]]
    # of tasks that are trained
    from_recipe: Callable[[Any, Any, Tokenizer], Task]
    example: Callable[[Any, int], Any]
    train_batches: Callable[[], Batches]
    counts: Callable[[Any], dict[str, int]]
    losses: Callable[..., tuple[dict[str, tuple[Tensor, int]], Any]]
    validate: Callable[[], dict[str, float]]
    samples: Callable[[Any], Sequence[tuple[str, ...]]]
    # of tasks that decode
    spelled: Callable[..., list[list[str]]]
    decoding_inputs: Callable[..., tuple[Any, Any]]
    # of tasks on an encoder
    reads_pairs: ClassVar[bool]
    pairs: bool | None = None  # whether it was trained on pairs; None: not known
    prediction_type: ClassVar[type[Prediction]]
    text_encoder: Callable[[], Any]
    rows_to_evaluate: Callable[[Sequence[Any], Sequence[int | str]], Any]

    @property
    def generator(self) -> Generator:
        """What decodes: the model, or something faster around it."""
        return generator(self.module)

    @property
    def encoder(self) -> Encoder:
        """What encodes: the model, or something faster around it."""
        return encoder(self.module)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._facts()}>"

    def _repr_html_(self) -> str:
        """In a notebook: the model, and the methods that the task supports."""
        methods = " ".join(f"<code>{name}</code>" for name in self.methods())
        return f"<b>{type(self).__name__}</b>: {escape(self._facts())}<br>{methods}"

    def _facts(self) -> str:
        parameters = sum(weight.numel() for weight in self.module.parameters())
        size = f", {parameters:,} parameters" if parameters else ""
        tokenizer = f"{self.tokenizer.kind} of {self.tokenizer.vocab_size:,} tokens"
        return f"{described(self.module)}{size}; tokenizer: {tokenizer}"

    @classmethod
    def check_length(cls, recipe: Any, limit: int | None) -> None:
        """Check the length of texts that a recipe asks for (`length_option`).

        limit: the most tokens that its model reads; None: any number.

        Raises:
            ConfigError: the model reads shorter ones.
        """
        length = getattr(recipe.data, cls.length_option) if cls.length_option else 0
        if limit is not None and length > limit:
            raise ConfigError(
                f"[data] `{cls.length_option}` must be at most the model's context, {limit:,}, but "
                f"is {length:,}."
            )

    def rate_factor(self, batch: Any) -> float:
        """What the learning rate is multiplied by for the step of this batch."""
        return 1.0

    def token_limit(self, **options: Any) -> int | None:
        """The most tokens of a text that `over_limit` does not report; None: any number.

        options: as of `over_limit`.
        """
        if self.input_format is not None:
            return self.input_format.max_length
        limit: int | None = self.module.text_limit
        return limit

    def start_from_word_vectors(self, recipe: Any) -> None:
        """Put the word vectors that a recipe's data name into the model; of tasks on an encoder."""

    def notes(self) -> list[str]:
        """What of the data was left out or truncated."""
        return []

    def check_test(self, recipe: Any) -> None:
        """Read a recipe's test data, so that an error in them is found before the training.

        Raises:
            DataError: they cannot be read, or have a target that is not valid.
        """
        if recipe.data.test:
            for _ in recipe.data.records("test"):
                pass

    def test(self, recipe: Any) -> Sequence[NamedScore]:
        """The scores on a recipe's test data; none where it names no such data."""
        return self.evaluate(recipe.data.records("test")).named if recipe.data.test else ()

    def test_samples(self, recipe: Any) -> list[tuple[str, str, str]]:
        """The first rows of a recipe's test data: (source, output, reference); of some tasks."""
        return []

    def companions(self) -> dict[str, Task]:
        """Other models that are trained with this one, by the name of their folder in a run."""
        return {}

    def identity(self) -> dict[str, str]:
        """What else must be the same when a training is resumed, such as a teacher."""
        return {}

    def published(self) -> dict[str, Any]:
        """Fields of config.json that other libraries read, beside those of the model."""
        return {}

    def attention_inputs(self, recipe: Any) -> Iterable[Any]:
        """The inputs of the samples, as `predict` takes them; attention is drawn over the first one
        that the model reads whole. None: they are too large for a page, or are no texts.
        """
        return ()

    def attention_excerpt(self, recipe: Any) -> tuple[str, ...] | None:
        """The beginning of a sample that is too large as a whole; None: there is none."""
        return None

    def require(self, command: str, model: str | Path, problem: str = "") -> None:
        """Check that the task supports a command of `regard`.

        model: the folder that holds it.  problem: replaces the first sentence of the message.

        Raises:
            ConfigError: the task does not support it; the message names a command that it supports.
        """
        if command not in self.commands:
            message = (
                problem or f"{model} is a model of {self.name}, which does not support {command}."
            )
            raise ConfigError(f"{message} {self.instead(model)}")

    def require_method(self, method: str, model: str | Path) -> None:
        """Check that the task supports this method.

        model: the folder that holds it.

        Raises:
            NotSupportedError: it does not; the message names a command that it supports.
        """
        if not self.has(method):
            raise NotSupportedError(
                f"{model} is a model of {self.name}, which does not support {method}. "
                f"{self.instead(model)}"
            )

    def instead(self, model: str | Path) -> str:
        """A sentence that names the command to use instead."""
        return f"Use: regard {self.commands[0]} {model} TEXT"

    @classmethod
    def trains(cls, model: type) -> bool:
        """Whether models of this class can be trained for the task."""
        return True

    @classmethod
    def problems(cls, recipe: Any) -> Iterator[tuple[str, str]]:
        """Options of a recipe that have no effect or lack another option: (dotted name, problem).

        No data are read for this.
        """
        if (decoding := dict(recipe).get("decoding")) is not None:
            yield from decoding.problems()
