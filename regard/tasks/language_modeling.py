"""Language modelling: one long text, a model that predicts each token, perplexity.

A model that carries a state reads the text as streams, from beginning to end. One that has a
context instead (`config.max_length`) learns from blocks and is measured over windows.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from regard import decoding
from regard.attention.tap import label, muted
from regard.data import (
    EpochSampler,
    ParallelStreams,
    RowReader,
    Sequences,
    ShuffledBlocks,
    SlidingWindows,
    StreamBatch,
    TokenArray,
    encode_texts,
    read,
)
from regard.data.encoder_inputs import InputFormat
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.steps import evaluating
from regard.decoding.streaming import IncrementalDetokenizer, Streaming
from regard.errors import ConfigError, DataError, RegardError
from regard.metrics import Perplexity, Protocol, Score
from regard.metrics.score import check_any
from regard.models.protocols import Encoder, LanguageModel
from regard.recipe import Options, Recipe, RecipePath
from regard.tasks.batching import TooLong, decode_in_order, device_of, watched
from regard.tasks.embedder import Embeds, TextEncoder, batch_budget
from regard.tasks.finite_checks import check_likelihood
from regard.tasks.inputs import checked_text, checked_texts
from regard.tasks.lambada import lambada_scores
from regard.tasks.prompts import fitting, room, tell_ends
from regard.tasks.sections import DecodingSection, TokenizerSection
from regard.tasks.stateful_perplexity import stateful_likelihood
from regard.text import Tokenizer

Unit = Literal["word", "token", "character", "byte"]
SAMPLES = 6  # lines that a run's report continues
SAMPLED = 500  # texts, lines mostly, in which a tokenizer's losses are looked for
VALID_STEPS = 256  # tokens of a stream at a time, where nothing is learned


class TextData(Options):
    """[data]: running text, in batches of `batch_size` times `sequence_length` tokens."""

    train: RecipePath
    valid: RecipePath
    test: RecipePath | None = None
    format: Literal["lines", "text"] = "lines"
    """lines: every line ends in `</s>`, as in the Penn Treebank; text: line breaks are tokens."""
    batch_size: int = Field(default=20, ge=1)
    """Parallel streams, or blocks in a batch."""
    sequence_length: int = Field(default=20, ge=1)
    """Tokens of a stream at a time, or of a block."""


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


class LanguageModelingRecipe(Recipe):
    """A recipe's sections besides [model] and [training]."""

    data: TextData
    tokenizer: TokenizerSection | None = None
    """Words, unless the recipe says otherwise or the model is started from a folder."""
    decoding: DecodingSection = DecodingSection()
    evaluation: PerplexitySection = PerplexitySection()

    @model_validator(mode="after")
    def _words(self) -> Self:
        started = hasattr(getattr(self, "model", None), "path")
        if self.tokenizer is None and not started:
            object.__setattr__(self, "tokenizer", TokenizerSection(kind="words"))
        return self


@dataclass(frozen=True)
class Texts:
    """Encoded training and validation text, and how to read it.

    `unread`: positions of the model's context that no block reaches. `lost`: what the tokenizer
    does not keep of the text, with an example; "" where it keeps all.
    """

    train: TokenArray
    valid: TokenArray
    batch_size: int
    sequence_length: int
    seed: int
    unread: int = 0
    lost: str = ""


def lost_text(tokenizer: Tokenizer, texts: Iterable[str]) -> str:
    """What decoding does not give back of texts, with the first example; "" where nothing is lost.

    Unknown tokens are not looked for: perplexities count them.
    """
    unknown = "" if tokenizer.unk_id is None else tokenizer.token(tokenizer.unk_id)
    for text in texts:
        ids = tokenizer.encode(text).ids
        found = tokenizer.decode(ids)
        if tokenizer.unk_id in ids and unknown:
            same = _spaces(found.replace(unknown, "x")) == _spaces(text)
        else:
            same = found.removeprefix(" ") == text.removeprefix(" ")  # a space may stand first
        if not same:
            pairs = enumerate(zip(found, text, strict=False))
            at = next((i for i, (a, b) in pairs if a != b), min(len(found), len(text)))
            start = max(0, at - 20)
            return (
                f"the tokenizer ({tokenizer.kind}) does not keep the text: "
                f"{text[start : at + 30]!r} comes back as {found[start : at + 30]!r}. The model "
                "never learns what is lost, such as line breaks, indentation or capitals. A "
                "tokenizer of kind byte-bpe keeps all of a text"
            )
    return ""


