"""Language modeling: one long text, a model that predicts each token, perplexity.

A model with a state reads the text in parallel streams, from start to end. A model with a context
(`config.max_length`) is trained on blocks and evaluated over windows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, ClassVar, Literal, Unpack, cast

import torch
from pydantic import Field
from torch import Tensor

from regard import decoding
from regard.data.batches import StreamBatch
from regard.data.corpus_folder import is_corpus
from regard.data.encoder_inputs import InputFormat
from regard.data.lm_streams import (
    ParallelStreams,
    ShuffledBlocks,
    SlidingWindows,
    VariableStreams,
)
from regard.data.readers import RowReader, read
from regard.data.sampler import EpochData, EpochSampler
from regard.data.token_arrays import TokenArray, encode_texts
from regard.decoding.steps import evaluating
from regard.errors import ConfigError, DataError, RegardError, check_at_least
from regard.metrics import Perplexity, Protocol, Score
from regard.metrics.score import check_any
from regard.models.protocols import Encoder, LanguageModel
from regard.recipe import Options
from regard.tasks.auxiliary_losses import AuxiliaryLoss, LMObjective
from regard.tasks.batching import device_of, watched
from regard.tasks.continuation import ContinuesTexts
from regard.tasks.embedder import TextEncoder, batch_budget
from regard.tasks.finite_checks import check_likelihood
from regard.tasks.inputs import checked_texts
from regard.tasks.lambada import lambada_scores
from regard.tasks.log_likelihoods import causal_log_likelihoods
from regard.tasks.prompts import first_tokens
from regard.tasks.running_text import TextData, lost_text
from regard.tasks.sections import DecodingRecipe, TokenizerSection, starts_from_folder
from regard.tasks.stateful_perplexity import (
    StateOptions,
    cache_of,
    carried_likelihood,
    check_state_options,
    given,
    signature,
)
from regard.text import Tokenizer

Unit = Literal["word", "token", "character", "byte"]
SAMPLES = 6  # lines that a run's report continues
SAMPLED = 500  # texts, lines mostly, in which a tokenizer's losses are looked for
VALID_STEPS = 256  # tokens of a stream at a time, where nothing is learned


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
    """How peaked its distribution is. None: 0.3."""
    neural_cache_weight: float | None = Field(default=None, ge=0, lt=1)
    """Its share in the mixture with the model's distribution. None: 0.1."""

    def state_options(self) -> StateOptions:
        """The options of a model that carries a state."""
        values = self.model_dump(include={*StateOptions.__annotations__}, exclude_none=True)
        return cast(StateOptions, values)


class LanguageModelingRecipe(DecodingRecipe):
    """A recipe's sections besides [model] and [training]."""

    new_tokenizer: ClassVar[TokenizerSection] = TokenizerSection(kind="words")

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


