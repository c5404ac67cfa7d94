"""Text to text: pairs of a source and a target, and an encoder-decoder that generates targets.

    source text -> [prefix] text </s> -> encoder-decoder -> target text

Translation and summarization are this task with metrics of their own. A prefix tells a model that
was trained for several tasks which one is asked for, such as T5's "summarize: " (Raffel et al.
2020, section 2.4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Literal, NoReturn, Self, TypedDict

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from regard import decoding
from regard.attention.capture import label, muted
from regard.data.batches import IGNORE, Losses, PairBatch, Sequences
from regard.data.encoder_inputs import InputFormat
from regard.data.readers import Column, RowReader, columns_in_header, open_table, read_parallel
from regard.data.sampler import Buckets, EpochSampler, sorted_batches
from regard.data.token_arrays import EncodedExamples, FieldEncoder, TokenArray, encode
from regard.decoding.filters import ForcedFirst
from regard.decoding.steps import Hypotheses, Hypothesis, evaluating, labels_of
from regard.errors import ConfigError
from regard.metrics import CHRF, Accuracy, Metric, Score, Scores
from regard.models.protocols import EncoderDecoder, Output
from regard.recipe import Options, Recipe
from regard.tasks import batching, inputs, sections
from regard.tasks.embedder import EmbedsTexts, TextEncoder
from regard.tasks.reinforce import Reinforce, ReinforceObjective, RewardMean
from regard.tasks.task import Predicts, of_training, results_of
from regard.text import Tokenizer
from regard.text.languages import LANGUAGE_CODE, LanguageTokens, language_tokens, languages_of
from regard.text.templates import Template

SAMPLES = 12  # rows that a run's report shows
KEPT = "source: empty, example kept"  # an event of a report


class PairsData(sections.DataSection):
    """What sections [data] with sources and targets have in common."""

    several_files: ClassVar[bool] = True

    train: sections.Files
    """The file of the training data."""
    valid: sections.Files | sections.Share | sections.FoldOption
    """Files, or a share or a fold of the training data."""
    test: sections.Files = ()
    """The file that the trained model is scored on."""
    max_length: int = Field(default=256, ge=2)
    """The most tokens of a text, `</s>` included; never more than the model reads."""
    too_long: Literal["error", "truncate", "skip"] = "skip"
    """What happens to examples that are longer than the model reads."""
    source_prefix: str = ""
    """What stands before each source: "summarize: "."""
    source_language: str | None = None
    """The language of sources, by the model's own name: "en_XX", "eng_Latn", "en"."""
    target_language: str | None = None
    """The language of targets, likewise."""
    max_tokens_per_batch: int = Field(default=4096, ge=1)
    """Tokens in the larger of a batch's two arrays, padding included."""

    def texts(self) -> Iterator[str]:
        """Both sides of the training pairs, from which a tokenizer learns."""
        return self.records("train").texts()


class TextPairsData(sections.TableOptions, PairsData):
    """[data]: two files of lines, or one table with `columns` for source and target."""

    columns: tuple[int | str, int | str] = (0, 1)
    """The columns of sources and of targets, by number from 0 or by name."""

    def with_named_columns(self) -> Self:
        if "columns" in self.model_fields_set or len(self.train) != 1:
            return self
        columns = columns_in_header(self.train[0], self.format, self.delimiter, self.header)
        return self.model_copy(update={"columns": columns}) if columns else self

    def problems(self) -> sections.Problems:
        yield from super().problems()
        if all(len(getattr(self, part)) != 1 for part in self.parts()):
            yield from sections.differing(
                self, "data", ("columns", *sections.TABLE_OPTIONS), "is of a table"
            )

    def read(self, source: Any, part: str) -> RowReader:
        """The pairs of two files of lines, or of one table."""
        return pairs_of(source, self.columns, self.table)


class TextToTextObjective(ReinforceObjective):
    """[objective]"""

    label_smoothing: float = Field(default=0.1, ge=0, lt=1)
    """This share of the target's probability is spread over all labels or tokens."""


class TextToTextEvaluation(Options):
    """[evaluation]"""

    valid_sentences: int = Field(default=0, ge=0)
    """Validation generates targets for this many texts; 0 means all."""


