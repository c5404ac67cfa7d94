"""The class of a text or of a pair of texts, by name; or a number for it, as in STS-B.

Labels have names from the file to the prediction. Their order is that of the model's own head where
that head is kept, otherwise alphabetical. Predictions of one label or one number are scored by the
metrics that a recipe names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, Self, Unpack

import numpy as np
import torch
from pydantic import Field, field_validator
from torch import Tensor, nn
from torch.nn import functional as F

from regard.data import RowReader
from regard.data.batches import moved
from regard.data.datasets.glue import read_glue, read_sentiment_trees
from regard.data.readers import Record
from regard.data.splits import stratified_folds, stratified_split
from regard.errors import ConfigError, DataError
from regard.metrics import F1, METRICS, Metric, Score, Scores, metric_class
from regard.metrics.labels import GLUE, glue_metrics
from regard.metrics.score import ClassReport
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.recipe import Options
from regard.suggest import nearest
from regard.tasks import encoder_training, text_tasks
from regard.tasks.batching import TooLong, device_of
from regard.tasks.encoding import EncoderTask, Part, report_by_label
from regard.tasks.inputs import TEXT_NAMES, named_columns
from regard.tasks.sections import TABLE_OPTIONS, Problems, differing
from regard.tasks.task import PAIR, Prediction, Predicts, TextOrPair
from regard.text import Tokenizer

SINGLE_TEXT = ("cola", "sst2")  # the other tasks of GLUE have pairs


GLUE_FILES = {"train": "train", "valid": "dev"}


class LabelledData(text_tasks.TextsData):
    """[data]: tables of inputs and their label.

    input_names: of the columns that make an input, in rows.
    """

    input_names: ClassVar[tuple[str, ...]] = TEXT_NAMES

    stratified: bool = False
    """Where `valid` is a share or a fold: every label has this share of its rows in the validation
    data."""

    def read(self, source: Any, part: str) -> RowReader:
        """The rows of a file: what makes an input, then the target."""
        return self.rows(source, part, named_columns(self.columns, self.input_names))

    def split(self, examples: RowReader) -> np.ndarray:
        """Which of the training rows are validation data, (N,) bool."""
        if self.stratified:
            names = [examples.text(row, "label", line) for line, row in examples.numbered()]
            return self.split_by(names, stratified_split, stratified_folds)
        return super().split(examples)


class OneTargetData(LabelledData):
    """[data]: tables of one text or two and their label, or the files of a task of GLUE."""

    glue: str = ""
    """A task of GLUE (`regard.metrics.labels`): `train` and the others are then its files, or its
    folder."""
    test_part: Literal["test", "dev"] = "test"
    """What of a folder of GLUE is scored at the end: most of its tests hide their labels."""
    trees: Literal["", "sentences", "phrases"] = ""
    """The files are trees with a label at every node, such as those of the Stanford Sentiment
    Treebank: `sentences` reads them alone, `phrases` also trains on every phrase inside them."""

    @field_validator("columns")
    @classmethod
    def _one_text_or_two(cls, columns: tuple[int | str, ...]) -> tuple[int | str, ...]:
        if len(columns) not in (2, 3):
            raise ValueError(
                f"must name one text or two, and then the label, but names {len(columns)} columns"
            )
        return columns

    @field_validator("glue")
    @classmethod
    def _known(cls, name: str) -> str:
        if name and name not in GLUE:
            parts = [known for known in GLUE if known.startswith(f"{name}-")]
            hint = f"Give {' or '.join(parts)}." if parts else nearest(name, GLUE)
            raise ValueError(f"is {name!r}, which is no task of GLUE. {hint}")
        return name

    @property
    def pairs(self) -> bool | None:
        """Whether the examples are pairs of texts."""
        return self.glue not in ("", *SINGLE_TEXT) or super().pairs

    def with_named_columns(self) -> Self:
        return self if self.glue or self.trees else super().with_named_columns()

    def rows(self, path: Any, part: str, columns: Mapping[str, int | str]) -> RowReader:
        """These columns of a file, or the examples of a file of GLUE, or of trees."""
        if self.trees:
            return read_sentiment_trees(path, phrases=self.trees == "phrases" and part == "train")
        if not self.glue:
            return super().rows(path, part, columns)
        task, _, half = self.glue.partition("-")  # MNLI is validated on one of two halves
        name = self.test_part if part == "test" else GLUE_FILES[part]
        name += f"_{half}" if half and part != "train" else ""
        return read_glue(task, path, name if path.is_dir() else "")

    def files_of_examples(self) -> list[str]:
        """The files of all parts."""
        if not self.glue:
            return super().files_of_examples()
        readers = [self.read(getattr(self, part), part) for part in self.parts()]
        return [name for rows in readers for name in rows.files]


class MetricsSection(Options):
    """[evaluation]"""

    metrics: tuple[str, ...] = ()
    """Names of metrics, the goal first; without any those of the task of GLUE, or accuracy, or for
    numbers both correlations."""


class OneTargetRecipe(text_tasks.TextRecipe):
    """A recipe's sections besides [model] and [training]."""

    data: LabelledData
    evaluation: MetricsSection = MetricsSection()
    teacher: encoder_training.ScoresTeacherSection | None = None