class LanguageModeling(ContinuesTexts):
    """A model that continues a text, with its tokenizer.

    format: the format of the training text, `lines` or `text` (see [data]); None: the model comes
        from elsewhere, where a text begins with the bos token, or with the eos token that ends the
        text before.
    unit, window, stride, state_options: how perplexity is measured, as in [evaluation].
    """

    name = "language-modeling"
    verbs = ("generate", "predict", "embed", "evaluate", "look")
    decodes = True
    Recipe = LanguageModelingRecipe
    goal = ("loss", "min")
    length_option = "sequence_length"

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: Tokenizer,
        *,
        method: Any = None,
        format: str | None = None,
        unit: Unit = "token",
        window: int | None = None,
        stride: int | None = None,
        **state_options: Unpack[StateOptions],
    ):
        check_state_options(state_options)
        self.model, self.tokenizer = model, tokenizer
        self.method = method or decoding.options(max_tokens=100)
        self.given_format, self.format = format, format or "text"
        self.unit, self.window, self.stride = unit, window, stride
        self.state_options = state_options
        self.data: TrainingText | None = None
        self.auxiliary_losses: tuple[AuxiliaryLoss, ...] = ()

    usual_length: int | None = None  # of a batch, where they differ in length

    # ---- from a recipe

    @classmethod
    def trains(cls, model: type) -> bool:
        """Whether the model predicts what comes next."""
        return issubclass(model, LanguageModel) and model.trained_in_order

    @classmethod
    def problems(cls, recipe: Any) -> Iterator[tuple[str, str]]:
        """Options without effect, or without what they need."""
        yield from recipe.decoding.problems()
        window, stride = recipe.evaluation.window, recipe.evaluation.stride
        if window is not None and stride is not None and stride > window:
            yield "evaluation.stride", f"must be at most `window`, {window}, but is {stride}."
        evaluation = recipe.evaluation
        for name in ("neural_cache_theta", "neural_cache_weight"):
            if getattr(evaluation, name) is not None and evaluation.neural_cache is None:
                problem = "needs `neural_cache`, the positions that the cache holds."
                yield f"evaluation.{name}", problem

    @classmethod
    def from_recipe(
        cls, recipe: LanguageModelingRecipe, model: LanguageModel, tokenizer: Tokenizer
    ) -> LanguageModeling:
        """The task with its data, ready to be trained.

        Raises:
            ConfigError: a sequence, a window or a stride is longer than the model allows.
            DataError: a text is too short.
        """
        data, evaluation, limit = recipe.data, recipe.evaluation, model.config.max_length
        task = cls(
            model,
            tokenizer,
            method=recipe.decoding.build(100),
            format=data.format,
            unit=evaluation.unit,
            window=evaluation.window or (limit and min(limit, data.sequence_length)),
            stride=evaluation.stride,
            **evaluation.state_options(),
        )
        cls.check_length(recipe, limit)
        task.protocol()  # raises an error for a window or a stride that is too long
        task.evaluated_model(task.state_options)
        task.auxiliary_losses = recipe.objective.losses(model)
        end = task.line_end()
        train, valid = (
            task._in_order(data.tokens(part, tokenizer, end)) for part in ("train", "valid")
        )
        valid_path = data.train if data.splits_train else data.valid
        for path, text in ((data.train, train), (valid_path, valid)):
            _check_length(path, len(text.ids) - 1, data.batch_size if limit is None else 1)
        batches = _batches(train, recipe, limit)
        notes = [*_notes(recipe, tokenizer, limit)]
        if recipe.objective.variable_length:
            task.usual_length = data.sequence_length
        task.data = TrainingText(train, valid, batches, data.batch_size, notes)
        return task

    @staticmethod
    def example(recipe: LanguageModelingRecipe, words: int) -> StreamBatch:
        """A batch as the recipe asks for, whatever the length of a line: for estimates."""
        tokens = torch.ones(recipe.data.batch_size, recipe.data.sequence_length, dtype=torch.long)
        return StreamBatch(tokens, tokens, fresh=True)

    def settings(self) -> dict[str, Any]:
        """What `load` must know beside model, tokenizer and decoding method."""
        protocol = {"unit": self.unit, "window": self.window, "stride": self.stride}
        return {"format": self.given_format, **protocol, **given(self.state_options)}

    def notes(self) -> list[str]:
        """What the tokenizer does not keep of the text, and what is not trained of the model."""
        return self._data().notes

    # ---- training

    def train_batches(self) -> EpochSampler:
        """Windows of parallel streams of the text, or shuffled blocks, epoch after epoch."""
        return EpochSampler(self._data().batches)

    def counts(self, batch: StreamBatch) -> dict[str, int]:
        """Predicted tokens, and the items of the auxiliary losses."""
        auxiliary = {loss.name: loss.count(batch) for loss in self.auxiliary_losses}
        return {"loss": batch.count, **auxiliary}

    def rate_factor(self, batch: StreamBatch) -> float:
        """The length of a batch in parts of the usual one, where batches differ in length."""
        usual = self.usual_length
        return 1.0 if usual is None else batch.tokens.size(1) / usual

    def losses(self, batch: StreamBatch, carry: Any) -> tuple[dict[str, tuple[Tensor, int]], Any]:
        """The sum of the cross-entropies of the next tokens in nats, in training the auxiliary
        losses, and the state after the batch.

        carry: the state after the batch before; None at the start of the text.
        """
        batch = batch.to(device_of(self.model))
        model: Any = self.model if self.model.training else self.generator
        output = model(batch.tokens, None if batch.fresh else carry)
        hidden, targets = output.hidden.flatten(0, 1), batch.targets.flatten()
        loss = self.model.head.loss(hidden, targets, count=batch.count)
        losses = {"loss": loss}
        for auxiliary_loss in self.auxiliary_losses if self.model.training else ():
            losses[auxiliary_loss.name] = auxiliary_loss.total(output), auxiliary_loss.count(batch)
        return losses, None if output.state is None else output.state.detach()

    def validate(self) -> dict[str, float]:
        """Cross-entropy in nats and perplexity, per token of the tokenizer."""
        data = self._data()
        total, count = self._total_loss(self._parts(data.valid, data.batch_size, self.window, None))
        per_token = Perplexity(total, count, Protocol("token", self._tokenization))
        return {"loss": total / count, "perplexity": per_token.value}

    # ---- vectors

    def text_encoder(self) -> TextEncoder:
        """The model as an encoder of texts.

        Raises:
            ConfigError: it is not an encoder.
        """
        if not isinstance(self.model, Encoder):
            raise ConfigError(
                f"{type(self.model).__name__} has no hidden states, so it gives no vectors of "
                "texts. Networks do; this model continues texts (generate)."
            )
        config = self.model.config
        template = self.tokenizer.template or self.model.template(self.tokenizer)
        return TextEncoder(
            self.encoder, InputFormat(self.tokenizer, template, config.max_length, config.pad)
        )

    # ---- perplexity

    def protocol(self, window: int | None = None, stride: int | None = None) -> Protocol:
        """How a perplexity is measured; arguments replace the options of the task.

        Raises:
            ConfigError: a stride without a window, or beyond it.
        """
        check_at_least(1, window=window, stride=stride)
        window = window or self.window or self.context
        if self.context is not None and window is not None and window > self.context:
            raise ConfigError(
                f"`window` must be at most the model's context, {self.context:,}, but is "
                f"{window:,}."
            )
        return Protocol(self.unit, self._tokenization, window, stride or self.stride)

    def evaluate(
        self,
        rows: RowReader | Iterable[str],
        *,
        window: int | None = None,
        stride: int | None = None,
        **state_options: Unpack[StateOptions],
    ) -> Perplexity:
        """Perplexity of a text, given as a reader or as its lines, read once from start to end.

        Every token is predicted, the first one from the token that precedes any line; where the
        model has no such token, the first one is not predicted. Words are separated by white space,
        and the end of a line counts as one more, as is usual.

        Args:
            window, stride: tokens that are read at a time, and from one window to the next.
            state_options: how a model that carries a state reads the text; see `StateOptions`.

        Raises:
            ConfigError: the model has no such options, or one is out of range.
            RegardError: the likelihood of the text is not finite.
        """
        check_state_options(state_options)
        protocol = self.protocol(window, stride)
        options = cast(StateOptions, {**given(self.state_options), **given(state_options)})
        if protocol.window is not None and options:
            raise ConfigError(
                f"`{next(iter(options))}` is for a model that carries a state through the whole "
                f"text, but this one reads windows of {protocol.window:,} tokens."
            )
        rows = rows if isinstance(rows, RowReader) else read(rows)
        units = 0

        def counted() -> Iterator[str]:
            nonlocal units
            for text in rows.texts():
                units += self._units(text)
                yield text

        first, end = self._before(), self.line_end()
        ids = self._in_order(encode_texts(counted(), self.tokenizer, first=first, after=end))
        if protocol.window is not None:
            batches = self._parts(ids, 1, protocol.window, protocol.stride)
            nats, tokens = self._total_loss(batches)
        else:
            nats, tokens, protocol = self._carried_loss(ids, options, protocol)
        unknown_id = self.tokenizer.unk_id
        unknown = 0 if unknown_id is None else int((ids.ids == unknown_id).sum())
        count = tokens if self.unit == "token" else units
        check_any(count, "Perplexity")
        result = Perplexity(nats, count, protocol, unknown)
        check_likelihood(result.nats, result.value)
        return result

    def evaluated_model(self, options: StateOptions) -> LanguageModel:
        """The model with the memory length and largest distance that evaluation is asked for.

        Raises:
            ConfigError: it has none, or options of a cache are given without its size.
        """
        cache_of(options)
        memory = ("memory_length", "max_distance")
        chosen = {name: value for name, value in given(options).items() if name in memory}
        return self.model.with_memory(**chosen) if chosen else self.model

    def log_likelihoods(self, texts: Sequence[str]) -> list[float]:
        """log p of each text, alone, in nats; see `regard.tasks.log_likelihoods`."""
        rows = [self._turned([*a, *b]) for a, b in self.text_ids(checked_texts(texts))]
        return causal_log_likelihoods(self.generator, rows, self.model.target_length or VALID_STEPS)

    def text_ids(self, texts: Sequence[str]) -> list[tuple[list[int], list[int]]]:
        """The ids that precede each text of one line, and those of the text with its line's end."""
        first, end = self._before(), self.line_end()
        return [(first, [*ids, *end]) for ids in self.tokenizer.encode_many(list(texts))]

    def lambada(self, passages: Sequence[str]) -> list[Score]:
        """Accuracy and perplexity of the last words of passages; see `regard.tasks.lambada`."""
        self._check_forward("predict last words")
        return lambada_scores(self.generator, self.tokenizer, checked_texts(passages))

    def check_test(self, recipe: LanguageModelingRecipe) -> None:
        """See `TaskVerbs`."""
        if recipe.data.test is not None:
            for _ in recipe.data.records("test").texts():
                pass

    def test(self, recipe: LanguageModelingRecipe) -> list[Perplexity]:
        """The perplexity of a recipe's test data, nothing where it names none."""
        return [] if recipe.data.test is None else [self.evaluate(recipe.data.records("test"))]

    # ---- parts

    def samples(self, recipe: LanguageModelingRecipe) -> list[tuple[str, str]]:
        """The first words of some validation lines, and their continuation by the model."""
        prompts = self.attention_inputs(recipe)
        outputs = self.generate(prompts, max_tokens=self._sample_tokens(), too_long="truncate")
        return list(zip(prompts, outputs, strict=True))

    def attention_inputs(self, recipe: LanguageModelingRecipe) -> list[str]:
        """See `TaskVerbs`: the first words of some validation lines."""
        lines = islice(recipe.data.records("valid").texts(), SAMPLES)
        prompts = [" ".join(line.split()[:4]) for line in lines]
        most = None if self.context is None else self.context - self._sample_tokens()
        return prompts if most is None else first_tokens(prompts, self.tokenizer, most)

    def _sample_tokens(self) -> int:
        """The most tokens after the prompt of a sample: half of the context at most."""
        return 30 if self.context is None else max(1, min(30, self.context // 2))

    def line_end(self) -> list[int]:
        """The ids at the end of each line of the text: none where line breaks are tokens."""
        return self._line_end() if self.format == "lines" else []

    def _units(self, text: str) -> int:
        line = self.format == "lines"
        size = {"word": len(text.split()), "character": len(text), "byte": len(text.encode())}
        return size.get(self.unit, 0) + line

    @property
    def _tokenization(self) -> str:
        return f"{self.tokenizer.kind}-{self.tokenizer.vocab_size}"

    @torch.no_grad()
    def _total_loss(self, batches: Sequence[StreamBatch]) -> tuple[float, int]:
        """Sum of the losses in nats, and the number of predicted tokens."""
        total, count, carry = 0.0, 0, None
        with evaluating(self.model):
            for batch in watched(batches):
                losses, carry = self.losses(batch, carry)
                loss, tokens = losses["loss"]
                total, count = total + float(loss), count + tokens
        return total, count

    def _carried_loss(
        self, ids: TokenArray, options: StateOptions, protocol: Protocol
    ) -> tuple[float, int, Protocol]:
        """The nats and tokens of a text read with a carried state, and how it was read."""
        model = self.evaluated_model(options)
        with evaluating(model):
            likelihood = carried_likelihood(model, ids, options)
        how = signature(model, options)
        carried = {"segments": likelihood.segments, "overlap": likelihood.overlap, "state": how}
        return likelihood.nats, likelihood.count, replace(protocol, **carried)

    def _parts(
        self, text: TokenArray, streams: int, window: int | None, stride: int | None
    ) -> Sequence[StreamBatch]:
        """A text in windows; without a window as `streams` parallel streams."""
        if window is None:
            chosen = self.state_options.get("target_length")
            length = chosen or self.model.target_length or VALID_STEPS
            return ParallelStreams(text, batch_size=streams, sequence_length=length)
        batch_size = max(1, batch_budget(self.model) // window)
        return SlidingWindows(text, window=window, stride=stride, batch_size=batch_size)

    # ---- prompts

    def _in_order(self, text: TokenArray) -> TokenArray:
        """A text in the order in which the model reads it."""
        return text.reversed() if self.model.reads_backward else text

    def _before(self) -> list[int]:
        """What precedes any text for this model; empty where that is not known."""
        if self.given_format == "lines":
            return self._line_end()
        line = self.tokenizer.encode("\n").ids
        if self.given_format == "text":
            return line
        config = self.model.config
        ids = (self.tokenizer.bos_id, self.tokenizer.eos_id, config.bos, config.eos)
        first_ids = [i for i in ids if i is not None and i < config.vocab_size]
        return first_ids[:1] or line

    def _line_end(self) -> list[int]:
        if self.format == "text":
            return self.tokenizer.encode("\n").ids
        if self.tokenizer.eos_id is None:
            raise ConfigError(
                "Lines need a tokenizer with a token that ends them, such as </s>, but this one "
                "has none. Train one, or read the data with format = 'text'."
            )
        return [self.tokenizer.eos_id]

    def _data(self) -> TrainingText:
        if self.data is None:
            raise RegardError("This model was loaded to be used: it has no data to train on.")
        return self.data


def _batches(text: TokenArray, recipe: LanguageModelingRecipe, limit: int | None) -> EpochData:
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


def _notes(
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


def _check_length(path: Any, predicted: int, streams: int) -> None:
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
