"""The labels of a text or of a pair of texts, any number of them.

Each label is a binary decision: the head has a logit for each, and the loss is the binary
cross-entropy. Other libraries have such heads as `problem_type` multi_label_classification.

A row has its labels as a list in one column, or a column with 0 or 1 for each label. In a file of
texts the list is JSON (`["old", "warm"]`), or labels with a separator.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self, Unpack

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from regard.data import RowReader, open_table
from regard.data.batches import moved
from regard.data.in_memory import column_names, infer_text_columns, is_path
from regard.data.readers import Column, Numbered, Record
from regard.errors import ConfigError, DataError
from regard.metrics import Scores
from regard.metrics.score import MultiLabelReport, best_threshold
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.recipe import Options
from regard.tasks import encoder_training, text_tasks
from regard.tasks.batching import TooLong
from regard.tasks.encoding import EncoderTask, Part, report_by_label
from regard.tasks.inputs import LABEL, TEXT_NAMES, labelled_rows, named_columns
from regard.tasks.sections import Problems, differing
from regard.tasks.task import PAIR, Prediction, Predicts, TextOrPair
from regard.text import Tokenizer

THRESHOLD = 0.5
NEEDS_VALID = "needs validation data"
YES_OR_NO = {"1": True, "0": False, "true": True, "false": False, "1.0": True, "0.0": False}


class MultiLabelData(text_tasks.TextsData):
    """[data]: tables of one text or two and their labels: a list in one column, or a column with 0
    or 1 for each label.
    """

    separator: str = ""
    """The text between labels in a column of texts, such as ";". Lists (of JSONL, Parquet and data
    in memory) need none."""
    target_columns: tuple[int | str, ...] = ()
    """The columns of the labels, where each has its own: `columns` then names the texts alone."""

    @property
    def pairs(self) -> bool:
        """Whether the examples are pairs of texts."""
        return len(self.columns) == (2 if self.target_columns else 3)

    def read(self, source: Any, part: str) -> RowReader:
        """The rows of a file: one text or two, and the labels as a list, or as a table has them.

        Raises:
            ConfigError: `columns` does not name one text or two.
        """
        least = 1 if self.target_columns else 2
        missing = self.target_columns and "columns" not in self.model_fields_set
        if missing or len(self.columns) not in (least, least + 1):
            raise ConfigError(
                "[data] `columns` must name one text or two"
                f"{'' if self.target_columns else ', and then that of the labels'}, but "
                f"{'is missing' if missing else f'names {len(self.columns)} columns'}."
            )
        if not self.target_columns:
            return self.table(source, named_columns(self.columns))
        columns = columns_of_labels(self.columns, self.target_columns)
        return merged(self.table(source, columns), tuple(map(str, self.target_columns)))

    def with_named_columns(self) -> Self:
        return self if self.target_columns else super().with_named_columns()


def columns_of_labels(texts: Sequence[Column], labels: Sequence[Column]) -> dict[str, Column]:
    """The columns of one text or two, and one for each label, under their names in rows."""
    return dict(zip(TEXT_NAMES, texts)) | {f"label {label}": label for label in labels}  # noqa: B905


def merged(reader: RowReader, labels: Sequence[str]) -> RowReader:
    """The rows of a reader, in which the columns of labels, each 0 or 1, are a list of labels.

    Raises:
        DataError: when it is read, for a column with neither 0 nor 1.
    """

    def change(numbered: Numbered) -> Numbered:
        for line, row in numbered:
            chosen = []
            for label in labels:
                text = reader.text(row, f"label {label}", line)
                if text.strip().lower() not in YES_OR_NO:
                    problem = f"has {text!r:.60} in column {label!r}, which must be 0 or 1."
                    raise DataError(reader.name, line, problem)
                if YES_OR_NO[text.strip().lower()]:
                    chosen.append(label)
            texts = {name: row[name] for name in TEXT_NAMES if name in row}
            yield line, {**texts, LABEL: chosen}

    return reader.mapped(change)


class MultiLabelObjective(text_tasks.TextObjective):
    """[objective]"""

    pos_weight: Literal["", "balanced"] | dict[str, Annotated[float, Field(ge=0)]] = ""
    """The weight of the positive examples of each label in the training loss, as in PyTorch:
    "balanced", (examples without the label) / (examples with it); or weights by label, 1 for
    others."""


class MultiLabelSection(Options):
    """[labels]"""

    threshold: Annotated[float, Field(ge=0, le=1)] | Literal["fitted"] = THRESHOLD
    """The labels whose probability is at least this are predicted. "fitted": the threshold with the
    largest micro-F1 on the validation data."""


class MultiLabelEvaluation(Options):
    """[evaluation]"""

    goal: Literal["micro-f1", "macro-f1", "subset-accuracy"] = "micro-f1"
    """The score that selects the best weights. All of them are computed."""


class MultiLabelRecipe(text_tasks.TextRecipe):
    """A recipe's sections besides [model] and [training]."""

    data: MultiLabelData
    objective: MultiLabelObjective = MultiLabelObjective()
    labels: MultiLabelSection = MultiLabelSection()
    evaluation: MultiLabelEvaluation = MultiLabelEvaluation()


