"""The base of tasks on an encoder with a head: texts in, scores of the head out.

A concrete task defines the kind of its head, how data becomes examples, the loss of a batch, its
predictions and their metrics; the rest is here. Any encoder can be used: it defines how texts
become its input (its template) and creates the head.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard.attention.capture import listening
from regard.data import EpochSampler, RowReader, Sequences
from regard.data.batches import Losses
from regard.data.encoder_inputs import EncodedInputs, GroupedInputs, InputFormat, Texts, Truncation
from regard.data.readers import ReadReport, Record
from regard.data.sampler import BucketSampler
from regard.decoding.steps import evaluating
from regard.errors import ConfigError, DataError, RegardError, TextError, warn
from regard.metrics.score import ScoreReport
from regard.models import is_encoder
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.models.protocols import Encoder
from regard.models.wrappers import encoder
from regard.tasks import batching, inputs
from regard.tasks.embedder import EmbedsTexts, TextEncoder, batch_budget
from regard.tasks.encoder_training import AuxiliaryLM, label_fields, put, vectors_for
from regard.tasks.sections import EncoderData, Problems, RowsData, word_vector_problems
from regard.text import Tokenizer
from regard.text.templates import EncoderInput

SEPARATOR = " | "  # between the two texts of a pair in a report


@dataclass(frozen=True)
class Part:
    """Encoded examples, their targets, and a report of what was read."""

    inputs: EncodedInputs | GroupedInputs
    targets: Any
    report: ReadReport


@dataclass(frozen=True)
class Parts:
    """Training and validation data of a task, and how they are batched."""

    train: Part
    valid: Part | None
    data: RowsData
    seed: int


class EncoderTask(EmbedsTexts):
    """A model that reads texts and predicts by one head, with its tokenizer.

    prediction_type: what it predicts for a text.
    pairs: whether it was trained on pairs; None: not known.
    read_records: reads a file of examples that is no table; None: examples are rows of tables.
    format_type: makes encoder inputs of its texts.
    both_orders: see `regard.tasks.text_tasks.TextObjective`.
    aux_lm: a second objective, the prediction of the next token, where training has it.
    teacher: what it learns from beside its targets, where training has one.
    remarks: what the user should know of how the model was initialized.

    Of tasks that are trained:
    loss: from the head's scores, a batch and the targets of all examples, the sum of the batch's
        losses, and the number of its items.
    measured: the metrics on the validation data; raises NonFiniteScores.  metric_names: its keys.
    target: of a row, given its reader and its line; raises DataError.
    """

    module: EncoderWithHeads
    input_format: InputFormat
    commands: ClassVar[tuple[str, ...]] = ("predict", "embed", "evaluate", "look")
    items: ClassVar[str] = "examples"
    decodes: ClassVar[bool] = False
    read_records: ClassVar[Any] = None
    format_type: ClassVar[type[InputFormat]] = InputFormat
    teacher: Any = None
    loss: Callable[[Tensor, Any, Any], tuple[Tensor, int]]
    measured: Callable[[Part], dict[str, float]]
    metric_names: tuple[str, ...]
    target: Callable[[RowReader, Record, int], Any]

    def __init__(
        self,
        module: EncoderWithHeads,
        tokenizer: Tokenizer,
        *,
        max_length: int | None = None,
        truncation: Truncation = "longest_first",
        both_orders: bool = False,
        pairs: bool | None = None,
    ):
        self.module, self.pairs = module, pairs
        self.input_format = input_format_of(
            module, tokenizer, max_length, truncation, self.format_type
        )
        template = self.input_format.template
        self.tokenizer = self.input_format.tokenizer.with_template(template)
        self.both_orders = both_orders
        self.parts: Parts | None = None
        self.aux_lm: AuxiliaryLM | None = None
        self.remarks: list[str] = []

    @property
    def max_length(self) -> int | None:
        """The most tokens of a text."""
        return self.input_format.max_length

    @property
    def truncation(self) -> Truncation:
        """How two texts that are too long together are truncated."""
        return self.input_format.truncation

    # ---- predictions

    def is_one(self, texts: Any) -> bool:
        """Whether this is one text, one pair where the task reads pairs, or one row or object."""
        named = isinstance(texts, str | Mapping)
        if self._reads_texts:
            return named or (len(self.input_columns) > 1 and inputs.is_single(texts))
        row = isinstance(texts, tuple) and isinstance(texts[0], str)
        return named or row and not isinstance(texts[-1], str)

    @property
    def _reads_texts(self) -> bool:
        return {*self.input_columns} <= {*inputs.TEXT_NAMES}

    def checked(self, texts: Any) -> list[Any]:
        """The texts in the form in which this task encodes them.

        Raises:
            TextError: an item is not a text for this task.
            RegardError: this is not a list of texts.
        """
        return [
            inputs.text_or_pair(text, index) for index, text in enumerate(inputs.as_list(texts))
        ]

    def texts_of(self, rows: RowReader, row: Record, line: int) -> Texts:
        """What the task reads of a row, as `checked` gives it.

        Raises:
            DataError: it is not an input for this task.
        """
        if self._reads_texts:
            return inputs.texts_in(rows, row, line)
        try:
            (texts,) = self.checked([row])
        except TextError as error:
            raise error.of_row(rows.name, line) from None
        return texts

    def text_encoder(self) -> TextEncoder:
        """The encoder under the head, for vectors of texts."""
        return TextEncoder(self.encoder, self.input_format)

    # ---- scores of the head

    def completed(self, batch: Any) -> Any:
        """A batch as the encoder reads it, on its device."""
        texts = self.module.encoder.complete(batch.texts, self.tokenizer)
        return replace(batch, texts=texts).to(batching.device_of(self.module))

    @property
    def encoder(self) -> Encoder:
        """The one under the head."""
        return encoder(self.module.encoder)

    def read(self, texts: Sequences) -> Tensor:
        """What the head reads of a batch; see `EncoderWithHeads.read`."""
        return self.module.read(self.head, texts, self.encoder)

    def pooled(self, hidden: Tensor, texts: Sequences) -> Tensor:
        """What the head reads of the hidden states of a batch."""
        return self.module.pooled(self.head, hidden, texts)

    def as_read(self, texts: Sequences) -> Sequences:
        """A batch of texts as the encoder reads it: unpadded where that is faster."""
        return batching.without_padding(self.module.encoder, texts)

    def scores_of(self, pooled: Tensor, batch: Any) -> Tensor:
        """The head's scores of a batch: (B, O), or (B, T, O) of a head that reads every token.

        pooled: what the head reads of each input, as `read` gives it.
        """
        pooled = batch.sum_by_example(pooled) if self.both_orders else pooled
        scores = self.module.scores_from(self.head, pooled)
        return batch.texts.pad(scores) if scores.dim() == 3 else scores

    def passes(
        self,
        inputs: EncodedInputs | GroupedInputs,
        texts: Sequence[int] | None = None,
    ) -> Iterator[tuple[Any, Tensor]]:
        """Every batch of the inputs, and the head's scores in float32.

        texts: the index of the text of each input; None: input i is of text i.

        Raises:
            NonFiniteScores: scores of a text are infinite or NaN.
        """
        if not len(inputs):
            return

        @torch.no_grad()
        def scores_from(batch: Any) -> Tensor:
            if listening.get() is not None:
                rows = zip(batch.texts.ids.tolist(), batch.texts.lengths.tolist(), strict=True)
                tokens = [ids[:length] for ids, length in rows]
                self.encoder.label_texts(tokens, self.tokenizer.label)
            device_batch = self.completed(batch)
            texts = self.as_read(device_batch.texts)
            device_batch = replace(device_batch, texts=texts)
            return self.scores_of(self.read(texts), device_batch).float().cpu()

        concurrent = batching.passes_at_once(batching.device_of(self.module))
        budget, pad = batch_budget(self.encoder), self.input_format.pad
        batches = batching.even_batches(inputs, pad, budget, concurrent)
        with evaluating(self.module):
            all_scores = batching.computed(scores_from, batches, concurrent)
            for batch, scores in zip(batching.watched(batches), all_scores, strict=True):
                numbers = batch.numbers.tolist()
                owners = numbers if texts is None else [texts[number] for number in numbers]
                batching.check_finite(self.are_finite(scores, batch), owners)
                yield batch, scores

    def are_finite(self, scores: Tensor, batch: Any) -> Tensor:
        """(B,) bool: whether all scores of an input, (B, O) or (B, T, O), are finite."""
        finite = scores.isfinite().all(-1)
        return finite if finite.dim() == 1 else (finite | ~batch.texts.keep).all(1)

    def text_scores(self, inputs: EncodedInputs | GroupedInputs) -> Tensor:
        """The scores of a head that reads a text as a whole, (N, O), in the order of the inputs."""
        text_scores = torch.zeros(len(inputs), self.module.heads[self.head].outputs)  # type: ignore
        for batch, scores in self.passes(inputs):
            text_scores[batch.numbers] = scores
        return text_scores

    def encoder_inputs(self, texts: list[Any]) -> list[Any]:
        """Checked texts as encoder inputs, not truncated."""
        return self.input_format.encode(texts)

    def encoded(
        self, texts: Sequence[Any], too_long: batching.TooLong
    ) -> EncodedInputs | GroupedInputs:
        """The examples of a list of texts or pairs of texts.

        Raises:
            RegardError: a text is longer than the model reads and `too_long` is "error"; this is
                not a list of texts.
        """
        batching.check_too_long(too_long)
        examples = self.encoder_inputs(self.checked(texts))
        limit, long = self.input_format.max_length, self.input_format.too_long(examples)
        if long and too_long == "error":
            raise inputs.too_long_error(long[0], len(examples[long[0]]), limit)
        return self.arranged([self.truncated(item) for item in examples])

    def truncated(self, item: Any) -> Any:
        """An encoder input within the limit."""
        return self.input_format.truncate(item)

    def arranged(self, examples: Sequence[EncoderInput]) -> EncodedInputs | GroupedInputs:
        """Examples as inputs of the encoder; with `both_orders` a pair is two of them, (a, b) and
        (b, a), and what the head reads of both is added (Radford et al. 2018, section 3.3).
        """
        if not self.both_orders:
            return EncodedInputs.of(examples)
        apply = self.input_format.template.apply
        pairs = ((item, item.texts()) for item in examples)
        return GroupedInputs.of(
            [[item, apply(texts[::-1])] if len(texts) > 1 else [item] for item, texts in pairs]
        )

    def over_limit(self, texts: Sequence[Any]) -> dict[int, int]:
        """The indices of texts longer than the model's limit, and the tokens of each."""
        inputs = self.encoder_inputs(self.checked(texts))
        return {i: len(inputs[i]) for i in self.input_format.too_long(inputs)}

    def warn_if_truncated(self, texts: Sequence[Any]) -> None:
        """Warn of texts that are too long for the model."""
        if cut := self.over_limit(texts):
            limit = self.input_format.max_length
            inputs.warn_of_truncation(len(cut), len(texts), "examples", limit)

    # ---- training

    def start_from_word_vectors(self, recipe: Any) -> None:
        """See `Task`; a remark says how many words have a vector.

        Raises:
            ConfigError, DataError: as `regard.tasks.encoder_training.vectors_for`.
        """
        data = recipe.data
        if not isinstance(data, RowsData) or data.word_vectors is None:
            return
        vectors = vectors_for(data.word_vectors, self.module.encoder, self.tokenizer)
        for table in self.module.encoder.word_tables:
            put(vectors, table)
            if data.freeze_word_vectors:
                table.requires_grad_(False)
        self.remarks = [*self.remarks, f"{data.word_vectors}: {vectors}."]

    @classmethod
    def trains(cls, model: type) -> bool:
        """Whether the model gives hidden states of a whole text."""
        return is_encoder(model)

    @classmethod
    def fits(cls, model: nn.Module) -> bool:
        """Whether the model has the head."""
        return isinstance(model, EncoderWithHeads) and cls.head in model.heads

    @classmethod
    def is_for(cls, model: nn.Module, config: Mapping[str, Any]) -> bool:
        """Whether the model has the head, for a problem of this type."""
        if not cls.problem_type or not isinstance(model, EncoderWithHeads):
            return cls.fits(model)
        outputs = model.outputs().get(cls.head)
        return outputs is not None and problem_type_of(config, outputs) == cls.problem_type

    @classmethod
    def settings_in(cls, model: nn.Module, config: Mapping[str, Any]) -> dict[str, Any]:
        """The names of the outputs of the head."""
        if not cls.names_outputs or not isinstance(model, EncoderWithHeads):
            return {}
        return {"labels": output_names(config, model.outputs()[cls.head])}

    @classmethod
    def problems(cls, recipe: Any) -> Problems:
        """Options without effect, or without what they need."""
        yield from word_vector_problems(recipe)
        if recipe.data.valid is None:
            for name in ("eval_steps", "patience"):
                if getattr(recipe.training.validation, name):
                    problem = "needs validation data. Name a file or a share as `valid` in [data]"
                    yield f"training.validation.{name}", f"{problem}, or leave it out."

    @classmethod
    def prepared(
        cls, model: EncoderWithHeads, tokenizer: Tokenizer
    ) -> tuple[EncoderWithHeads, Tokenizer]:
        """A model and its tokenizer with what the task needs before it has its head."""
        return model, tokenizer

    @classmethod
    def without_data(cls, recipe: Any, model: nn.Module, tokenizer: Tokenizer) -> Any:
        """The task before its data are read, where its losses need nothing but a batch such as
        `example`; None: they need the targets of the data. For estimates.
        """
        return None

    def published(self) -> dict[str, Any]:
        """Where other libraries look for the labels and the kind of the head."""
        fields = label_fields(self.labels) if self.names_outputs else {}
        return fields | ({"problem_type": self.problem_type} if self.problem_type else {})

    def identity(self) -> dict[str, str]:
        return {} if self.teacher is None else self.teacher.identity()

    def train_batches(self) -> EpochSampler:
        """Batches without end: examples in random order where padding costs nothing, otherwise
        examples of similar lengths together.
        """
        parts = self._parts()
        unpadded = self.module.encoder.unpadded and batching.device_of(self.module).type == "cpu"
        buckets = parts.train.inputs.buckets(
            self.input_format.pad,
            batch_size=parts.data.batch_size,
            max_tokens=parts.data.max_tokens_per_batch,
            seed=parts.seed,
            by_length=not unpadded,
        )
        return BucketSampler(buckets)

    def counts(self, batch: Any) -> dict[str, int]:
        """Examples; and the tokens that the auxiliary objective predicts."""
        aux_lm = self.aux_lm
        also = {} if aux_lm is None else {"language_modeling": aux_lm.count(batch.texts)}
        return {"loss": len(batch), **also}

    def losses(self, batch: Any, carry: None = None) -> tuple[Losses, None]:
        """The loss of the head's scores; and that of the auxiliary objective."""
        device_batch = self.completed(batch)
        texts = self.as_read(device_batch.texts)
        device_batch = replace(device_batch, texts=texts)
        hidden = None if self.aux_lm is None else self.module.encoder.encode(texts)
        pooled = self.read(texts) if hidden is None else self.pooled(hidden, texts)
        scores = self.scores_of(pooled, device_batch).float()
        losses = {"loss": self.loss(scores, device_batch, self._parts().train.targets)}
        if self.aux_lm is not None and hidden is not None:
            # Lengths on the CPU are counted there, so that no device is waited for.
            on_device = batch.texts.lengths.device.type != "cpu"
            count = None if on_device else self.aux_lm.count(batch.texts)
            losses["language_modeling"] = self.aux_lm.loss(hidden, texts, count)
        return losses, None

    def validate(self) -> dict[str, float]:
        """The metrics on the validation data; empty where there is none.

        Where scores are infinite or NaN every metric is NaN, which is never the best.
        """
        valid = self._parts().valid
        if valid is None:
            return {}
        try:
            return self.measured(valid)
        except batching.NonFiniteScores:
            return dict.fromkeys(self.metric_names, math.nan)

    def rows_to_evaluate(
        self, files: Sequence[Any], columns: Sequence[int | str] = (), delimiter: str | None = None
    ) -> Any:
        """The examples of a file, or of data in memory: rows, or records where the task reads such.

        columns, delimiter: of a table.
        """
        if self.read_records is None:
            return inputs.labelled_rows(files[0], columns, delimiter, [*self.input_columns])
        no_columns(columns, delimiter)
        return self.read_records(files[0])

    def opened(self, data: Any, columns: Sequence[int | str]) -> Any:
        """The reader of what `evaluate` is given."""
        if isinstance(data, RowReader):
            return data
        return inputs.rows_of(self, [data], columns)

    def samples(self, recipe: Any) -> Sequence[tuple[str, ...]]:
        """The first validation rows, otherwise training rows: (text, prediction, target)."""
        rows = [self.sample(row) for row in recipe.data.samples()]
        predictions = self._predictions([item for item, _, _ in rows], too_long="truncate")
        return [
            (text, str(prediction), target)
            for (_, text, target), prediction in zip(rows, predictions, strict=True)
        ]

    def sample(self, row: Any) -> tuple[Any, str, str]:
        """The input in a row or a record, and how a report shows it and its target."""
        if self._reads_texts:
            texts = tuple(str(row[name] or "") for name in inputs.TEXT_NAMES if name in row)
        else:
            (texts,) = self.checked([row])
        return texts, SEPARATOR.join(texts), self.shown_target(row["label"])

    def shown_target(self, value: Any) -> str:
        """The target of a row as the report of a run shows it."""
        return str(value)

    def attention_inputs(self, recipe: Any) -> Iterable[Any]:
        """Those of the samples."""
        return [self.sample(row)[0] for row in recipe.data.samples()]

    def check_test(self, recipe: Any) -> None:
        if recipe.data.test is not None:
            self.read_to_evaluate(recipe.data.records("test"))

    def read_to_evaluate(self, rows: Any) -> Any:
        """What `evaluate` scores of a reader's examples: records, or the texts of rows and their
        targets (N, ...).

        Raises:
            DataError: an example cannot be read, or its target is not valid.
        """
        if self.read_records is not None:
            return list(rows)
        numbered = list(rows.numbered())
        texts = [self.texts_of(rows, row, line) for line, row in numbered]
        return texts, torch.tensor([self.target(rows, row, line) for line, row in numbered])

    def notes(self) -> list[str]:
        """Which examples of the data were left out or truncated, and remarks on the model."""
        if self.parts is None:
            return self.remarks
        parts = {"training data": self.parts.train, "validation data": self.parts.valid}
        reports = {name: part.report for name, part in parts.items() if part is not None}
        events = [f"{part}: {report}" for part, report in reports.items() if report.events]
        return [*self.remarks, *events]

    def _parts(self) -> Parts:
        if self.parts is None:
            raise RegardError("This model was loaded to be used: it has no data to train on.")
        return self.parts


