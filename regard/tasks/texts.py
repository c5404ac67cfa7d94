"""Texts and pairs of texts with targets: what classification and regression share.

Tables become encoded examples, pairs are read in one order or in both, and predictions of one label
or one number are scored by the metrics that a recipe names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, TypedDict

import numpy as np
import torch
from pydantic import Field, field_validator
from torch import Tensor

from regard.data import RowReader, read
from regard.data.batches import moved
from regard.data.datasets.glue import GlueReader, read_glue, read_sentiment_trees
from regard.data.encoder_inputs import GroupBatch, InputBatch, Texts, Truncation
from regard.data.in_memory import column_names, infer_columns
from regard.data.readers import columns_in_header, without_header
from regard.data.splits import Fold, group_folds, group_split, stratified_folds, stratified_split
from regard.data.token_arrays import ReadReport
from regard.errors import ConfigError, DataError
from regard.metrics import F1, METRICS, Metric, Score, metric_class
from regard.metrics.labels import GLUE, glue_metrics
from regard.recipe import Options
from regard.suggest import nearest
from regard.tasks.batching import TooLong, device_of
from regard.tasks.distillation import ScoresTeacherSection, SoftTargets, Teacher
from regard.tasks.encoder_training import AuxiliaryLM
from regard.tasks.encoding import (
    BothOrders,
    EncoderTask,
    Part,
    Parts,
    kept_examples,
    label_fields,
)
from regard.tasks.sections import TABLE_OPTIONS, EncoderData, EncoderRecipe, TableOptions, differing

SINGLE_TEXT = ("cola", "sst2")  # the other tasks of GLUE have pairs
LARGEST_TARGET = torch.finfo(torch.float32).max
GLUE_FILES = {"train": "train", "valid": "dev"}

Target = int | float | list[float]
ReadTarget = Callable[[str, str, int], Target]  # the last field of a row, its file and its line


# ------------------------------------------------------------------------------------- recipes


class TextsData(TableOptions, EncoderData):
    """[data]: tables of one text or two, and their targets."""

    columns: tuple[int | str, ...] = (0, 1)
    """One text or two, and then the label: by number from 0, or by name from a header. Without it,
    they are those with usual names in the header."""
    group: int | str | None = None
    """Where `valid` is a share or a fold: the column of what must not be on both sides, such as an
    author."""
    truncation: Truncation = "longest_first"
    """How two texts that are too long together are truncated: as `transformers` does by default, or
    as BERT's own programs do ("bert")."""

    @property
    def pairs(self) -> bool:
        """Whether the examples are pairs of texts."""
        return len(self.columns) == 3

    def with_named_columns(self) -> Self:
        if "columns" in self.model_fields_set or self.header is False:
            return self
        columns = columns_in_header(self.train, self.format, self.delimiter)
        return self.model_copy(update={"columns": columns}) if columns else self

    def rows(self, path: Any, part: str, columns: Sequence[int | str]) -> RowReader:
        """These columns of a file."""
        reader = self.table(path, columns)
        # A single column is that of `group`.
        return without_header(reader) if len(columns) > 1 else reader

    def texts(self) -> Iterator[str]:
        """The training texts, from which a tokenizer learns."""
        return (text for row in self.records("train") for text in row[:-1])

    def split(self, examples: RowReader) -> np.ndarray:
        """Which of the training rows are validation data, (N,) bool."""
        if self.group is not None:
            rows = self.rows(self.train, "train", (self.group,))
            return self.split_by([row[0] for row in rows], group_split, group_folds)
        return super().split(examples)

    def split_by(
        self,
        names: Sequence[str],
        by_share: Callable[[Sequence[str], float, int], np.ndarray],
        by_folds: Callable[[Sequence[str], int, int], np.ndarray],
    ) -> np.ndarray:
        """Which rows are validation data, by their classes or groups, (N,) bool.

        names: of the class or the group of each row.
        """
        if isinstance(self.valid, Fold):
            return self.valid.mask(by_folds(names, self.valid.of, self.split_seed))
        share: Any = self.valid
        return by_share(names, share, self.split_seed)


