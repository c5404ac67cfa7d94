"""Language modelling: one long text, a model that predicts each token, perplexity."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from regard import decoding
from regard.attention.tap import label, muted
from regard.data import Column, Cursor, Rows, Sequences, StreamBatch, Streams, Tokens, read
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.steps import evaluating
from regard.decoding.streaming import Streaming
from regard.errors import ConfigError, DataError, RegardError
from regard.metrics import Perplexity, PerplexityMeter, Protocol
from regard.recipe import Options, Recipe, RecipePath
from regard.tasks.batching import decode_in_order, device_of, long_ones
from regard.tasks.sections import DecodingSection, TokenizerSection
from regard.text import Tokenizer

Unit = Literal["word", "token", "character", "byte"]
SAMPLES = 6  # lines that a run's report continues
VALID_STEPS = 256  # tokens of a stream at a time, where nothing is learned


class TextData(Options):
    """[data]: files of running text, read by `rows` parallel streams of `steps` tokens."""

    train: RecipePath
    valid: RecipePath
    test: RecipePath | None = None
    format: Literal["lines", "text"] = "lines"
    """lines: every line ends in `</s>`, as in the Penn Treebank; text: line breaks are tokens."""
    rows: int = Field(default=20, ge=1)
    steps: int = Field(default=20, ge=1)


class TextEvaluation(Options):
    """[evaluation]"""

    unit: Unit = "token"
    """What perplexity is per: word, token, or character (then bits per character)."""


class LanguageModelingRecipe(Recipe):
    """A recipe's sections besides [model] and [training]."""

    data: TextData
    tokenizer: TokenizerSection = TokenizerSection(kind="words")
    decoding: DecodingSection = DecodingSection()
    evaluation: TextEvaluation = TextEvaluation()


@dataclass(frozen=True)
class Texts:
    """Encoded training and validation text, and how to stream it."""

    train: Tokens
    valid: Tokens
    rows: int
    steps: int