def output_names(config: Mapping[str, Any], outputs: int) -> list[str]:
    """The names of labels in the order of the head's outputs; LABEL_0 and so on without names.

    A name that several labels have gets the number of the label behind it, with a warning.

    Raises:
        ConfigError: see `label_names`.
    """
    from regard.checkpoints.formats.config_table import label_names

    names = label_names(config, outputs)
    if not names:
        return [f"LABEL_{i}" for i in range(outputs)]
    labels = list(names.values())
    repeated = sorted({label for label in labels if labels.count(label) > 1})
    if repeated:
        warn(
            f"config.json: `id2label` has several labels {', '.join(repeated)}. They get their "
            "numbers behind them.",
        )
    return [f"{name} ({i})" if name in repeated else name for i, name in names.items()]


def problem_type_of(config: Mapping[str, Any], outputs: int) -> str:
    """What a head for classes or a number is for: `problem_type`, or what its outputs say.

    Raises:
        ConfigError: it has not the outputs for it.
    """
    problem = config.get("problem_type")
    if problem == "multi_label_classification":
        return problem
    numbers = "regression" if outputs == 1 else "single_label_classification"
    if problem not in (None, numbers):
        raise ConfigError(
            f"config.json: `problem_type` must be {numbers} or multi_label_classification for a "
            f"head of {outputs} outputs, but is {problem!r}."
        )
    return numbers


