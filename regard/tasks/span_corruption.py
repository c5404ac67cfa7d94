"""Span corruption: T5's pre-training, by the spans that sentinels stand for in a text.

Raffel et al. 2020, section 3.1.4: "Thank you <X> me to your party <Y> week" is the source, and
"<X> for inviting <Y> last <Z>" the target. See `regard.data.pretraining`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, ClassVar

from pydantic import Field

from regard.data.batches import PairBatch, Sequences
from regard.data.lm_streams import DocumentWindows
from regard.data.pretraining import CorruptedWindows, Noise
from regard.data.sampler import EpochSampler
from regard.decoding import RelativeLimit
from regard.decoding.steps import Hypotheses
from regard.errors import ConfigError
from regard.models.protocols import EncoderDecoder
from regard.recipe import Options, Recipe
from regard.tasks.running_text import DocumentData
from regard.tasks.sections import DecodingRecipe, Problems, TokenizerSection
from regard.tasks.task import Task, of_training
from regard.tasks.text_to_text import TextToText
from regard.text import Tokenizer
from regard.text.languages import sentence_end
from regard.text.training import train

SENTINEL = "<extra_id_{}>"


class SpanCorruptionData(DocumentData):
    """[data]: texts, in documents that follow one another without padding."""

    source_length: int = Field(default=512, ge=4)
    """Tokens of a source, `</s>` included; with the default spans 512 are 568 of the text."""

    def problems(self) -> Problems:
        yield from super().problems()
        if self.test:
            yield "data.test", "has no scores in this task. Leave it out."


class SentinelTokenizerSection(TokenizerSection):
    """[tokenizer]: as of other tasks, with sentinels, which it reads in texts."""

    sentinels: int = Field(default=100, ge=1)
    """How many a new vocabulary gets, or one of `path` without any: <extra_id_0> is the last token.
    A word tokenizer leaves a sentinel that is a word of the texts where it is in the vocabulary."""

    def build(self, texts: Callable[[], Iterable[str]]) -> Tokenizer:
        if self.path is not None:
            tokenizer = super().build(texts)
            if SENTINEL.format(0) in tokenizer.vocab():
                return tokenizer
        else:  # words of the texts may be named as sentinels
            handling: dict[str, Any] = self.model_dump(include={"lowercase", "unicode_form"})
            handling["read_special_tokens"] = True
            tokenizer = train(self.kind, texts(), self.vocab_size, **handling)
        names = [SENTINEL.format(number) for number in reversed(range(self.sentinels))]
        return tokenizer.with_special_tokens(names)


class SpanCorruptionObjective(Options):
    """[objective]"""

    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """This share of the target's probability is spread over all labels or tokens."""


class SpanCorruptionRecipe(DecodingRecipe):
    """A recipe's sections besides [model] and [training]."""

    new_tokenizer: ClassVar[TokenizerSection] = SentinelTokenizerSection()

    data: SpanCorruptionData
    tokenizer: SentinelTokenizerSection | None = None
    objective: SpanCorruptionObjective = SpanCorruptionObjective()