def scored_problems(recipe: Any, metrics: TextMetrics) -> Problems:
    """As `text_problems`, of a recipe with [evaluation].

    metrics: those that apply to the task.
    """
    yield from text_tasks.text_problems(recipe)
    data = recipe.data
    if not data.splits_train:
        yield from differing(data, "data", ("stratified",), text_tasks.OF_A_SHARE)
    if data.stratified and data.group is not None:
        yield "data.group", "cannot be combined with `stratified`. Leave one of them out."
    if data.valid is None and data.test is None:
        why = "is of `valid` or `test` in [data]"
        yield from differing(recipe.evaluation, "evaluation", ("metrics",), why)
    for name in recipe.evaluation.metrics:
        if name not in metrics.allowed:
            hint = nearest(name, metrics.allowed)
            problem = f"names {name!r}, which does not score {metrics.task}. {hint}"
            yield "evaluation.metrics", problem


def one_target_problems(recipe: Any, metrics: TextMetrics) -> Problems:
    """As `scored_problems`, of a recipe for one label or one number of texts."""
    yield from scored_problems(recipe, metrics)
    data = recipe.data
    tables = "is of tables, and `{}` says what is read"
    without_effect = [
        (data.glue, (*TABLE_OPTIONS, "group"), tables.format("glue")),
        (data.trees, (*TABLE_OPTIONS, "group", "columns", "glue"), tables.format("trees")),
        (not data.glue or data.test is None, ("test_part",), "is of `test`, a folder of GLUE"),
    ]
    for applies, names, why in without_effect:
        if applies:
            yield from differing(data, "data", names, why)
    if data.glue and (wrong := metrics.glue_problem(data.glue)):
        yield "data.glue", f"cannot be learned: {wrong}"
    if data.trees == "phrases" and data.splits_train:
        problem = "would have phrases of the sentences that are trained on"
        yield "data.valid", f"{problem}. Name a file of trees, or set `trees` to sentences."


def soft_targets(
    section: encoder_training.ScoresTeacherSection, task: EncoderTask
) -> encoder_training.SoftTargets:
    """The scores of a recipe's teacher for the training examples of a task, (N, O) in the order of
    its own labels.

    Raises:
        ConfigError: the teacher has no such head, lacks a label, or has another tokenizer.
    """
    teacher = encoder_training.Teacher.read(section, task.module)
    teacher.check_head(task.head, f"Fine-tune it for {task.name} first.")
    labels = teacher.model.labels
    if missing := [label for label in task.labels if label not in labels]:
        raise ConfigError(
            f"[teacher] The teacher knows the labels {', '.join(labels)}, but not "
            f"{', '.join(missing)}."
        )
    teacher.check_vocabulary(task.tokenizer)
    inputs: Any = task._parts().train.inputs
    if device_of(task.module).type == "meta":  # nothing is computed there
        scores = torch.zeros(len(inputs), teacher.model.outputs()[task.head])
    else:
        options: Any = task.settings() | ({"labels": labels} if task.labels else {})
        scores = type(task)(teacher.model, teacher.tokenizer, **options).text_scores(inputs)
    order = [labels.index(label) for label in task.labels] or [0]
    return encoder_training.SoftTargets(scores[:, order], section, teacher)