class OneTargetData(TextsData):
    """[data]: tables of one text or two and their label, or the files of a task of GLUE."""

    stratified: bool = False
    """Where `valid` is a share or a fold: every label has this share of its rows in the validation
    data."""
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
    def pairs(self) -> bool:
        """Whether the examples are pairs of texts."""
        return self.glue not in ("", *SINGLE_TEXT) or super().pairs

    def with_named_columns(self) -> Self:
        return self if self.glue or self.trees else super().with_named_columns()

    def read(self, source: Any, part: str) -> RowReader:
        """The rows of a file: one text or two, then the target."""
        return self.rows(source, part, self.columns)

    def rows(self, path: Any, part: str, columns: Sequence[int | str]) -> RowReader:
        """These columns of a file, or the examples of a file of GLUE, or of trees."""
        if self.trees:
            return read_sentiment_trees(path, phrases=self.trees == "phrases" and part == "train")
        if not self.glue:
            return super().rows(path, part, columns)
        task, _, half = self.glue.partition("-")  # MNLI is validated on one of two halves
        name = self.test_part if part == "test" else GLUE_FILES[part]
        name += f"_{half}" if half and part != "train" else ""
        return read_glue(task, path, name if path.is_dir() else "")

    def split(self, examples: RowReader) -> np.ndarray:
        """Which of the training rows are validation data, (N,) bool."""
        if self.stratified:
            names = [row[-1] for row in examples]
            return self.split_by(names, stratified_split, stratified_folds)
        return super().split(examples)

    def files_of_examples(self) -> list[str]:
        """The files of all parts."""
        readers = [self.read(getattr(self, part), part) for part in self.parts()]
        return [name for rows in readers for name in _files(rows)]


def _files(rows: RowReader) -> list[str]:
    return list(rows.paths) if isinstance(rows, GlueReader) else [rows.file_of(0)]


class TextObjective(Options):
    """[objective]"""

    both_orders: bool = False
    """Read each pair as (a, b) and as (b, a) and add what stands before the head: for questions in
    which the order says nothing (Radford et al. 2018, section 3.3)."""
    aux_lm_weight: float = Field(default=0.0, ge=0)
    """Weight of the loss of predicting the texts themselves (lambda of equation 5, there 0.5)."""


class MetricsSection(Options):
    """[evaluation]"""

    metrics: tuple[str, ...] = ()
    """Names of metrics, the goal first; without any those of the task of GLUE, or accuracy, or for
    numbers both correlations."""


class TextRecipe(EncoderRecipe):
    """What the recipes of all tasks on texts have in common."""

    data: TextsData
    objective: TextObjective = TextObjective()


class OneTargetRecipe(TextRecipe):
    """A recipe's sections besides [model] and [training]."""

    data: OneTargetData
    evaluation: MetricsSection = MetricsSection()
    teacher: ScoresTeacherSection | None = None


class TextOptions(TypedDict, total=False):
    """The options that all tasks on texts have: see `TextsData` and `TextObjective`."""

    both_orders: bool
    max_length: int | None
    truncation: Truncation
    pairs: bool | None


def text_options(recipe: TextRecipe) -> TextOptions:
    """These options of a recipe."""
    return {
        "both_orders": recipe.objective.both_orders,
        "max_length": recipe.data.max_length,
        "truncation": recipe.data.truncation,
        "pairs": recipe.data.pairs,
    }


def one_target_options(recipe: OneTargetRecipe) -> dict[str, Any]:
    """As `text_options`, of a recipe for one label or one number."""
    chosen = {"glue": recipe.data.glue, "metrics": recipe.evaluation.metrics}
    return {**text_options(recipe), **chosen}


def text_settings(task: EncoderTask) -> TextOptions:
    """These options of a task, for the folder that holds it."""
    return {
        "both_orders": isinstance(task.order, BothOrders),
        "max_length": task.input_format.max_length,
        "truncation": task.input_format.truncation,
        "pairs": task.pairs,
    }