class SpanCorruption(TextToText):
    """A model that finds the dropped spans of a text, with its tokenizer."""

    name = "span-corruption"
    new_model = "t5"
    Recipe: ClassVar[type[Recipe] | None] = SpanCorruptionRecipe
    length_option = "source_length"

    def __init__(
        self,
        module: EncoderDecoder,
        tokenizer: Tokenizer,
        *,
        method: Any = None,
        label_smoothing: float = 0.0,
    ):
        super().__init__(module, tokenizer, method=method, label_smoothing=label_smoothing)
        self.corrupted: dict[str, CorruptedWindows] | None = None

    @cached_property
    def sentinels(self) -> list[int]:
        """The ids that stand for the first span, the second, ..."""
        return sentinels_of(self.tokenizer)

    # ---- from a recipe

    @classmethod
    def from_recipe(  # type: ignore[override]
        cls, recipe: SpanCorruptionRecipe, model: EncoderDecoder, tokenizer: Tokenizer
    ) -> SpanCorruption:
        """The task with its data, ready to be trained.

        Raises:
            ConfigError: the tokenizer has no sentinels, or too few; a source is longer than the
                model reads; no window of the data is long enough.
        """
        data, noise = recipe.data, Noise()
        cls.check_length(recipe, model.config.max_length)
        task = cls(
            model,
            tokenizer.with_eos_template(),
            method=recipe.decoding.build(RelativeLimit(2.0, 10)),
            **cls.options_in(recipe),
        )
        window = noise.window(data.source_length)
        spans = noise.counts(window)[1]
        if spans > len(task.sentinels):
            raise ConfigError(
                f"[data] sources of {data.source_length:,} tokens have {spans} spans, but the "
                f"tokenizer has {len(task.sentinels)} sentinels. Give a shorter `source_length`, "
                "or more `sentinels` of [tokenizer]."
            )
        corpora = data.corpora(tokenizer, end=(sentence_end(tokenizer),))
        ids = {"end": model.config.eos, "start": model.config.bos, "pad": model.config.pad}
        task.corrupted = {}
        for part, corpus in zip(("train", "valid"), corpora, strict=True):
            seed = recipe.seed if part == "train" else 0
            windows = DocumentWindows(
                corpus.tokens.joined(),
                length=window,
                batch_size=data.batch_size,
                seed=seed,
                smallest=2,
            )
            task.corrupted[part] = CorruptedWindows(
                windows, task.sentinels, **ids, noise=noise, seed=seed
            )
        return task

    @staticmethod
    def example(recipe: SpanCorruptionRecipe, words: int) -> PairBatch:  # type: ignore[override]
        """A batch as the recipe asks for, whatever the length of a text: for estimates."""
        data, rows = recipe.data, recipe.data.batch_size
        lengths = Noise().lengths(Noise().window(data.source_length))
        source, target = (Sequences.dummy(rows, length) for length in lengths)
        return PairBatch(source, target)

    # ---- training

    def train_batches(self) -> EpochSampler:
        """Corrupted windows of the corpus, in another order with other spans in each epoch."""
        return EpochSampler(of_training(self.corrupted)["train"])

    def notes(self) -> list[str]:
        return []

    def validate(self) -> dict[str, float]:
        """The cross-entropy of the targets in nats per token, always of the same spans."""
        total, count = self._total_loss(of_training(self.corrupted)["valid"].epoch(0))
        return {"loss": total / count}

    samples = Task.samples  # [data] has no pairs
    attention_inputs = Task.attention_inputs

    # ---- generated texts

    def spelled(self, texts: Sequence[str], hypotheses: Hypotheses) -> list[list[str]]:
        """The hypotheses of each text as texts, with their sentinels."""
        return [
            [self._with_sentinels(hypothesis.tokens) for hypothesis in ranked]
            for ranked in hypotheses
        ]

    def _with_sentinels(self, ids: Sequence[int]) -> str:
        """A text with its sentinels, which decoding leaves out."""
        parts: list[list[int]] = [[]]
        marks, numbers = [], {number: at for at, number in enumerate(self.sentinels)}
        for number in ids:
            if number in numbers:
                marks.append(SENTINEL.format(numbers[number]))
                parts.append([])
            else:
                parts[-1].append(number)
        texts = [text.strip() for text in self.tokenizer.decode_many(parts)]
        joined = [
            texts[0],
            *(piece for pair in zip(marks, texts[1:], strict=True) for piece in pair),
        ]
        return " ".join(filter(None, joined))


def sentinels_of(tokenizer: Tokenizer) -> list[int]:
    """The ids of <extra_id_0>, <extra_id_1>, ...

    Raises:
        ConfigError: there are none.
    """
    vocabulary, ids = tokenizer.vocab(), list[int]()
    while (token := SENTINEL.format(len(ids))) in vocabulary:
        ids.append(vocabulary[token])
    if not ids:
        raise ConfigError(
            f"Span corruption needs a tokenizer with sentinels, {SENTINEL.format(0)} and so on, "
            "as T5's has. A tokenizer that [tokenizer] describes gets them."
        )
    return ids