@dataclass(frozen=True)
class MultiLabelPrediction(Prediction):
    """The labels at least as probable as the threshold, and the probability of each label."""

    labels: list[str]
    probabilities: dict[str, float]

    def __str__(self) -> str:
        return ", ".join(self.labels) or "(no label)"


class MultiLabelClassifier(EncoderTask):
    """Any number of labels for a text, or for a pair.

    labels: in the order of the head's scores.  threshold: see `MultiLabelSection`.
    separator: see `MultiLabelData`; of data to evaluate.
    """

    name = "multi-label-classification"
    head = "classes"
    names_outputs = True
    problem_type = "multi_label_classification"
    pipeline = "text-classification"
    prediction_type = MultiLabelPrediction
    predict: Predicts[TextOrPair, list[str], MultiLabelPrediction]
    input_columns = PAIR
    Recipe = MultiLabelRecipe
    metric_names = ("micro-f1", "macro-f1", "subset-accuracy", "loss")
    pos_weight: Tensor | None  # (O,), in training alone

    def __init__(
        self,
        module: EncoderWithHeads,
        tokenizer: Tokenizer,
        *,
        labels: Sequence[str],
        threshold: float = THRESHOLD,
        separator: str = "",
        **options: Unpack[text_tasks.TextOptions],
    ):
        super().__init__(module, tokenizer, **options)
        self.labels = tuple(labels)
        self._index = {label: i for i, label in enumerate(self.labels)}
        self.threshold, self.separator = threshold, separator
        self.goal = (self.metric_names[0], "max")
        self.pos_weight, self._fitted = None, encoder_training.FittedThreshold()

    @classmethod
    def from_recipe(cls, recipe: MultiLabelRecipe, model: nn.Module, tokenizer: Tokenizer) -> Self:
        """The task with its data and a head for its labels, ready to be trained.

        Raises:
            ConfigError: the model is not an encoder, or options do not fit together.
            DataError: no row has a label, or a row has one that is not known.
        """
        source = encoder_training.headed(model)
        model, labels, remarks = encoder_training.labelled(source, cls.head, labels_of(recipe.data))
        model, tokenizer = encoder_training.transformed(model, tokenizer, source)
        task = cls(model, tokenizer, labels=labels, **cls.options_in(recipe))
        task.remarks = remarks
        task.goal = (recipe.evaluation.goal, "max")
        text_tasks.add_data(task, recipe)
        targets = task._parts().train.targets
        task.pos_weight = pos_weight(recipe.objective.pos_weight, task.labels, targets)
        if recipe.labels.threshold == "fitted":
            task._fitted.used = True
        else:
            task.threshold = recipe.labels.threshold
        return task

    @classmethod
    def problems(cls, recipe: Any) -> Problems:
        """Options without effect, or without what they need."""
        yield from text_tasks.text_problems(recipe)
        data = recipe.data
        if len({*data.target_columns}) < len(data.target_columns):
            yield "data.target_columns", "must name each column once."
        if data.target_columns:
            why = "is of labels in one column, but `target_columns` has a column for each"
            yield from differing(data, "data", ("separator",), why)
        if data.valid is None:
            yield from differing(recipe.evaluation, "evaluation", ("goal",), NEEDS_VALID)
        if recipe.labels.threshold == "fitted" and data.valid is None:
            yield "labels.threshold", "needs validation data. Name a file or a share as `valid`."

    def target(self, rows: RowReader, row: Record, line: int) -> list[float]:
        """For each label 1 if the row has it, otherwise 0.

        Raises:
            DataError: the model has no such label, or the column holds no labels.
        """
        indicators = [0.0] * len(self.labels)
        for label in labels_of_row(rows, row, line, self.separator):
            indicators[encoder_training.index_of_label(self._index, label, rows.name, line)] = 1.0
        return indicators

    def shown_target(self, value: Any) -> str:
        """The labels."""
        return ", ".join(labels_in(value, self.separator, "", 0)) or "(no label)"

    def loss(self, scores: Tensor, batch: Any, targets: Tensor) -> tuple[Tensor, int]:
        """The sum over examples of the mean of their labels' binary cross-entropies in nats, and
        the number of examples.

        scores: (B, O).  targets: (N, O), of all examples.
        """
        weights = self.pos_weight if self.module.training else None
        total = F.binary_cross_entropy_with_logits(
            scores,
            text_tasks.targets_of(batch, targets, scores),
            pos_weight=None if weights is None else moved(weights, scores.device),
            reduction="sum",
        )
        return total / len(self.labels), len(batch)

    def measured(self, valid: Part) -> dict[str, float]:
        """F1 and subset accuracy on the validation data, and the binary cross-entropy."""
        scores = self.text_scores(valid.inputs)
        if self._fitted.used:
            threshold = best_threshold(scores.sigmoid().numpy(), _as_bool(valid.targets))
            self.threshold = self._fitted.keep(self.module.heads[self.head], threshold)
        loss = float(F.binary_cross_entropy_with_logits(scores, valid.targets))
        return {**self._report(scores, valid.targets).values(), "loss": loss}

    def _report(self, scores: Tensor, targets: Tensor) -> MultiLabelReport:
        shares = scores.sigmoid().numpy()
        return MultiLabelReport.of(shares, _as_bool(targets), self.labels, self.threshold)

    predict_proba = text_tasks.probabilities_of_labels

    def _predictions(
        self, texts: Sequence[Any], *, too_long: TooLong = "error"
    ) -> list[MultiLabelPrediction]:
        """The labels of each text or pair, with the probabilities of all labels."""
        predictions = []
        for shares in self.text_scores(self.encoded(texts, too_long)).sigmoid().tolist():
            probabilities = dict(zip(self.labels, shares, strict=True))
            likely = [label for label, share in probabilities.items() if share >= self.threshold]
            predictions.append(MultiLabelPrediction(likely, probabilities))
        return predictions

    def evaluate(self, rows: Any, *, columns: Sequence[int | str] = ()) -> Scores:
        """Micro-F1, macro-F1 and subset accuracy; the first score has a `MultiLabelReport`.

        rows: of one text or two and their labels, as a list or with the separator of the training
            data; or a table with a column of 0 and 1 for each label, under its name.
        columns: of texts and labels in a table, where their names do not say which they are.
        """
        report = self._report(*text_tasks.scores_and_targets(self, self.opened(rows, columns)))
        return Scores(report.scores())

    classification_report = report_by_label

    def rows_to_evaluate(
        self, files: Sequence[Any], columns: Sequence[Column] = (), delimiter: str | None = None
    ) -> RowReader:
        """The examples of a file, or of data in memory: texts and a list of labels, or texts and a
        column for each label.

        Raises:
            ConfigError: columns of labels are named, but not of all, or none of a text.
        """
        source = files[0]
        in_memory = not columns and not is_path(source)
        if in_memory and {*self.labels} <= {*column_names(source)}:
            columns = (*infer_text_columns(source, excluded=self.labels), *self.labels)
        # Labels may be numbers by chance ("0", "1"), as columns are.
        column_of = {str(column): column for column in columns if str(column) in self.labels}
        texts = [column for column in columns if str(column) not in self.labels]
        if texts and len(column_of) == len(self.labels):
            named = columns_of_labels(texts, [column_of[label] for label in self.labels])
            return merged(open_table(source, named, delimiter=delimiter), self.labels)
        if any(isinstance(column, str) for column in column_of.values()):
            raise ConfigError(
                f"`columns` must name texts, and the labels all or none, {', '.join(self.labels)}, "
                f"but names {', '.join(map(str, columns))}."
            )
        return labelled_rows(source, columns, delimiter)

    def settings(self) -> dict[str, Any]:
        """What `load` must know beside model and tokenizer."""
        if self._fitted.used:
            self.threshold = self._fitted.fit(self.module.heads[self.head], self.validate)
        return super().settings()