class PairTokenizer(sections.TokenizerSection):
    """[tokenizer]: one that is learned may be two, of sources and of targets."""

    shared: bool = True
    """Sources and targets have one vocabulary; false: one each, for a model that has a place for
    both (transformer)."""

    def build(self, texts: Callable[[], Iterable[str]]) -> Tokenizer:
        if self.shared or self.path is not None:
            return super().build(texts)
        source = super().build(lambda: islice(texts(), 0, None, 2))
        source.targets = super().build(lambda: islice(texts(), 1, None, 2))
        return source


class PairsRecipe(sections.DecodingRecipe):
    """What the recipes of tasks with sources and targets have in common."""

    new_tokenizer: ClassVar[sections.TokenizerSection] = PairTokenizer()

    data: PairsData
    tokenizer: PairTokenizer | None = None
    objective: TextToTextObjective = TextToTextObjective()
    evaluation: TextToTextEvaluation = TextToTextEvaluation()


class TextToTextRecipe(PairsRecipe):
    """A recipe's sections besides [model] and [training]."""

    data: TextPairsData


@dataclass(frozen=True)
class TrainingPairs:
    """Encoded training and validation pairs, and the batches of the training.

    references: the validation targets as texts.  notes: which rows were left out or truncated.
    """

    valid: EncodedExamples
    references: list[Any]
    batches: Buckets
    notes: list[str]


def text_to_text_loss(
    model: EncoderDecoder, batch: PairBatch, smoothing: float = 0.0
) -> tuple[Tensor, int]:
    """The sum of -log p(target token) in nats, and the number of these tokens."""
    output, targets = text_to_text_output(model, batch)
    return output_loss(model, output, targets, smoothing, batch.count)


def output_loss(
    model: EncoderDecoder, output: Output, targets: Tensor, smoothing: float, count: int
) -> tuple[Tensor, int]:
    """The sum of -log p(target token) in nats, and the number of these tokens."""
    hidden = output.hidden.flatten(0, 1)
    return model.head.loss(hidden, targets.flatten(), smoothing, count)


def text_to_text_output(model: EncoderDecoder, batch: PairBatch) -> tuple[Output, Tensor]:
    """What the model gives for a batch, and the target of each hidden state; -100 does not count.

    In training on a CPU the batch is unpadded if the model supports it.
    """
    source, ids = batch.source, batch.target.ids
    target = Sequences(ids[:, :-1], (batch.target.lengths - 1).clamp(min=0))
    targets = ids[:, 1:].masked_fill(~batch.target.keep[:, 1:], IGNORE)
    if model.training and model.unpadded and batching.saves_padding(source, target):
        source, target = source.unpadded(), target.unpadded()
        assert target.layout is not None
        targets = target.layout.unpad(targets)
    return model.forward(source, target), targets


class TextToTextOptions(TypedDict, total=False):
    """Options that translation and summarization share with `TextToText`."""

    label_smoothing: float
    source_prefix: str
    source_language: str | None
    target_language: str | None