class LanguageModeling:
    """A model that continues a text, with its tokenizer."""

    name = "language-modeling"
    decodes = True
    Recipe = LanguageModelingRecipe
    goal = ("loss", "min")

    def __init__(
        self,
        model: Any,
        tokenizer: Tokenizer,
        *,
        method: Any = None,
        format: str = "lines",
        unit: Unit = "token",
        texts: Texts | None = None,
    ):
        self.model, self.tokenizer = model, tokenizer
        self.method = method or decoding.options(max_tokens=100)
        self.format, self.unit, self.data = format, unit, texts

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
    def from_recipe(cls, recipe: LanguageModelingRecipe, model: Any, tokenizer: Tokenizer) -> Any:
        """The task with its data, ready to be trained."""
        data = recipe.data
        method = recipe.decoding.build(100)
        task = cls(model, tokenizer, method=method, format=data.format, unit=recipe.evaluation.unit)
        train = task.encode(read(data.train, format=data.format))
        valid = task.encode(read(data.valid, format=data.format))
        for path, text in ((data.train, train), (data.valid, valid)):
            predicted = len(text.ids) - 1
            if predicted < data.rows:
                raise DataError(
                    path,
                    None,
                    f"has {predicted + 1} tokens, too few for {data.rows} streams side by side.",
                    f"Give more text, or set `rows` of [data] to at most {max(1, predicted)}.",
                )
        task.data = Texts(train, valid, data.rows, data.steps)
        return task

    @staticmethod
    def example(recipe: LanguageModelingRecipe, words: int) -> StreamBatch:
        """A batch as the recipe asks for, whatever the length of a line: for estimates."""
        tokens = torch.ones(recipe.data.rows, recipe.data.steps, dtype=torch.long)
        return StreamBatch(tokens, tokens, fresh=True)

    def settings(self) -> dict[str, Any]:
        """What `load` must know beside model, tokenizer and decoding method."""
        return {"format": self.format, "unit": self.unit}

    # ---- learning

    def train_batches(self) -> Cursor:
        """Windows over parallel streams of the text, pass after pass."""
        data = self._texts()
        return Cursor(Streams(data.train, rows=data.rows, steps=data.steps))

    def counts(self, batch: StreamBatch) -> dict[str, int]:
        """Predicted tokens."""
        return {"loss": batch.count}

    def losses(self, batch: StreamBatch, carry: Any) -> tuple[dict[str, tuple[Tensor, int]], Any]:
        """Cross-entropy of the next token, in nats; the state goes on to the next window."""
        batch = batch.to(device_of(self.model))
        output = self.model(batch.tokens, None if batch.fresh else carry)
        loss = self.model.head.loss(output.hidden.flatten(0, 1), batch.targets.flatten())
        return {"loss": loss}, output.state.detach()

    def validate(self) -> dict[str, float]:
        """Cross-entropy in nats and perplexity, per token of the tokenizer."""
        data = self._texts()
        total, count = self._total_loss(Streams(data.valid, rows=data.rows, steps=VALID_STEPS))
        per_token = Perplexity(total, count, Protocol("token", self._tokenization))
        return {"loss": total / count, "perplexity": per_token.value}

    # ---- using

    def generate(self, prompts: Sequence[str] | str = "", **options: Any) -> Any:
        """Prompts with what the model writes after them (a list for several, one for one).

        Args:
            options: how to decode, by name (`max_tokens=40, top_k=40`), where it differs from the
                model's own way.
        """
        if isinstance(prompts, str):
            return self.generate([prompts], **options)[0]
        found = self.hypotheses(prompts, **options)
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

    def hypotheses(self, prompts: Sequence[str], **options: Any) -> list[list[Hypothesis]]:
        """The continuations of each prompt, best first."""
        method = decoding.changed(self.method, **options)
        rows = self._prompts(prompts)
        with muted():
            found = decode_in_order(self.model, Tokens.of(rows), method)
        self._show([[*r, *best[0].tokens] for r, best in zip(rows, found, strict=True)])
        return found

    def long_ones(self, prompts: Sequence[str]) -> dict[int, int]:
        """Which prompts are longer than the model's limit: their places and their tokens."""
        limit = self.model.config.max_length
        return long_ones(prompts, Column("prompt", self.tokenizer, max_tokens=limit))

    def stream(self, prompt: str = "", **options: Any) -> Iterator[str]:
        """What the model writes after the prompt, piece by piece as it is decided."""
        method = decoding.changed(self.method, **options)
        ids = self._prompts([prompt])[0]
        said = self.tokenizer.decode(ids)
        source = Sequences.of([ids], self.model.config.pad).to(device_of(self.model))
        for _, token in Streaming(self.model, source, method):
            ids.append(token)
            text = self.tokenizer.decode(ids)
            if not text.endswith("\ufffd"):  # the bytes of one character may be several tokens
                yield text[len(said) :]
                said = text

    def evaluate(self, rows: Rows) -> Perplexity:
        """Perplexity of a text, read once from its beginning to its end.

        Every token is predicted, the first one from what stands before any line. Words are those
        between white space, and the end of a line is one more, as the field counts them.
        """
        meter = PerplexityMeter(Protocol(self.unit, self._tokenization))
        units = 0

        def counted() -> Iterator[str]:
            nonlocal units
            for text in rows.texts():
                units += self._units(text)
                yield text

        ids = Tokens.of([self._line_end(), *self._encoded(counted())], self._size)
        nats, tokens = self._total_loss(Streams(ids, rows=1, steps=VALID_STEPS))
        unknown = int((ids.ids == self.tokenizer.unk_id).sum()) if self.tokenizer.unk_id else 0
        meter.add(nats, tokens if self.unit == "token" else units, unknown)
        return meter.result()

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
        return list(zip(begun, self.generate(begun, max_tokens=30), strict=True))

    def encode(self, rows: Rows) -> Tokens:
        """A text as ids, each of its lines ended where the format says so."""
        return Tokens.of(self._encoded(rows.texts()), self._size)

    def _encoded(self, texts: Iterator[str]) -> Iterator[list[int]]:
        end = self._line_end() if self.format == "lines" else []
        while chunk := list(islice(texts, 4096)):
            yield from ([*ids, *end] for ids in self.tokenizer.encode_many(chunk))

    def _units(self, text: str) -> int:
        line = self.format == "lines"
        size = {"word": len(text.split()), "character": len(text), "byte": len(text.encode())}
        return size.get(self.unit, 0) + line

    @property
    def _size(self) -> int:
        return self.tokenizer.vocab_size

    @property
    def _tokenization(self) -> str:
        return f"{self.tokenizer.kind}-{self._size}"

    @torch.no_grad()
    def _total_loss(self, streams: Streams) -> tuple[float, int]:
        """Sum of the losses in nats, and how many tokens were predicted."""
        total, count, carry = 0.0, 0, None
        with evaluating(self.model):
            for batch in streams:
                losses, carry = self.losses(batch, carry)
                loss, tokens = losses["loss"]
                total, count = total + float(loss), count + tokens
        return total, count

    def _prompts(self, prompts: Sequence[str]) -> list[list[int]]:
        """Ids of the prompts; an empty one is what stands before any line of the text."""
        return [ids or self._line_end() for ids in self.tokenizer.encode_many(list(prompts))]

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
        words = [[self.tokenizer.label(i) for i in row] for row in rows]
        if label(target=words):
            with torch.no_grad(), evaluating(self.model):
                ids = Sequences.of(rows, self.model.config.pad).ids
                self.model(ids.to(device_of(self.model)))

    def _texts(self) -> Texts:
        if self.data is None:
            raise RegardError("This model was loaded to be used: it has no data to train on.")
        return self.data