@dataclass(frozen=True)
class TextMetrics:
    """The metrics that score a task on texts.

    task: its name.  allowed: the metrics that apply to it, by name.  default: those used where
        neither `names` nor `glue` chooses.  glue: a task of GLUE, or "".  labels: of a classifier.
    """

    task: str
    allowed: tuple[str, ...]
    default: tuple[str, ...]
    glue: str = ""
    names: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()

    def glue_problem(self, glue: str) -> str:
        """Why a task of GLUE is not one of this task; "" where it is."""
        key = key_of(glue_metrics(glue)[0])
        if key in self.allowed:
            return ""
        other = "regression" if self.task == "classification" else "classification"
        return f'{glue} is scored by {key}, which is not of {self.task}: say task = "{other}".'

    def new(self) -> list[Metric]:
        """New metrics, the goal first; `f1` is that of the last of two labels, the positive one.

        Raises:
            ConfigError: `f1` is asked for, but there are not two labels.
        """
        if self.glue and not self.names:
            return glue_metrics(self.glue)
        names = self.names or self.default
        if "f1" in names and len(self.labels) != 2:
            raise ConfigError(
                f"[evaluation] `f1` is of the positive one of two labels, but there are "
                f"{len(self.labels)}. Choose macro-f1, the mean over all of them."
            )
        return [
            F1(self.labels[-1], labels=self.labels) if name == "f1" else metric_class(name)()
            for name in names
        ]

    def keys(self) -> tuple[str, ...]:
        """The names of the metrics, the goal first."""
        return tuple(map(key_of, self.new()))

    def scores(self, predicted: Sequence[Any], targets: Sequence[Any]) -> list[Score]:
        """The scores of predictions against targets, labels by name or numbers."""
        metrics = self.new()
        for metric in metrics:
            metric.add(predicted, targets)
        return [metric.result() for metric in metrics]

    def values(self, predicted: Sequence[Any], targets: Sequence[Any]) -> dict[str, float]:
        """The values of the scores by the names of the metrics."""
        scores = self.scores(predicted, targets)
        return {key: score.value for key, score in zip(self.keys(), scores, strict=True)}


def key_of(metric: Metric) -> str:
    """The name of a metric in recipes and records."""
    return next(name for name in METRICS if metric_class(name) is type(metric))


CLASS_METRICS = TextMetrics(
    "classification", allowed=("accuracy", "f1", "macro-f1", "matthews"), default=("accuracy",)
)

FEWEST_TO_REMARK = 20  # examples; of fewer, many labels may well have one each


class ClassificationObjective(text_tasks.TextObjective):
    """[objective]"""

    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """This share of the target's probability is spread over all labels or tokens."""
    class_weights: Literal["", "balanced"] | dict[str, Annotated[float, Field(ge=0)]] = ""
    """Weights of the labels in the training loss: "balanced", the inverse of their frequency, or by
    name, 1 for others. They are scaled so that their mean over the training examples is 1."""


class ClassificationRecipe(OneTargetRecipe):
    """A recipe's sections besides [model] and [training]."""

    data: OneTargetData
    objective: ClassificationObjective = ClassificationObjective()


@dataclass(frozen=True)
class LabelPrediction(Prediction):
    """The most probable label, and the probability of each label."""

    label: str
    probabilities: dict[str, float]


