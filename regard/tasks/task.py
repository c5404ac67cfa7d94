"""The base of tasks: what users call, what the command line, training and folders ask, predictions.

    model = regard.load("runs/translator")
    model.translate("ein Haus")             one text: one result
    model.translate(["ein Haus", "zwei"])   several: a list with a result for each
    model.tag("ein Haus")                   NotSupportedError: names the methods that it has

Every task inherits all methods, so that an editor completes their names and options. A task
overrides those that it supports.

What a task predicts for a text is a frozen dataclass derived from `Prediction`, whose first field
is the result; its task names the class as `prediction_type`. str(prediction) is a text: a label,
tags, a number; prediction.values() are all its fields by name, as values that JSON can contain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from html import escape
from inspect import Parameter, signature
from pathlib import Path
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    NoReturn,
    Protocol,
    Self,
    TypeVar,
    Unpack,
    get_args,
    get_type_hints,
    overload,
)

from regard import habit_names
from regard.call_options import DecodingOptions, VectorFields
from regard.errors import ConfigError, NotSupportedError, RegardError
from regard.lazy import imported
from regard.models import described
from regard.models.protocols import Encoder, Generator
from regard.models.wrappers import encoder, generator
from regard.schema import joined_with_or
from regard.suggest import check_options
from regard.tasks.inputs import as_list, warn_if_file, warn_of_blank_texts, without_names
from regard.text.word_spans import Splitter, word_spans

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import nn

    from regard.data.batches import Batches, Losses
    from regard.data.encoder_inputs import InputFormat
    from regard.layers.pooling import LayerChoice
    from regard.metrics.score import NamedScore, ScoreReport, Scores
    from regard.recipe import Recipe
    from regard.tasks.batching import TooLong
    from regard.tasks.sections import Problems
    from regard.text import Tokenizer


@dataclass(frozen=True)
class Prediction:
    """What a task predicts for one text."""

    @property
    def result(self) -> Any:
        """What `predict` returns for the text: the first field."""
        return getattr(self, fields(self)[0].name)

    def __str__(self) -> str:
        return str(self.result)

    def values(self) -> dict[str, Any]:
        """All fields as plain values."""
        return asdict(self)

    @classmethod
    def empty_values(cls) -> dict[str, Any]:
        """The keys of `values` with None for each: the prediction for an empty line."""
        return dict.fromkeys(field.name for field in fields(cls))


class EmbedOptions(VectorFields, total=False):
    """The options of `embed`.

    layers: also a `ScalarMix` that was trained.
    pooling: of the tokens of a text, [CLS] and [SEP] among them, or of the subwords of a word; of
        a text also the other kinds of `regard.layers.pooling.KINDS`. None: of a text as the model's
        folder says, otherwise the mean.
    granularity: "token" has special ones, too.
    normalize: cosines, which `similarity` and `search` give, are the same in either case.
    precision: "bfloat16" for the matrix products; vectors are float32 in either case.
    max_tokens_per_batch: tokens in a batch, padding included; vectors do not depend on it.
    too_long: what happens to texts longer than the model reads.
    output_value, normalize_embeddings: sentence-transformers' names; of the latter False is None.
        Its `batch_size`, `show_progress_bar` and `convert_to_numpy=True` change no vector.
    """

    layers: int | Sequence[int] | LayerChoice | None  # type: ignore[misc]
    combine: str | Sequence[float] | None  # type: ignore[misc]
    max_tokens_per_batch: int | None
    too_long: TooLong
    output_value: Literal["sentence_embedding", "token_embeddings"]
    normalize_embeddings: bool
    batch_size: int
    show_progress_bar: bool
    convert_to_numpy: bool


Item = TypeVar("Item", contravariant=True)
Result = TypeVar("Result", covariant=True)
Results = TypeVar("Results", covariant=True)
Predicted = TypeVar("Predicted")
LogLikelihoods = Callable[[Sequence[str]], list[float]]  # of sentences, in nats
TextOrPair = str | tuple[str, ...] | Mapping[str, str]
Proba = Literal[True]


class PredictsAs(Protocol[Item, Result, Results, Predicted]):
    """The types of `predict`: of an input its result, of several their results; or predictions. Of
    several texts that are generated for an input nothing is said.
    """

    @overload
    def __call__(self, texts: Item, *, return_proba: Proba, **options: Any) -> Predicted: ...
    @overload
    def __call__(
        self, texts: Sequence[Item], *, return_proba: Proba, **options: Any
    ) -> list[Predicted]: ...
    @overload
    def __call__(self, texts: Any, *, n_best: int, **options: Any) -> Any: ...
    @overload
    def __call__(self, texts: Any, *, samples: int, **options: Any) -> Any: ...
    @overload
    def __call__(self, texts: Item, **options: Any) -> Result: ...
    @overload
    def __call__(self, texts: Sequence[Item], **options: Any) -> Results: ...
    @overload
    def __call__(self, texts: Any, *, return_proba: bool = False, **options: Any) -> Any: ...


Predicts = PredictsAs[Item, Result, list[Result], Predicted]


class Methods:
    """What users call.

    labels: the names of what a task predicts, where it has them.
    reads_images: whether its inputs are names of image files, not texts.
    decodes: whether it generates texts; other tasks have `_predictions`, those for a list of texts.
    input_columns: what makes an input in rows, and its types: a text, which may stand alone, or
        also a second one. {}: inputs are objects.
    """

    name: ClassVar[str]
    decodes: ClassVar[bool] = False
    reads_images: ClassVar[bool] = False
    module: Any
    labels: tuple[str, ...] = ()
    input_columns: ClassVar[Mapping[str, type]] = MappingProxyType({"text": str})
    _predictions: Callable[..., Sequence[Prediction]]

    # ---- of all tasks

    def predict(self, texts: Any, *, return_proba: bool = False, **options: Any) -> Any:
        """The result for a text, or a list of the results for several.

        Args:
            texts: what a text is depends on the task: a str; a pair, which is a tuple of two; a
                question with its choices; the file of an image. Training leaves blank texts out;
                here a warning says how many there are.
            return_proba: return instead of each result a prediction, which also has probabilities
                or scores: see `prediction_type` of the task.
            options: `too_long="truncate"` cuts texts that are longer than the model reads, as
                training and `evaluate` do, which say how many; here they are an error without it.
                Of a task that generates texts see `DecodingOptions`.

        Raises:
            TextError: an item is not a text for this task, or is too long.
            RegardError: this is neither a text nor a list of texts.
        """
        if self.decodes:
            if return_proba:
                self._not_supported("predict(return_proba=True)")
            return self.generate(texts, **options)
        warn_if_file(texts)
        if options.get("n_best", 1) != 1 and not return_proba:
            raise ConfigError("`n_best` results of a text have scores: give return_proba=True.")
        parameters = signature(self._predictions).parameters
        if "options" not in parameters:
            check_options("predict", options, ["return_proba", *list(parameters)[1:]])
        single = self.is_one(texts)
        items = without_names([texts] if single else as_list(texts), self.input_columns)
        warn_of_blank_texts(items, "what is predicted of them says nothing")
        predictions = self._predictions(items, **options)
        results = predictions if return_proba else [item.result for item in predictions]
        return results[0] if single else results

    def is_one(self, texts: Any) -> bool:
        """Whether this is one text for `predict`, and no list of them."""
        return isinstance(texts, str)

    def evaluate(self, data: Any, **options: Any) -> Scores:
        """The scores of the predictions for data with their targets, by name.

        Args:
            data: rows of texts and their target, a table with named columns, or a reader.
            options: `columns=["text", "label"]` names those of a table; of a task that generates
                texts see `DecodingOptions`.
        """
        self._not_supported("evaluate")

    def save(self, folder: str | Path, *, license: str | None = None) -> None:
        """Write the model as a folder that `regard.load` opens: see `regard.save`."""
        imported("regard.tasks.folders:save")(self, folder, license=license)

    def to(self, device: str | torch.device) -> Self:
        """Move the weights to a device, such as "cuda:1"; returns the same object.

        Raises:
            ConfigError: there is no such device.
        """
        self.module.to(imported("regard.tasks.folders:device_for")(str(device)))
        return self

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        from regard.tasks.batching import device_of

        return device_of(self.module)

    # ---- of classifiers, taggers and parsers

    def predict_proba(self, texts: Any, *, too_long: TooLong = "error") -> Any:
        """The probability of each label: for one text a dict, for a list an array (N, labels), in
        the order of `labels`.
        """
        self._not_supported("predict_proba")

    def classification_report(self, rows: Any) -> ScoreReport:
        """Scores of each label; rows as of `evaluate`."""
        self._not_supported("classification_report")

    def tag(self, texts: Any, *, splitter: Splitter = word_spans) -> Any:
        """The tag of each word of a text; of a list of texts, a list of tags for each.

        Args:
            texts: a text, or a list of texts, each a string or a list of its words:
                `["Anna", "slept"]` is two texts, `[["Anna", "slept"]]` the two words of one.
            splitter: a function from a text to (start, stop) of each word, in characters; without
                it words are those of CoNLL-2003 (`regard.text.word_spans`).
        """
        self._not_supported("tag")

    def parse(self, texts: Any, **options: Unpack[DecodingOptions]) -> Any:
        """The constituency tree of a sentence. In a list, a sentence may be a list of its words."""
        self._not_supported("parse")

    def choose(self, questions: Any, *, too_long: TooLong = "error") -> Any:
        """The best choice for a question: a mapping with `context`, `question` and `choices`."""
        self._not_supported("choose")

    def answer(self, question: Any, context: Any) -> Any:
        """The answer to a question from its context; of two lists, that of each pair."""
        self._not_supported("answer")

    def follows(self, first: Any, second: Any, *, too_long: TooLong = "error") -> Any:
        """The probability that the second text follows the first; of two lists, pair by pair."""
        self._not_supported("follows")

    # ---- of masked language models

    def fill(self, texts: Any, *, top: int = 5, too_long: TooLong = "error") -> Any:
        """A text with its masks filled, and the `top` best words for each."""
        self._not_supported("fill")

    # ---- of tasks that generate texts: with `n_best` or `samples` above 1 a list for each text

    def generate(self, texts: Any = "", **options: Unpack[DecodingOptions]) -> Any:
        """The text that the model generates: a prompt with its continuation, or a target."""
        self._not_supported("generate")

    def translate(self, texts: Any, **options: Unpack[DecodingOptions]) -> Any:
        """The translation of a text."""
        self._not_supported("translate")

    def summarize(self, texts: Any, **options: Unpack[DecodingOptions]) -> Any:
        """The summary of a text."""
        self._not_supported("summarize")

    def caption(self, images: Any, **options: Unpack[DecodingOptions]) -> Any:
        """What an image shows; images are named by their files."""
        self._not_supported("caption")

    def reply(self, turns: Any, **options: Unpack[DecodingOptions]) -> Any:
        """The reply to a dialogue: a list of its turns, or the only one; or replies to several."""
        self._not_supported("reply")

    def stream(self, prompt: str = "", **options: Unpack[DecodingOptions]) -> Iterator[str]:
        """The continuation of a prompt, in parts as tokens are generated."""
        self._not_supported("stream")

    def hypotheses(self, texts: Sequence[str], **options: Unpack[DecodingOptions]) -> Any:
        """For each text its hypotheses, best first: tokens, scores and log-probabilities."""
        self._not_supported("hypotheses")

    # ---- of tasks with vectors of texts

    def embed(self, texts: Any, **options: Unpack[EmbedOptions]) -> Any:
        """The vector of a text, (D,), or of several, (N, D); or of their words or tokens."""
        self._not_supported("embed")

    def embed_stream(
        self, texts: Iterable[Any], **options: Unpack[EmbedOptions]
    ) -> Iterator[np.ndarray]:
        """The vectors of any number of texts, in order, in constant memory."""
        self._not_supported("embed_stream")

    def encode(self, sentences: Any, **options: Unpack[EmbedOptions]) -> Any:
        """The vectors of sentences, as `encode` of sentence-transformers: long ones are cut."""
        self._not_supported("encode")

    def search(
        self, query: Any, texts: Any, top_k: int = 10, **options: Unpack[EmbedOptions]
    ) -> Any:
        """The `top_k` texts that are most similar to a query, best first; or to each of several."""
        self._not_supported("search")

    def similarity(self, a: Any, b: Any, **options: Unpack[EmbedOptions]) -> Any:
        """The cosines of texts: a number for two texts, (len(a), len(b)) for lists."""
        self._not_supported("similarity")

    # ---- of language models

    def log_likelihoods(self, texts: Any) -> Any:
        """The log-likelihood of a text in nats; of a masked language model the pseudo one."""
        self._not_supported("log_likelihoods")

    @property
    def likelihoods_by_kind(self) -> dict[str, LogLikelihoods]:
        """The ways in which it gives the log-likelihoods of sentences, the usual one first."""
        return {"pseudo": self.log_likelihoods}

    def lambada(self, passages: Sequence[str]) -> Any:
        """The scores of predicting the last words of passages."""
        self._not_supported("lambada")

    def cache_prefixes(self, budget_bytes: int = 2**30) -> Any:
        """Compute prefixes that prompts share once, from now on."""
        self._not_supported("cache_prefixes")

    # ---- which of them a task has

    @classmethod
    def has(cls, method: str) -> bool:
        """Whether the task supports this method."""
        return getattr(cls, method) is not getattr(Methods, method) or method in OF_EVERY_TASK

    @classmethod
    def methods(cls) -> tuple[str, ...]:
        """The names of the methods that the task supports."""
        return tuple(name for name in METHODS if cls.has(name))

    def __dir__(self) -> list[str]:
        """What a notebook offers after `model.`: these methods, and what the model holds."""
        return [*self.methods(), *OFFERED, *(("labels",) if self.labels else ())]

    def _not_supported(self, method: str) -> NoReturn:
        """Raise the error for a method that the task does not support.

        Raises:
            NotSupportedError: always.
        """
        names = joined_with_or([f"`{name}`" for name in self.methods()]).replace(" or ", " and ")
        raise NotSupportedError(
            f"{type(self).__name__} (task {self.name}) does not support `{method}`. It has {names}."
        )


def results_of(ranked: Sequence[Sequence[str]], options: Mapping[str, Any]) -> list[Any]:
    """Of the texts that are generated for each input, best first, the best; or all of them where
    the options ask for several.
    """
    names = habit_names.decoding(options)
    several = any(names.get(name, 1) > 1 for name in SEVERAL)
    return [list(texts) if several else texts[0] for texts in ranked]


SEVERAL = ("n_best", "samples")
OFFERED = ("device", "module", "name", "tokenizer")
OF_EVERY_TASK = ("predict", "save", "to")
# method -> what it does, the first sentence of its docstring
METHODS = {
    name: " ".join((value.__doc__ or "").partition(".\n")[0].split()).rstrip(".")
    for name, value in vars(Methods).items()
    if callable(value) and not name.startswith("_") and name not in ("has", "is_one", "methods")
}


T = TypeVar("T")


def of_training(data: T | None) -> T:
    """The data of a task in training.

    Raises:
        RegardError: it has none.
    """
    if data is None:
        raise RegardError("This model was loaded to be used: it has no data to train on.")
    return data


PAIR: Mapping[str, type] = MappingProxyType({"text": str, "text_pair": str})  # of tasks on pairs


class Task(Methods):
    """Base of tasks: all that the command line, training, pictures and folders ask of a task.

    An attribute without a value here belongs to some tasks alone: those that decode, those that are
    trained, those on an encoder. What users call is in `Methods`.

    name: in recipes and folders, and the key of `regard.tasks.TASKS`.
    commands: the commands of `regard` that the task supports, its own first.
    head: the kind of the encoder's head that its scores come from; "": of none.
    new_head: makes this head, of an encoder and a number of outputs; None: encoders have it.
    names_outputs: whether config.json names the outputs of the head.
    problem_type: in config.json, where it tells several tasks with one head apart.
    published_as: each `model_type` whose published models are for this task.
    library: what else opens its folders.
    pipeline: its name on the hub; "": it has none.
    new_model: the model that its template trains from random weights; "": it fine-tunes one.
    file_ending: of the training data in its template.
    example_input: an input, where it is no plain text.
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
    head: str = ""
    new_head: ClassVar[Callable[..., nn.Module] | None] = None
    names_outputs: ClassVar[bool] = False
    problem_type: ClassVar[str] = ""
    published_as: ClassVar[tuple[str, ...]] = ()
    library: ClassVar[str] = "transformers"
    pipeline: ClassVar[str] = ""
    new_model: ClassVar[str] = ""
    file_ending: ClassVar[str] = "tsv"
    example_input: ClassVar[Any] = ""
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
    over_limit: Callable[..., dict[int, int]]
    # of tasks that are trained
    from_recipe: Callable[[Any, Any, Tokenizer], Task]
    example: Callable[[Any, int], Any]
    train_batches: Callable[[], Batches]
    counts: Callable[[Any], dict[str, int]]
    losses: Callable[..., tuple[Losses, Any]]
    validate: Callable[[], dict[str, float]]
    # of tasks that decode
    spelled: Callable[..., list[list[str]]]
    decoding_inputs: Callable[..., tuple[Any, Any]]
    # of tasks on an encoder
    pairs: bool | None = None  # whether it was trained on pairs; None: not known
    prediction_type: ClassVar[type[Prediction]]
    text_encoder: Callable[[], Any]
    rows_to_evaluate: Callable[..., Any]

    @classmethod
    def constructor_options(cls) -> dict[str, tuple[Any, Any]]:
        """The keyword options of the constructor but `method`: name -> (type, default or ...)."""
        hints = get_type_hints(cls.__init__, include_extras=True)
        options: dict[str, Any] = {}
        for name, parameter in signature(cls.__init__).parameters.items():
            if parameter.kind is Parameter.KEYWORD_ONLY and name != "method":
                default = ... if parameter.default is Parameter.empty else parameter.default
                options[name] = (hints[name], default)
            elif parameter.kind is Parameter.VAR_KEYWORD:  # Unpack[...] of a TypedDict
                for typed in get_args(hints.get(name)):
                    shared = get_type_hints(typed, include_extras=True)
                    options |= {key: (hint, None) for key, hint in shared.items()}
        return options

    @classmethod
    def options_in(cls, recipe: Any) -> dict[str, Any]:
        """The options of the constructor that [data], [objective] and [evaluation] have."""
        fields = dict[str, Any]()
        for section in ("evaluation", "objective", "data"):
            fields |= dict(getattr(recipe, section, ()))
        names = cls.constructor_options().keys() & fields.keys()
        return {name: fields[name] for name in sorted(names) if fields[name] is not None}

    def settings(self) -> dict[str, Any]:
        """What `load` must know beside model, tokenizer and decoding method: the options of the
        constructor, which the task has as attributes.
        """
        values = {name: getattr(self, name) for name in self.constructor_options()}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
            if value not in (None, "")
        }

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

    def samples(self, recipe: Any) -> Sequence[tuple[str, ...]]:
        """Rows of a recipe's data as the report of a run shows them: (source, output, target)."""
        return ()

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

    def require(self, command: str, model: str | Path, problem: str = "") -> None:
        """Check that the task supports a command of `regard`.

        model: the folder that holds it.  problem: replaces the first sentence of the message.

        Raises:
            ConfigError: the task does not support it; the message names a command that it supports.
        """
        if command not in self.commands:
            raise ConfigError(self._not_for(command, model, problem))

    def require_method(self, method: str, model: str | Path) -> None:
        """Check that the task supports this method.

        model: the folder that holds it.

        Raises:
            NotSupportedError: it does not; the message names a command that it supports.
        """
        if not self.has(method):
            raise NotSupportedError(self._not_for(method, model))

    def _not_for(self, name: str, model: str | Path, problem: str = "") -> str:
        """The message that the task does not support a method or a command, and what it does."""
        problem = problem or f"{model} is a model of {self.name}, which does not support {name}."
        return f"{problem} Use: regard {self.commands[0]} {model} TEXT"

    @classmethod
    def trains(cls, model: type) -> bool:
        """Whether models of this class can be trained for the task."""
        return True

    @classmethod
    def fits(cls, model: nn.Module) -> bool:
        """Whether a model, with the heads that it has, can be used for the task."""
        return cls.trains(type(model))

    @classmethod
    def is_for(cls, model: nn.Module, config: Mapping[str, Any]) -> bool:
        """Whether a folder with this model and config.json that names no task is one of this task;
        of several such tasks it is one of the first in `TASKS`.

        Raises:
            ConfigError: config.json does not fit the head.
        """
        return False

    @classmethod
    def settings_in(cls, model: nn.Module, config: Mapping[str, Any]) -> dict[str, Any]:
        """The settings that config.json of another library has.

        Raises:
            ConfigError: they do not fit the model.
        """
        return {}

    @classmethod
    def problems(cls, recipe: Any) -> Problems:
        """Options of a recipe that have no effect or lack another option: (dotted name, problem).

        No data are read for this.
        """
        if (decoding := dict(recipe).get("decoding")) is not None:
            yield from decoding.problems()