def _spaces(text: str) -> list[str]:
    """The white space of a text; what stands between is left out."""
    return re.findall(r"\s+", text)


class LanguageModeling(Embeds):
    """A model that continues a text, with its tokenizer.

    format: how the text that it learned from was cut: `lines` or `text` (see [data]); None: the
    model comes from elsewhere, where a text begins with the bos piece or with the eos piece that
    ends the one before.
    unit, window, stride: how perplexity is measured, as in [evaluation].
    """

    name = "language-modeling"
    verbs = ("generate", "predict", "embed", "evaluate", "look")
    decodes = True
    Recipe = LanguageModelingRecipe
    goal = ("loss", "min")

    def __init__(
        self,
        model: Any,
        tokenizer: Tokenizer,
        *,
        method: Any = None,
        format: str | None = None,
        unit: Unit = "token",
        window: int | None = None,
        stride: int | None = None,
        texts: Texts | None = None,
    ):
        self.model, self.tokenizer = model, tokenizer
        self.method = method or decoding.options(max_tokens=100)
        self.given_format, self.format = format, format or "text"
        self.unit, self.window, self.stride, self.data = unit, window, stride, texts

    @property
    def context(self) -> int | None:
        """The most tokens that the model reads at a time; None: any number, it carries a state."""
        return self.model.config.max_length

    # ---- from a recipe

    @staticmethod
    def texts(recipe: LanguageModelingRecipe) -> Iterator[str]:
        """What the tokenizer learns from: the training text."""
        return read(recipe.data.train, format=recipe.data.format).texts()

    @staticmethod
    def files(recipe: LanguageModelingRecipe) -> list[str]:
        """The files of data, for the record of a run."""
        data = recipe.data
        return [str(path) for path in (data.train, data.valid, data.test) if path is not None]

    @classmethod
    def trains(cls, model: type) -> bool:
        """Whether the model predicts what comes next."""
        return issubclass(model, LanguageModel)

    @classmethod
    def problems(cls, recipe: Any) -> Iterator[tuple[str, str]]:
        """Options without effect, or without what they need."""
        yield from recipe.decoding.problems()
        window, stride = recipe.evaluation.window, recipe.evaluation.stride
        if window is not None and stride is not None and stride > window:
            problem = f"must be at most `window`, {window}, but is {stride}."
            yield "evaluation.stride", problem

    @classmethod
    def from_recipe(cls, recipe: LanguageModelingRecipe, model: Any, tokenizer: Tokenizer) -> Any:
        """The task with its data, ready to be trained."""
        data, evaluation, limit = recipe.data, recipe.evaluation, model.config.max_length
        task = cls(
            model,
            tokenizer,
            method=recipe.decoding.build(100),
            format=data.format,
            unit=evaluation.unit,
            window=evaluation.window or (limit and min(limit, data.sequence_length)),
            stride=evaluation.stride,
        )
        if limit is not None and data.sequence_length > limit:
            raise ConfigError(
                f"[data] `sequence_length` must be at most the model's context, {limit:,}, but is "
                f"{data.sequence_length:,}."
            )
        task.protocol()  # refuses a window or a stride that cannot be
        train = task.encode(read(data.train, format=data.format))
        valid = task.encode(read(data.valid, format=data.format))
        for path, text in ((data.train, train), (data.valid, valid)):
            _check_length(path, len(text.ids) - 1, data.batch_size if limit is None else 1)
        begun = hasattr(getattr(recipe, "model", None), "path")  # its positions are trained
        unread = 0 if begun or limit is None else limit - data.sequence_length
        lost = ""
        if data.format == "text":
            lost = lost_text(tokenizer, islice(read(data.train, format="text").texts(), SAMPLED))
        task.data = Texts(
            train, valid, data.batch_size, data.sequence_length, recipe.seed, unread, lost
        )
        return task

    @staticmethod
    def example(recipe: LanguageModelingRecipe, words: int) -> StreamBatch:
        """A batch as the recipe asks for, whatever the length of a line: for estimates."""
        tokens = torch.ones(recipe.data.batch_size, recipe.data.sequence_length, dtype=torch.long)
        return StreamBatch(tokens, tokens, fresh=True)

    def settings(self) -> dict[str, Any]:
        """What `load` must know beside model, tokenizer and decoding method."""
        protocol = {"unit": self.unit, "window": self.window, "stride": self.stride}
        return {"format": self.given_format, **protocol}

    def notes(self) -> list[str]:
        """What of the text is not kept, and what of the model is not trained."""
        data = self._texts()
        notes = [data.lost] if data.lost else []
        if not data.unread:
            return notes
        limit, steps = self.context, data.sequence_length
        return [
            *notes,
            f"the model's context is {limit:,} tokens, but blocks have {steps:,} "
            "(`sequence_length` of [data]): it learns nothing about longer texts. Set `max_length` "
            f"of [model] to {steps}",
        ]

    # ---- learning

    def train_batches(self) -> EpochSampler:
        """Windows over parallel streams of the text, or shuffled blocks; pass after pass."""
        data = self._texts()
        if self.context is None:
            return EpochSampler(
                ParallelStreams(
                    data.train, batch_size=data.batch_size, sequence_length=data.sequence_length
                )
            )
        return EpochSampler(
            ShuffledBlocks(
                data.train,
                batch_size=data.batch_size,
                sequence_length=data.sequence_length,
                seed=data.seed,
            )
        )

    def counts(self, batch: StreamBatch) -> dict[str, int]:
        """Predicted tokens."""
        return {"loss": batch.count}

    def losses(self, batch: StreamBatch, carry: Any) -> tuple[dict[str, tuple[Tensor, int]], Any]:
        """Cross-entropy of the next token, in nats; a state goes on to the next window."""
        batch = batch.to(device_of(self.model))
        model: Any = self.model if self.model.training else self.generator
        output = model(batch.tokens, None if batch.fresh else carry)
        hidden, targets = output.hidden.flatten(0, 1), batch.targets.flatten()
        loss = self.model.head.loss(hidden, targets, count=batch.count)
        return {"loss": loss}, None if output.state is None else output.state.detach()

    def validate(self) -> dict[str, float]:
        """Cross-entropy in nats and perplexity, per token of the tokenizer."""
        data = self._texts()
        total, count = self._total_loss(self._parts(data.valid, data.batch_size, self.window, None))
        per_token = Perplexity(total, count, Protocol("token", self._tokenization))
        return {"loss": total / count, "perplexity": per_token.value}

    # ---- using

    def generate(
        self, prompts: Sequence[str] | str = "", *, too_long: TooLong = "error", **options: Any
    ) -> Any:
        """Prompts with what the model writes after them (a list for several, one for one).

        A text that reaches the end of the model's context stops there, which is told.

        Args:
            too_long: what happens to a prompt that leaves no room in the context for as many tokens
                as are asked for here: "error", or "truncate", which cuts its beginning.
            options: how to decode, by name (`max_tokens=40, top_k=40`), where it differs from the
                model's own way.

        Raises:
            RegardError: a prompt is too long.
        """
        if isinstance(prompts, str):
            return self.generate([prompts], too_long=too_long, **options)[0]
        prompts = checked_texts(prompts)
        if too_long == "truncate" and (cut := self.long_ones(prompts, **options)):
            warnings.warn(
                f"{len(cut):,} of {len(prompts):,} prompts were cut to their last "
                f"{room(self.context, options):,} tokens",
                stacklevel=2,
            )
        found = self.hypotheses(prompts, too_long=too_long, **options)
        return [spelled[0] for spelled in self.spelled(prompts, found)]

    predict = generate

    def spelled(
        self, prompts: Sequence[str], found: Sequence[Sequence[Hypothesis]]
    ) -> list[list[str]]:
        """The hypotheses of each prompt, in words: the prompt, and what the model writes."""
        return [
            self.tokenizer.decode_many([*row, *h.tokens] for h in several)
            for row, several in zip(self._prompts(prompts), found, strict=True)
        ]

    def hypotheses(
        self, prompts: Sequence[str], *, too_long: TooLong = "error", **options: Any
    ) -> list[list[Hypothesis]]:
        """The continuations of each prompt, best first."""
        method, prompts = decoding.with_options(self.method, **options), checked_texts(prompts)
        rows = fitting(self._prompts(prompts), self.context, too_long, options)
        with muted():
            found = decode_in_order(self.model, TokenArray.of(rows), method)
        best = [one[0] for one in found]
        tell_ends(rows, best, self.context, method)
        self._show([[*row, *one.tokens] for row, one in zip(rows, best, strict=True)])
        return found

    def long_ones(self, prompts: Sequence[str], **options: Any) -> dict[int, int]:
        """Which prompts leave no room for what is asked: their places and their tokens."""
        most, rows = room(self.context, options), self._prompts(checked_texts(prompts))
        return {i: len(row) for i, row in enumerate(rows) if most is not None and len(row) > most}

    def stream(
        self, prompt: str = "", *, too_long: TooLong = "error", **options: Any
    ) -> Iterator[str]:
        """What the model writes after the prompt, piece by piece as it is decided."""
        method = decoding.with_options(self.method, **options)
        ids = self._prompts([checked_text(prompt, 0)])[0]
        row = fitting([ids], self.context, too_long, options)[0]
        if len(row) < len(ids):
            warnings.warn(f"the prompt was cut to its last {len(row):,} tokens", stacklevel=2)
        source = Sequences.of([row], self.model.config.pad).to(device_of(self.model))
        steps = Streaming(self.generator, source, method)
        detokenizer = IncrementalDetokenizer(self.tokenizer, ids)
        yield from filter(None, (detokenizer.add(token) for _, token in steps))
        yield from filter(None, [detokenizer.rest()])
        tell_ends([row], [one[0] for one in steps.results], self.context, method)

    def text_encoder(self) -> TextEncoder:
        """The model as an encoder of texts, for their vectors.

        Raises:
            ConfigError: it is none.
        """
        if not isinstance(self.model, Encoder):
            raise ConfigError(
                f"{type(self.model).__name__} carries a state from word to word and has no layers "
                "of hidden states to choose from: it gives no vectors of texts. GPT and BERT do; "
                "this model continues texts (generate)."
            )
        config = self.model.config
        template = self.tokenizer.template or self.model.template(self.tokenizer)
        return TextEncoder(
            self.encoder, InputFormat(self.tokenizer, template, config.max_length, config.pad)
        )

    def protocol(self, window: int | None = None, stride: int | None = None) -> Protocol:
        """How a perplexity is measured, where it differs from the model's own way.

        Raises:
            ConfigError: a stride without a window, or beyond it.
        """
        for name, given in (("window", window), ("stride", stride)):
            if given is not None and given < 1:
                raise ConfigError(f"`{name}` must be at least 1, but is {given}.")
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
    ) -> Perplexity:
        """Perplexity of a text, given as rows or as its lines, read once from beginning to end.

        Every token is predicted, the first one from what stands before any line; only where the
        model knows nothing that could stand there, the first token is not. Words are those between
        white space, and the end of a line is one more, as the field counts them.

        Args:
            window, stride: tokens that are read at a time, and from one window to the next.

        Raises:
            RegardError: the likelihood of the text is no number.
        """
        protocol = self.protocol(window, stride)
        rows = rows if isinstance(rows, RowReader) else read(rows)
        units = 0

        def counted() -> Iterator[str]:
            nonlocal units
            for text in rows.texts():
                units += self._units(text)
                yield text

        ids = self._encoded(counted(), self._before())
        if protocol.window is not None:
            batches = self._parts(ids, 1, protocol.window, protocol.stride)
            nats, tokens = self._total_loss(batches)
        else:
            with evaluating(self.model):
                found = stateful_likelihood(self.model, ids)
            nats, tokens = found.nats, found.count
            protocol = replace(protocol, segments=found.segments, overlap=found.overlap)
        unknown = int((ids.ids == self.tokenizer.unk_id).sum()) if self.tokenizer.unk_id else 0
        count = tokens if self.unit == "token" else units
        check_any(count, "Perplexity")
        result = Perplexity(nats, count, protocol, unknown)
        check_likelihood(result.nats, result.value)
        return result

    def lambada(self, passages: Sequence[str]) -> list[Score]:
        """How often the last word of a passage is predicted, and its perplexity (LAMBADA)."""
        return lambada_scores(self.generator, self.tokenizer, checked_texts(passages))

    def test(self, recipe: LanguageModelingRecipe) -> tuple[list[Perplexity], list[Any]]:
        """The perplexity of a recipe's test data, nothing where it names none; and no samples."""
        if recipe.data.test is None:
            return [], []
        return [self.evaluate(read(recipe.data.test, format=recipe.data.format))], []

    # ---- parts

    def samples(self, recipe: LanguageModelingRecipe) -> list[tuple[str, str]]:
        """The first words of some validation lines, and how the model goes on."""
        lines = islice(read(recipe.data.valid, format=recipe.data.format).texts(), SAMPLES)
        begun = [" ".join(line.split()[:4]) for line in lines]
        most = 30
        if self.context is not None:  # half of it for the prompt at most
            most = max(1, min(30, self.context // 2))
            rows = self.tokenizer.encode_many(begun)
            begun = self.tokenizer.decode_many(row[: self.context - most] for row in rows)
        return list(zip(begun, self.generate(begun, max_tokens=most), strict=True))

    def encode(self, rows: RowReader) -> TokenArray:
        """A text as ids, each of its lines ended where the format says so."""
        return self._encoded(rows.texts())

    def _encoded(self, texts: Iterator[str], first: Sequence[int] = ()) -> TokenArray:
        end = self._line_end() if self.format == "lines" else []
        return encode_texts(texts, self.tokenizer, first=first, after=end)

    def _units(self, text: str) -> int:
        line = self.format == "lines"
        size = {"word": len(text.split()), "character": len(text), "byte": len(text.encode())}
        return size.get(self.unit, 0) + line

    @property
    def _tokenization(self) -> str:
        return f"{self.tokenizer.kind}-{self.tokenizer.vocab_size}"

    @torch.no_grad()
    def _total_loss(self, batches: Sequence[StreamBatch]) -> tuple[float, int]:
        """Sum of the losses in nats, and how many tokens were predicted."""
        total, count, carry = 0.0, 0, None
        with evaluating(self.model):
            for batch in watched(batches):
                losses, carry = self.losses(batch, carry)
                loss, tokens = losses["loss"]
                total, count = total + float(loss), count + tokens
        return total, count

    def _parts(
        self, text: TokenArray, rows: int, window: int | None, stride: int | None
    ) -> Sequence[StreamBatch]:
        """A text to be measured: in windows, or in `rows` streams where there is no window."""
        if window is None:
            return ParallelStreams(text, batch_size=rows, sequence_length=VALID_STEPS)
        rows = max(1, batch_budget(self.model) // window)
        return SlidingWindows(text, window=window, stride=stride, batch_size=rows)

    # ---- prompts

    def _prompts(self, prompts: Sequence[str]) -> list[list[int]]:
        """Ids of the prompts; an empty one is what stands before any line of the text.

        Where the tokenizer's file lets every text begin with a piece, they do.
        """
        template = self.tokenizer.template
        begin = [number for number, _ in template.single[0]] if template else []
        rows = self.tokenizer.encode_many(list(prompts))
        return [[*begin, *ids] or self._before() for ids in rows]

    def _before(self) -> list[int]:
        """What stands before any text, as far as the model knows; nothing where it does not."""
        if self.given_format == "lines":
            return self._line_end()
        line = self.tokenizer.encode("\n").ids
        if self.given_format == "text":
            return line
        ids = (self.tokenizer.bos_id, self.tokenizer.eos_id, *self._ends())
        return next(([number] for number in ids if number is not None), line)

    def _ends(self) -> list[int]:
        config = self.model.config
        ids = (config.bos, config.eos)
        return [number for number in ids if number is not None and number < config.vocab_size]

    def _line_end(self) -> list[int]:
        if self.format == "text":
            return self.tokenizer.encode("\n").ids
        if self.tokenizer.eos_id is None:
            raise ConfigError(
                "Lines need a tokenizer with a piece that ends them, such as </s>, but this one "
                "has none. Train one, or read the data with format = 'text'."
            )
        return [self.tokenizer.eos_id]

    def _show(self, rows: list[list[int]]) -> None:
        rows = [row[: self.context] for row in rows]  # the last token may be one too many
        words = [[self.tokenizer.label(i) for i in row] for row in rows]
        if label(target=words):
            with torch.no_grad(), evaluating(self.model):
                ids = Sequences.of(rows, self.model.config.pad).ids
                self.model(ids.to(device_of(self.model)))

    def _texts(self) -> Texts:
        if self.data is None:
            raise RegardError("This model was loaded to be used: it has no data to train on.")
        return self.data


def _check_length(path: Any, predicted: int, rows: int) -> None:
    """Refuses a text too short for `rows` streams, or for one block."""
    if predicted >= rows:
        return
    if rows == 1:
        raise DataError(path, None, "has one token at most: there is nothing to predict.")
    raise DataError(
        path,
        None,
        f"has {predicted + 1} tokens, too few for {rows} streams side by side.",
        f"Give more text, or set `batch_size` of [data] to at most {max(1, predicted)}.",
    )