class TextClassifier(EncoderTask):
    """One of several classes for a text, or for a pair.

    labels: in the order of the head's scores.
    glue, metrics: see `OneTargetData` and `MetricsSection`.
    """

    name = "classification"
    head = "classes"
    names_outputs = True
    problem_type = "single_label_classification"
    pipeline = "text-classification"
    prediction_type = LabelPrediction
    predict: Predicts[TextOrPair, str, LabelPrediction]
    input_columns = PAIR
    Recipe: ClassVar[type[OneTargetRecipe]] = ClassificationRecipe
    scoring = CLASS_METRICS
    class_weights: Tensor | None  # (O,)

    def __init__(
        self,
        module: EncoderWithHeads,
        tokenizer: Tokenizer,
        *,
        labels: Sequence[str],
        glue: str = "",
        metrics: Sequence[str] = (),
        **options: Unpack[text_tasks.TextOptions],
    ):
        super().__init__(module, tokenizer, **options)
        self.labels = tuple(labels)
        self._index = {label: i for i, label in enumerate(self.labels)}
        self.glue, self.metrics = glue, tuple(metrics)
        self.scoring = replace(self.scoring, glue=glue, names=self.metrics, labels=self.labels)
        self.metric_names = (*self.scoring.keys(), "loss")
        self.goal = (self.metric_names[0], "max")
        # in training alone
        self.label_smoothing, self.class_weights = 0.0, None

    @classmethod
    def fits(cls, model: nn.Module) -> bool:
        """Whether the model has the head, with several outputs."""
        return isinstance(model, EncoderWithHeads) and model.outputs().get(cls.head, 0) > 1

    @classmethod
    def from_recipe(cls, recipe: Any, model: nn.Module, tokenizer: Tokenizer) -> Self:
        """The task with its data and a head for its labels, ready to be trained.

        Raises:
            ConfigError: the model is not an encoder, or options do not fit together.
            DataError: the data has fewer than two labels, or a label that is not known.
        """
        source, tokenizer = cls.prepared(encoder_training.headed(model), tokenizer)
        counts = label_counts(recipe)
        model, labels, remarks = encoder_training.labelled(source, cls.head, sorted(counts))
        model, tokenizer = encoder_training.transformed(model, tokenizer, source)
        task = cls(model, tokenizer, labels=labels, **cls.options_in(recipe))
        task.remarks = [*remarks, *remark_on_single_labels(counts)]
        text_tasks.add_data(task, recipe)
        objective, targets = recipe.objective, task._parts().train.targets
        task.label_smoothing = objective.label_smoothing
        task.class_weights = class_weights(objective.class_weights, task.labels, targets)
        if recipe.teacher is not None:
            task.teacher = soft_targets(recipe.teacher, task)
        return task

    @classmethod
    def problems(cls, recipe: Any) -> Problems:
        """Options without effect, or without what they need."""
        of_texts = isinstance(recipe.data, OneTargetData)
        return (one_target_problems if of_texts else scored_problems)(recipe, cls.scoring)

    def target(self, rows: RowReader, row: Record, line: int) -> int:
        """The index of the label of a row.

        Raises:
            DataError: the model has no such label.
        """
        label = rows.text(row, "label", line)
        return encoder_training.index_of_label(self._index, label, rows.name, line)

    def loss(self, scores: Tensor, batch: Any, targets: Tensor) -> tuple[Tensor, int]:
        """The sum of the cross-entropies in nats, and the number of examples; in training, mixed
        with the loss against a teacher's logits.

        scores: (B, O).  targets: (N,), of all examples.
        """
        learning = self.module.training
        weights = None if self.class_weights is None or not learning else self.class_weights
        total = F.cross_entropy(
            scores,
            text_tasks.targets_of(batch, targets, scores),
            weight=None if weights is None else moved(weights, scores.device),
            reduction="sum",
            label_smoothing=self.label_smoothing if learning else 0.0,
        )
        if self.teacher is not None and learning:
            total = self.teacher.mixed(total, scores, batch.numbers, classes=True)
        return total, len(batch)

    def measured(self, valid: Part) -> dict[str, float]:
        """The metrics on the validation data, and the cross-entropy."""
        scores = self.text_scores(valid.inputs)
        values = self.scoring.values(self._named(scores.argmax(-1)), self._named(valid.targets))
        return {**values, "loss": float(F.cross_entropy(scores, valid.targets))}

    predict_proba = text_tasks.probabilities_of_labels

    def _predictions(
        self, texts: Sequence[Any], *, too_long: TooLong = "error"
    ) -> list[LabelPrediction]:
        """The label of each text or pair, with the probabilities of all labels."""
        predictions = []
        for shares in self.text_scores(self.encoded(texts, too_long)).softmax(-1).tolist():
            probabilities = dict(zip(self.labels, shares, strict=True))
            predictions.append(
                LabelPrediction(max(probabilities, key=probabilities.__getitem__), probabilities)
            )
        return predictions

    def evaluate(self, rows: Any, *, columns: Sequence[int | str] = ()) -> Scores:
        """The metrics of the predictions for rows of one text or two and their label.

        The first score has a `ClassReport`.

        columns: of texts and label in a table, where their names do not say which they are.
        """
        scores, targets = text_tasks.scores_and_targets(self, self.opened(rows, columns))
        report = ClassReport.of(scores.softmax(-1).numpy(), targets.numpy(), self.labels)
        metric_scores = self.scoring.scores(self._named(scores.argmax(-1)), self._named(targets))
        return Scores([replace(metric_scores[0], report=report), *metric_scores[1:]])

    classification_report = report_by_label

    def _named(self, indices: Tensor) -> list[str]:
        return [self.labels[i] for i in indices.tolist()]