class TextToText(EmbedsTexts):
    """A model that turns a source text into a target text, with its tokenizer.

    `embed` gives the states of its encoder, which reads a text as a source without `source_prefix`.

    metric_names: names of the first metrics of `metrics()` in the run's log.
    default_limit: the limit of decoding where neither a recipe nor a folder sets one.
    reads_empty: whether an empty source has a target; otherwise that of an empty text is empty, and
        training leaves such pairs out.
    """

    name = "text-to-text"
    predict: Predicts[str | Path, str, NoReturn]
    new_model = "transformer-prenorm"
    commands: ClassVar[tuple[str, ...]] = ("generate", "predict", "embed", "evaluate", "look")
    decodes = True
    Recipe: ClassVar[type[Recipe] | None] = TextToTextRecipe
    goal = ("loss", "min")
    default_limit: ClassVar[int | decoding.RelativeLimit] = decoding.RelativeLimit(2.0, 10)
    reads_empty: ClassVar[bool] = False
    metric_names: ClassVar[tuple[str, ...]] = ("accuracy", "chrf")

    def __init__(
        self,
        module: EncoderDecoder,
        tokenizer: Tokenizer,
        *,
        method: Any = None,
        label_smoothing: float = 0.0,
        source_prefix: str = "",
        source_language: str | None = None,
        target_language: str | None = None,
    ):
        self.module, self.tokenizer, self.label_smoothing = module, tokenizer, label_smoothing
        self.method = method or decoding.options(max_tokens=self.default_limit)
        self.source_prefix = source_prefix
        self.source_language, self.target_language = source_language, target_language
        self.reinforce = Reinforce.of(module)
        self.data: TrainingPairs | None = None

    # ---- from a recipe

    @classmethod
    def trains(cls, model: type) -> bool:
        """Whether the model generates a target for a source text."""
        return issubclass(model, EncoderDecoder) and not model.reads_regions

    @classmethod
    def is_for(cls, model: nn.Module, config: Mapping[str, Any]) -> bool:
        """Whether such models are published for the task; without `published_as` for any text."""
        kinds = cls.published_as
        return cls.fits(model) and (not kinds or config.get("model_type") in kinds)

    @classmethod
    def settings_in(cls, model: nn.Module, config: Mapping[str, Any]) -> dict[str, Any]:
        """What stands before each source."""
        prefix = source_prefix(config)
        return {"source_prefix": prefix} if prefix else {}

    @classmethod
    def from_recipe(cls, recipe: PairsRecipe, model: EncoderDecoder, tokenizer: Tokenizer) -> Self:
        """The task with its data, ready to be trained.

        Raises:
            ConfigError: the tokenizer has no token that ends a sentence.
            DataError: a row is too long and that is an error.
        """
        data, start, pads = recipe.data, model.config.bos, (model.config.pad,) * 2
        limit = min(data.max_length, model.config.max_length or data.max_length)
        limits: dict[str, Any] = {"max_length": limit, "prefix": data.source_prefix}
        tokens = language_tokens(tokenizer, start, data.source_language, data.target_language)
        fields = cls.fields(tokenizer, tokens, too_long=data.too_long, **limits)
        empty: Literal["keep", "skip"] = "keep" if cls.reads_empty else "skip"
        train = encode(data.records("train"), fields, empty=empty)
        pairs = data.records("valid")
        if sentence_count := recipe.evaluation.valid_sentences:
            pairs = pairs.first(sentence_count)
        fields = cls.fields(tokenizer, tokens, too_long="truncate", **limits)
        valid = encode(pairs, fields, empty="keep")
        budget = data.max_tokens_per_batch
        batches = Buckets(train.columns, pads, max_tokens=budget, seed=recipe.seed)
        parts = {"training data": train.report, "validation data": valid.report}
        if cls.reads_empty:
            for report in parts.values():
                report.events.pop(KEPT, None)
        notes = [f"{part}: {report}" for part, report in parts.items() if report.events]
        if oversized := batches.oversized:
            notes.append(
                f"training data: {oversized:,} rows are longer than `max_tokens_per_batch`, "
                f"{budget:,}; each is a batch of its own"
            )
        task = cls(
            model,
            tokenizer.with_eos_template(),
            method=recipe.decoding.build(cls.default_limit),
            **cls.options_in(recipe),
        )
        task.reinforce = Reinforce.of(model, recipe.objective)
        task.data = TrainingPairs(valid, fields_of(pairs)[1], batches, notes)
        return task

    @classmethod
    def fields(
        cls, tokenizer: Tokenizer, tokens: LanguageTokens, *, prefix: str = "", **limits: Any
    ) -> tuple[FieldEncoder, FieldEncoder]:
        """How sources and targets are encoded.

        prefix: before each source, as a text.  limits: options of a `FieldEncoder`.
        """
        (before, after), (start, end) = tokens.source, tokens.target
        prefix = tokens.source_prefix + prefix
        source = FieldEncoder("source", tokenizer, before, after, prefix=prefix, **limits)
        return source, FieldEncoder("target", tokenizer.for_targets, start, end, **limits)

    @staticmethod
    def example(recipe: PairsRecipe, words: int) -> PairBatch:
        """A batch as the recipe asks for, if every sentence had `words` tokens: for estimates."""
        rows = max(1, recipe.data.max_tokens_per_batch // words)
        side = Sequences(torch.ones(rows, words, dtype=torch.long), torch.full((rows,), words))
        return PairBatch(side, side)

    def text_encoder(self) -> TextEncoder:
        """The model's encoder, and how it pools a text: the mean of its tokens.

        Raises:
            ConfigError: the model has none that gives a state for each token.
        """
        encoder, config = self.module.source_encoder(), self.module.config
        before, after = self._language_tokens().source
        template = Template.around(before, after, after)
        form = InputFormat(self.tokenizer, template, self.module.text_limit, config.pad)
        return TextEncoder(encoder, form)

    # ---- training

    def train_batches(self) -> EpochSampler:
        """Batches without end, of pairs of similar lengths."""
        return EpochSampler(of_training(self.data).batches)

    def notes(self) -> list[str]:
        """Which rows of the data were left out or truncated."""
        return of_training(self.data).notes

    def counts(self, batch: PairBatch) -> dict[str, int]:
        """Predicted target tokens: all but the first of each row."""
        names = ("loss",) if self.reinforce is None else ("loss", "reinforce")
        return dict.fromkeys(names, batch.count)

    def losses(
        self, batch: PairBatch, carry: RewardMean | None = None
    ) -> tuple[Losses, RewardMean | None]:
        """The sum of the cross-entropies of the target in nats, with label smoothing, and what a
        model that draws choices needs beside it; carry: the moving average of its reward.
        """
        moved, count = batch.to(batching.device_of(self.module)), batch.count
        output, targets = text_to_text_output(self.module, moved)
        losses = {"loss": output_loss(self.module, output, targets, self.label_smoothing, count)}
        if self.reinforce is not None:
            term, carry = self.reinforce.loss(self.module, output, targets, carry)
            losses["reinforce"] = term, count
        return losses | self.further_losses(output, moved), carry

    def further_losses(self, output: Output, batch: PairBatch) -> Losses:
        """Those of this task alone, from what the model gives for a batch."""
        return {}

    def validate(self) -> dict[str, float]:
        """Scores of the generated texts, and the cross-entropy of the references per token.

        Where the model's scores are infinite or NaN all are NaN.
        """
        data = of_training(self.data)
        try:
            decoded = self._validation_outputs()
        except batching.NonFiniteScores:
            return dict.fromkeys((*self.metric_names, "loss"), float("nan"))
        texts = self.tokenizer.decode_many(ranked[0].tokens for ranked in decoded)
        scores = {}
        for name, metric in zip(self.metric_names, self.metrics(), strict=False):
            metric.add(texts, data.references)
            scores[name] = metric.result().value
        loss, count = self._total_loss(self._loss_batches(data.valid))
        return {**scores, "loss": loss / count}

    def _validation_outputs(self) -> Hypotheses:
        """The hypotheses of the validation data."""
        method = self._decoding_method(self._language_tokens())
        sources = of_training(self.data).valid.columns[0]
        return batching.decode_in_order(self.module, sources, method)

    def metrics(self) -> tuple[Metric, ...]:
        """What scores the generated texts against the references: of each metric a new one."""
        return Accuracy(), CHRF()

    # ---- generated texts

    def generate(self, texts: Sequence[Any] | str, **options: Any) -> Any:
        """The most probable target of each text: a list for a list, one for one text.

        With `n_best` or `samples` above 1 each text has the list of its targets, best first.

        Args:
            options: how to decode, by name (`beams=4`), where not as the model's own method; and
                `too_long`, what happens to a text beyond its limit: "error" or "truncate".
        """
        if isinstance(texts, str | Path):
            if not self.reads_images:
                inputs.warn_if_file(texts)
            return self.generate([texts], **options)[0]
        texts = self.checked(texts)
        hypotheses = self.hypotheses(texts, **options)
        return results_of(self.spelled(texts, hypotheses), options)

    def checked(self, texts: Any) -> list[Any]:
        """The sources, each checked to be a text."""
        return inputs.checked_texts(texts)

    def hypotheses(self, texts: Sequence[str], **options: Any) -> Hypotheses:
        """The hypotheses of each text, best first; that of an empty text is empty.

        options: see `decoding_inputs`.
        """
        texts = inputs.checked_texts(texts)
        sources, method = self.decoding_inputs(texts, **options)
        with muted():
            hypotheses = batching.decode_in_order(self.module, sources, method)
        hypotheses = [
            ranked if text.strip() or self.reads_empty else [Hypothesis([], 0.0, 0.0, True)]
            for text, ranked in zip(texts, hypotheses, strict=True)
        ]
        best = [ranked[0] for ranked in hypotheses]
        batching.warn_of_length_ends([1] * len(best), best, self.module.config.max_length, method)
        self._capture(sources, best)
        return hypotheses

    def decoding_inputs(
        self,
        texts: Sequence[str],
        *,
        too_long: batching.TooLong = "error",
        source_language: str | None = None,
        target_language: str | None = None,
        **options: Any,
    ) -> tuple[TokenArray, Any]:
        """The ids of texts, and the method that decodes their targets.

        source_language, target_language: in place of the task's own, of a model with several.

        Raises:
            ConfigError: the model does not have a language, or none is named to translate into.
        """
        tokens = self._language_tokens(source_language, target_language)
        method = self._decoding_method(tokens, **options)
        texts = inputs.checked_texts(texts)
        if not tokens.target_is_known:
            self._check_target_language(method, texts)
        return batching.encode_texts(texts, self._source_encoder(tokens), too_long), method

    def spelled(self, texts: Sequence[str], hypotheses: Hypotheses) -> list[list[str]]:
        """The hypotheses of each text as texts."""
        return [self.tokenizer.decode_many(h.tokens for h in ranked) for ranked in hypotheses]

    def over_limit(self, texts: Sequence[str], **options: Any) -> dict[int, int]:
        """The indices of texts longer than the model's limit, and the tokens of each."""
        return batching.over_limit(texts, self._source_encoder(self._language_tokens()))

    def evaluate(
        self,
        pairs: Any,
        *,
        columns: Sequence[int | str] = (),
        **options: Any,
    ) -> Scores:
        """Scores of the texts generated for sources against their references.

        pairs: a table, rows in memory, or a reader.  columns: of sources and references.
        """
        rows = pairs if isinstance(pairs, RowReader) else inputs.rows_of(self, [pairs], columns)
        sources, references = fields_of(rows)
        if cut := self.over_limit(sources):
            limit = self.module.text_limit
            inputs.warn_of_truncation(len(cut), len(sources), "sources", limit)
        texts = self.generate(sources, too_long="truncate", **options)
        return Scores(self.scores(texts, references), texts)

    def rows_to_evaluate(
        self, files: Sequence[Any], columns: Sequence[Column] = (), delimiter: str | None = None
    ) -> RowReader:
        """The pairs of two files of lines, or of two columns of one table."""
        if not columns and len(files) == 1:
            columns = inputs.usual_columns(files[0], delimiter)
        return pairs_of(files, columns or (0, 1), partial(open_table, delimiter=delimiter))

    def check_test(self, recipe: PairsRecipe) -> None:
        if recipe.data.test:
            fields_of(recipe.data.records("test"))

    def test_samples(self, recipe: PairsRecipe) -> list[tuple[str, str, str]]:
        """The first rows of the test data: (source, output, reference)."""
        return self._outputs(recipe.data.records("test")) if recipe.data.test else []

    def samples(self, recipe: Any) -> Sequence[tuple[str, ...]]:
        """The first validation rows: (source, output, reference)."""
        return self._outputs(recipe.data.records("valid"))

    def attention_inputs(self, recipe: Any) -> Iterable[Any]:
        """Sources."""
        return fields_of(recipe.data.records("valid").first(SAMPLES))[0]

    def _outputs(self, rows: RowReader) -> list[tuple[str, str, str]]:
        sources, references = fields_of(rows.first(SAMPLES))
        with batching.without_length_warnings():
            outputs = self.generate(sources, too_long="truncate")
        return list(zip(sources, outputs, references, strict=True))

    def scores(self, texts: Sequence[str], references: Sequence[str]) -> list[Score]:
        """The score of each of the `metrics`."""
        metrics = self.metrics()
        for metric in metrics:
            metric.add(texts, references)
        return [metric.result() for metric in metrics]

    def _loss_batches(self, examples: EncodedExamples) -> Iterable[PairBatch]:
        pads = (self.module.config.pad,) * 2
        return sorted_batches(examples.columns, pads, max_tokens=4096)

    @torch.no_grad()
    def _total_loss(self, batches: Iterable[PairBatch]) -> tuple[float, int]:
        """The sum of -log p(target token) of all batches, in nats, and the number of tokens."""
        total, count = 0.0, 0
        with evaluating(self.module):
            for batch in batches:
                loss, tokens = text_to_text_loss(
                    self.module, batch.to(batching.device_of(self.module)), 0.0
                )
                total, count = total + float(loss), count + tokens
        return total, count

    def _capture(self, sources: TokenArray, hypotheses: Sequence[Hypothesis]) -> None:
        """One pass over sources and generated texts, where attention capture is on."""
        rows, name = range(len(sources)), self.tokenizer.label
        labels = [[name(int(i)) for i in sources[row]] for row in rows]
        self._read_again(
            sources.padded(np.arange(len(sources)), self.module.config.pad), labels, hypotheses
        )

    def _read_again(
        self,
        source: Sequences,
        source_labels: list[list[str]],
        hypotheses: Sequence[Hypothesis],
    ) -> None:
        config, name = self.module.config, self.tokenizer.for_targets.label
        # Of a text that the model's limit ended, the last token was not read, and nothing follows.
        whole = [[config.bos, *hypothesis.tokens, config.eos] for hypothesis in hypotheses]
        decoder_input = [ids[:-1][: config.max_length] for ids in whole]
        target = [ids[: len(inputs) + 1] for ids, inputs in zip(whole, decoder_input, strict=True)]
        pairs = zip(hypotheses, target, strict=True)
        target_labels = [labels_of(hypothesis, ids, name) for hypothesis, ids in pairs]
        if self.module.joins_source:  # one text, of which the last token is not read
            parts = zip(source_labels, target_labels, decoder_input, strict=True)
            capturing = label(
                target=[
                    source_part + target_part[: len(ids)] for source_part, target_part, ids in parts
                ]
            )
        else:
            capturing = label(source_labels, target_labels)
        if capturing:
            with torch.no_grad(), evaluating(self.module):
                device = batching.device_of(self.module)
                target_inputs = Sequences.of(decoder_input, config.pad)
                self.module(source.to(device), target_inputs.to(device))

    def _source_encoder(self, tokens: LanguageTokens) -> FieldEncoder:
        limits: dict[str, Any] = {"max_length": self.module.text_limit}
        return self.fields(self.tokenizer, tokens, prefix=self.source_prefix, **limits)[0]

    def _language_tokens(
        self, source: str | None = None, target: str | None = None
    ) -> LanguageTokens:
        """The tokens before and after texts in these languages; None: the task's own."""
        start = self.module.config.bos
        source, target = source or self.source_language, target or self.target_language
        return language_tokens(self.tokenizer, start, source, target)

    def _decoding_method(self, tokens: LanguageTokens, **options: Any) -> Any:
        """The decoding method for targets with these tokens."""
        if tokens.forced_first is not None:
            options["forced_bos_token_id"] = tokens.forced_first
        return decoding.with_options(self.method, **options)

    def _check_target_language(self, method: Any, texts: Sequence[str]) -> None:
        """Raise a ConfigError if neither a text nor the method names the language to generate."""
        if any(isinstance(constraint, ForcedFirst) for constraint in method.filters):
            return
        languages = languages_of(self.tokenizer)
        for text in texts:
            code = LANGUAGE_CODE.match(text)
            if text.strip() and not (code and code[1]):
                raise ConfigError(
                    f"The language to translate {text!r:.40} into is not given. "
                    f"Give `target_language`, one of: {', '.join(sorted(languages))}."
                )


def fields_of(rows: RowReader) -> tuple[list[str], list[str]]:
    """Sources and references of rows.

    Raises:
        DataError: there is no row, or a source or reference is no text.
    """
    numbered, text = list(rows.numbered()), rows.text
    sources = [text(row, "source", line) for line, row in numbered]
    return sources, [text(row, "target", line) for line, row in numbered]


def pairs_of(
    files: Sequence[Any],
    columns: Sequence[Column],
    open_: Callable[[Any, dict[str, Column]], RowReader] = open_table,
) -> RowReader:
    """Rows with the columns `source` and `target`, of two files of lines or of one table.

    Raises:
        ConfigError: there are more files, or there are not two columns.
    """
    if len(files) == 2:
        return read_parallel(source=files[0], target=files[1])
    if len(files) != 1:
        raise ConfigError(
            "A task from text to text reads two files of lines (source, target) or one table, but "
            f"is given {len(files)} files."
        )
    return open_(files[0], inputs.named_columns(columns, ("source",), "target"))


def only_file(files: Sequence[Any], part: str) -> Any:
    """The one file of "train", "valid" or "test".

    Raises:
        ConfigError: there are several, or none.
    """
    if len(files) != 1:
        raise ConfigError(f"`{part}` must be one file, but is {len(files)} files.")
    return files[0]


def source_prefix(config: Mapping[str, Any]) -> str:
    """What stands before each source, such as "summarize: ".

    That is `prefix`, or the prefix of the task in `task_specific_params` where there is one task; a
    model of several tasks gets the prefix with each text.
    """
    tasks = config.get("task_specific_params") or {}
    (section,) = tasks.values() if len(tasks) == 1 else [{}]
    prefix: str = config.get("prefix") or section.get("prefix") or ""
    return prefix