def text_problems(recipe: TextRecipe) -> Iterator[tuple[str, str]]:
    """Options of a recipe that have no effect or lack another option: (dotted name, problem)."""
    yield from EncoderTask.problems(recipe)
    data = recipe.data
    if not data.splits_train:
        yield from differing(data, "data", ("group",), OF_A_SHARE)
    if any(isinstance(column, str) for column in data.columns) and data.header is False:
        yield "data.header", "must not be false where `columns` are names: a header has them."


OF_A_SHARE = "is of `valid` as a share or a fold of the training data"


def one_target_problems(recipe: OneTargetRecipe, metrics: TextMetrics) -> Iterator[tuple[str, str]]:
    """As `text_problems`, of a recipe for one label or one number.

    metrics: those that apply to the task.
    """
    yield from text_problems(recipe)
    data = recipe.data
    if data.glue:
        why = "is of tables, and `glue` says what is read"
        yield from differing(data, "data", (*TABLE_OPTIONS, "group"), why)
        if wrong := metrics.glue_problem(data.glue):
            yield "data.glue", f"cannot be learned: {wrong}"
    if data.trees:
        why = "is of tables, and `trees` says what is read"
        yield from differing(data, "data", (*TABLE_OPTIONS, "group", "columns", "glue"), why)
    if data.trees == "phrases" and data.splits_train:
        problem = "would have phrases of the sentences that are trained on"
        yield "data.valid", f"{problem}. Name a file of trees, or set `trees` to sentences."
    if not (data.glue and data.test is not None):
        yield from differing(data, "data", ("test_part",), "is of `test`, a folder of GLUE")
    if not data.splits_train:
        yield from differing(data, "data", ("stratified",), OF_A_SHARE)
    if data.valid is None and data.test is None:
        why = "is of `valid` or `test` in [data]"
        yield from differing(recipe.evaluation, "evaluation", ("metrics",), why)
    if data.stratified and data.group is not None:
        yield "data.group", "cannot be combined with `stratified`. Leave one of them out."
    for name in recipe.evaluation.metrics:
        if name not in metrics.allowed:
            hint = nearest(name, metrics.allowed)
            problem = f"names {name!r}, which does not score {metrics.task}. {hint}"
            yield "evaluation.metrics", problem


# -------------------------------------------------------------------------------- examples


def add_data(task: EncoderTask, recipe: TextRecipe, target: ReadTarget) -> None:
    """Give a task the encoded data of a recipe with their targets, and its second objective.

    Raises:
        ConfigError: the model does not predict the next token, which the second objective asks for.
        DataError: a file cannot be read, or a target is not valid.
    """
    data = recipe.data
    task.aux_lm = AuxiliaryLM.of(task.module, recipe.objective.aux_lm_weight)
    train = _part(task, data.records("train"), data, target)
    valid = None if data.valid is None else _part(task, data.records("valid"), data, target)
    task.parts = Parts(train, valid, data, recipe.seed)


def _part(task: EncoderTask, rows: RowReader, data: TextsData, target: ReadTarget) -> Part:
    report, texts, targets, lines = ReadReport((rows.file_of(0),)), [], [], []
    for line, (*fields, last) in rows.numbered():
        report.read += 1
        if not any(field.strip() for field in fields):
            report.note("empty, example left out", line)
            continue
        texts.append(tuple(fields))
        targets.append(target(last, rows.file_of(0), line))
        lines.append(line)
    encoded = task.input_format.encode(texts)
    limit = task.input_format.max_length
    indices = kept_examples(list(map(len, encoded)), limit, lines, data, report)
    kept_targets = torch.tensor([targets[i] for i in indices])
    inputs = [task.input_format.truncate(encoded[i]) for i in indices]
    return Part(task.order.arrange(inputs), kept_targets, report)