def report_by_label(task: EncoderTask, rows: Any) -> ScoreReport:
    """Scores of each label, or of each type of entities; rows as of `evaluate`."""
    report = task.evaluate(rows).report
    if report is None:  # of tags that mark no entities
        task._not_supported("classification_report")
    return report


def input_format_of(
    model: EncoderWithHeads,
    tokenizer: Tokenizer,
    max_length: int | None = None,
    truncation: Truncation = "longest_first",
    kind: type[InputFormat] = InputFormat,
) -> InputFormat:
    """How texts become the input of a model: by the template of the tokenizer's file, otherwise by
    the model's own; in one segment where the model does not distinguish segments.

    max_length: None: that of the tokenizer's file. The limit of the model always applies.
    """
    length = tokenizer.max_length if max_length is None else max_length
    limits = [limit for limit in (length, model.encoder.text_limit) if limit is not None]
    tokenizer = model.encoder.input_tokenizer(tokenizer)
    template = tokenizer.template or model.encoder.template(tokenizer)
    if template.segment_count > model.encoder.segment_types:
        template = template.unsegmented()
    limit = min(limits, default=None)
    return kind(tokenizer, template, limit, model.config.pad, truncation)


def no_columns(columns: Sequence[Any], delimiter: str | None = None) -> None:
    """Check that neither columns nor a delimiter are named for a file that is not a table.

    Raises:
        ConfigError: there are some.
    """
    if columns or delimiter:
        name = "columns" if columns else "delimiter"
        raise ConfigError(f"`{name}` would be without effect: records go by name. Leave it out.")


def kept_examples(
    counts: Sequence[int],
    limit: int | None,
    lines: Sequence[int],
    data: EncoderData,
    report: ReadReport,
) -> list[int]:
    """The indices of the examples that are kept, as [data] says of long ones, which are reported.

    counts: the tokens of each.  limit: the most that the model reads.

    Raises:
        DataError: one is too long and that is an error, or none is left.
    """
    indices = []
    for i, (count, line) in enumerate(zip(counts, lines, strict=True)):
        long = limit is not None and count > limit
        if long and data.too_long == "error":
            problem = f"{report.unit} {line} has {count} tokens, more than {limit}."
            hint = "Raise max_length if the model allows, or choose too_long = 'truncate'."
            raise DataError(report.files[0], None, problem, hint)
        if long:
            done = "example left out" if data.too_long == "skip" else "truncated"
            report.note(f"longer than {limit} tokens, {done}", line)
        if not long or data.too_long == "truncate":
            indices.append(i)
    report.kept = len({lines[i] for i in indices})
    if not indices:
        raise DataError(report.files[0], None, f"no example is left. {report}.")
    return indices