def labels_of(data: MultiLabelData) -> list[str]:
    """The labels in the order of their columns, or those of the training rows, sorted.

    Raises:
        DataError: no row has a label.
    """
    rows = data.read(data.train, "train")  # of which `valid` may be a share
    labels: set[str] = set()
    for line, row in rows.numbered():
        labels.update(labels_of_row(rows, row, line, data.separator))
    if not labels:
        where = ", ".join(map(str, data.target_columns or data.columns[-1:]))
        problem = f"has no row with a label (column {where})."
        raise DataError(rows.name, None, problem, "Is it the right column?")
    return list(map(str, data.target_columns)) or sorted(labels)


def labels_of_row(rows: RowReader, row: Record, line: int, separator: str) -> list[str]:
    """The labels of a row.

    Raises:
        DataError: its column holds none, or names one twice.
    """
    value = row[LABEL]
    field = value if isinstance(value, list) else rows.text(row, LABEL, line)
    return labels_in(field, separator, rows.name, line)


def labels_in(field: Any, separator: str, file: str, line: int) -> list[str]:
    """The labels in a field: a list, also in JSON, or texts between separators; none in an empty
    field.

    Raises:
        DataError: it holds neither, or names a label twice.
    """
    items: list[Any] | None = None
    if isinstance(field, list):
        items = field
    elif (text := (field or "").strip()).startswith("[") and text.endswith("]"):
        with suppress(ValueError):
            items = json.loads(text)
    elif separator or not text:
        parts = text.split(separator) if separator else []
        items = [part.strip() for part in parts if part.strip()]
    labels = list(map(str, items or ()))
    if (
        items is None
        or len({*labels}) < len(labels)
        or not all(map(str.strip, labels))
        or any(isinstance(item, bool) or not isinstance(item, str | int | float) for item in items)
    ):
        problem = f"has {field!r:.60} where a list of labels, each once, should be."
        hint = (
            'Write ["a", "b"], or say what separates labels that are text, such as separator = ";" '
            "in [data]. For 0 or 1 for each label see `target_columns`."
        )
        raise DataError(file, line, problem, hint)
    return labels


def pos_weight(
    chosen: str | Mapping[str, float], labels: Sequence[str], targets: Tensor
) -> Tensor | None:
    """The weights (O,) of the positive examples of the labels; None where all are 1.

    "balanced" is (N - n) / n for a label that n of the N examples have, targets being (N, O), and 1
    for one that none has.

    Raises:
        ConfigError: a weight has a name that is not a label.
    """
    if not chosen:
        return None
    if isinstance(chosen, str):
        counts = targets.double().sum(0)
        return torch.where(counts > 0, (len(targets) - counts) / counts.clamp(min=1), 1.0).float()
    return text_tasks.weights_by_label("pos_weight", chosen, labels)


def _as_bool(targets: Tensor) -> np.ndarray:
    return targets.bool().numpy()