def soft_targets(section: ScoresTeacherSection, task: EncoderTask) -> SoftTargets:
    """The scores of a recipe's teacher for the training examples of a task, (N, O) in the order of
    its own labels.

    Raises:
        ConfigError: the teacher has no such head, lacks a label, or has another tokenizer.
    """
    teacher = Teacher.read(section, task.module)
    if task.head not in teacher.model.heads:
        has = ", ".join(teacher.model.heads) or "none"
        raise ConfigError(
            f"[teacher] {section.path} is no model of {task.name} (its heads: {has}). Fine-tune it "
            "for this task first."
        )
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
        options: Any = text_settings(task) | ({"labels": labels} if task.labels else {})
        scores = type(task)(teacher.model, teacher.tokenizer, **options).text_scores(inputs)
    order = [labels.index(label) for label in task.labels] or [0]
    return SoftTargets(scores[:, order], section, teacher)


def scores_and_targets(task: EncoderTask, rows: Any) -> tuple[Tensor, Tensor]:
    """The head's scores (N, O) for rows as a task evaluates them, and the targets (N, ...).

    Texts that are too long are truncated, with a warning.
    """
    texts, targets = task.read_to_evaluate(rows)
    task.warn_if_truncated(texts, stacklevel=5)
    return task.text_scores(task.encoded(texts, "truncate")), targets


def probabilities_of_labels(
    task: EncoderTask, texts: Any, *, too_long: TooLong = "error"
) -> Any:  # a dict, or an array
    """The probability of each label: of one text by label, of several an array (N, labels) in the
    order of `task.labels`.
    """
    predictions = task.predict(texts, return_proba=True, too_long=too_long)
    if task.is_one(texts):
        return predictions.probabilities
    rows = [[*prediction.probabilities.values()] for prediction in predictions]
    return np.array(rows).reshape(-1, len(task.labels))


def targets_of(batch: InputBatch | GroupBatch, targets: Tensor, scores: Tensor) -> Tensor:
    """The targets (B, ...) of a batch, of all examples (N, ...), on the device of its scores."""
    return moved(targets[batch.numbers.cpu()], scores.device)


def number_in(text: str, file: str, line: int) -> float:
    """The number that a field in this line of a file holds.

    Raises:
        DataError: it holds none, or one that is not finite in float32.
    """
    try:
        number = float(text.replace("_", "no digit"))  # Python reads 1_000, no file means it
    except ValueError:
        problem = f"has {text!r:.60} where a number should be."
        raise DataError(file, line, problem) from None
    if not abs(number) <= LARGEST_TARGET:
        raise DataError(file, line, f"has {text!r:.60}, but a target must be a finite float32.")
    return number


def published_labels(labels: Sequence[str], problem_type: str) -> dict[str, Any]:
    """The fields of config.json in which other libraries look for labels and the kind of head."""
    return {**label_fields(labels), "problem_type": problem_type}


def texts_and_targets(
    rows: RowReader | Iterable[Sequence[str]], target: ReadTarget
) -> tuple[list[Texts], Tensor]:
    """The texts of rows of one text or two and a target, and their targets (N,).

    Raises:
        DataError: a row has another number of fields, or its target is not valid.
    """
    if not isinstance(rows, RowReader):
        rows = list(rows) if isinstance(rows, Iterator) else rows
        rows = read(rows, infer_columns(rows) if column_names(rows) else ())
    texts, targets = [], []
    for line, row in rows.numbered():
        if len(row) not in (2, 3):
            problem = f"has {len(row)} fields, but must have one text or two, and the target."
            raise DataError(rows.file_of(0), line, problem)
        texts.append(tuple(row[:-1]))
        targets.append(target(row[-1], rows.file_of(0), line))
    return texts, torch.tensor(targets)


# --------------------------------------------------------------------------------- metrics


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

    def settings(self) -> dict[str, Any]:
        """The options of a task that chose these metrics."""
        return {"glue": self.glue, "metrics": list(self.names)}

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