def class_weights(
    chosen: str | Mapping[str, float], labels: Sequence[str], targets: Tensor
) -> Tensor | None:
    """The weights (O,) of the labels, with the mean 1 over the targets (N,); None where all are 1.

    "balanced" is N / (O' n) for a label with n of the N targets, O' being the labels that occur, as
    in scikit-learn.

    Raises:
        ConfigError: a weight is of no label, or no target has a weight above 0.
    """
    if not chosen:
        return None
    counts = torch.bincount(targets, minlength=len(labels)).double()
    if isinstance(chosen, str):
        weights = torch.where(counts > 0, 1 / counts.clamp(min=1), 0.0)
    else:
        weights = text_tasks.weights_by_label("class_weights", chosen, labels).double()
    mean = (weights * counts).sum() / counts.sum()
    if not mean > 0:
        raise ConfigError("[objective] `class_weights` are 0 for every training example.")
    return (weights / mean).float()


def remark_on_single_labels(counts: Counter[str]) -> list[str]:
    """A remark where most examples have a label of their own, as where a text is read as the label.

    counts: of the training examples of each label.
    """
    single, total = sum(count == 1 for count in counts.values()), counts.total()
    if total < FEWEST_TO_REMARK or single <= total / 2:
        return []
    return [
        f"{single:,} of {total:,} examples have a label that no other has: are the columns in the "
        "order text, label?"
    ]


def label_counts(recipe: OneTargetRecipe) -> Counter[str]:
    """The labels of the training rows, and how many rows have each.

    Raises:
        DataError: there are fewer than two.
    """
    data = recipe.data
    rows = data.read(data.train, "train")  # of which `valid` may be a share
    labels = Counter[str]()
    for line, row in rows.numbered():
        label = rows.text(row, "label", line)
        if not label.strip():
            raise DataError(rows.name, line, "the label is empty.", "Name it or drop the row.")
        labels[label] += 1
    if len(labels) < 2:
        problem = f"has {len(labels)} label, {next(iter(labels))!r:.40}."
        hint = "A class is one of at least two. Is it the right column?"
        raise DataError(rows.name, None, problem, hint)
    return labels


NUMBER_METRICS = TextMetrics(
    "regression", allowed=("pearson", "spearman"), default=("pearson", "spearman")
)


@dataclass(frozen=True)
class NumberPrediction(Prediction):
    """The number of a text or of a pair."""

    value: float

    def __str__(self) -> str:
        return f"{self.value:.7g}"


class RegressionRecipe(OneTargetRecipe):
    """A recipe's sections besides [model] and [training]."""

    data: OneTargetData


class TextRegressor(EncoderTask):
    """A number for a text, or for a pair.

    glue, metrics: see `OneTargetData` and `MetricsSection`.
    activation: of the score of a cross-encoder of sentence-transformers; None: it is none.
    """

    name = "regression"
    head = "classes"
    problem_type = "regression"
    pipeline = "text-classification"
    prediction_type = NumberPrediction
    predict: Predicts[TextOrPair, float, NumberPrediction]
    input_columns = PAIR
    Recipe = RegressionRecipe

    def __init__(
        self,
        module: EncoderWithHeads,
        tokenizer: Tokenizer,
        *,
        glue: str = "",
        metrics: Sequence[str] = (),
        activation: Literal["identity", "sigmoid"] | None = None,
        **options: Unpack[text_tasks.TextOptions],
    ):
        super().__init__(module, tokenizer, **options)
        self.activation = activation
        self.glue, self.metrics = glue, tuple(metrics)
        self.scoring = replace(NUMBER_METRICS, glue=glue, names=self.metrics)
        self.metric_names = (*self.scoring.keys(), "loss")
        self.goal = (self.metric_names[0], "max")

    @classmethod
    def fits(cls, model: nn.Module) -> bool:
        """Whether the model has the head, with one output."""
        return isinstance(model, EncoderWithHeads) and model.outputs().get(cls.head) == 1

    @classmethod
    def settings_in(cls, model: nn.Module, config: Mapping[str, Any]) -> dict[str, Any]:
        """The activation of a cross-encoder."""
        activation = text_tasks.cross_encoder_activation(config)
        return {} if activation is None else {"activation": activation}

    @classmethod
    def from_recipe(cls, recipe: RegressionRecipe, model: nn.Module, tokenizer: Tokenizer) -> Self:
        """The task with its data and a head for one number, ready to be trained.

        Raises:
            ConfigError: the model is not an encoder, or options do not fit together.
            DataError: a target is not a finite number.
        """
        source = encoder_training.headed(model)
        model, tokenizer = encoder_training.transformed(
            source.with_head(cls.head, 1), tokenizer, source
        )
        task = cls(model, tokenizer, **cls.options_in(recipe))
        text_tasks.add_data(task, recipe)
        if recipe.teacher is not None:
            task.teacher = soft_targets(recipe.teacher, task)
        return task

    @classmethod
    def problems(cls, recipe: Any) -> Problems:
        """Options without effect, or without what they need."""
        return one_target_problems(recipe, NUMBER_METRICS)

    def target(self, rows: RowReader, row: Record, line: int) -> float:
        """The number of a row.

        Raises:
            DataError: it is none, or not finite in float32.
        """
        return text_tasks.number_in(row["label"], rows.name, line)

    def loss(self, scores: Tensor, batch: Any, targets: Tensor) -> tuple[Tensor, int]:
        """The sum of the squared errors, and the number of examples; in training, mixed with the
        loss against a teacher's numbers.

        scores: (B, 1).  targets: (N,), of all examples.
        """
        batch_targets = text_tasks.targets_of(batch, targets, scores)
        total = F.mse_loss(scores[:, 0], batch_targets.to(scores), reduction="sum")
        if self.teacher is not None and self.module.training:
            total = self.teacher.mixed(total, scores, batch.numbers, classes=False)
        return total, len(batch)

    def measured(self, valid: Part) -> dict[str, float]:
        """The metrics on the validation data, and the mean squared error."""
        scores = self.text_scores(valid.inputs)[:, 0]
        values = self.scoring.values(scores.tolist(), valid.targets.tolist())
        return {**values, "loss": float(F.mse_loss(scores, valid.targets.to(scores)))}

    def _predictions(
        self, texts: Sequence[Any], *, too_long: TooLong = "error"
    ) -> list[NumberPrediction]:
        """The number of each text or pair."""
        scores = self.text_scores(self.encoded(texts, too_long))
        return [NumberPrediction(value) for value in self._numbers(scores)]

    def _numbers(self, scores: Tensor) -> list[float]:
        """The numbers that the head's scores (N, 1) stand for."""
        numbers = scores[:, 0].sigmoid() if self.activation == "sigmoid" else scores[:, 0]
        return numbers.tolist()

    def evaluate(self, rows: Any, *, columns: Sequence[int | str] = ()) -> Scores:
        """The metrics of the predictions for rows of one text or two and their number.

        columns: of texts and number in a table, where their names do not say which they are.
        """
        scores, targets = text_tasks.scores_and_targets(self, self.opened(rows, columns))
        return Scores(self.scoring.scores(self._numbers(scores), targets.tolist()))

    def published(self) -> dict[str, Any]:
        """The fields of config.json in which other libraries look for the kind of the head."""
        labels = self.module.labels[:1] or ("LABEL_0",)
        fields = encoder_training.label_fields(labels) | super().published()
        if self.activation is not None:
            fields["sentence_transformers"] = {
                "activation_fn": text_tasks.ACTIVATIONS[self.activation]
            }
        return fields
