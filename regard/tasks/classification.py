"""The class of a text or of a pair of texts, by name; and a number for them.

Labels go by name from the file to the prediction: their order is that of the model where it has
them already, else the alphabet's.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.data import Rows, read
from regard.data.benchmarks import read_glue
from regard.data.pieces import Encoded, RowBatch
from regard.data.store import Report
from regard.errors import ConfigError, DataError
from regard.metrics import METRICS, Accuracy, Pearson, Score, Spearman, metric_class
from regard.metrics.glue import metrics as glue_metrics
from regard.models.headed import Headed
from regard.recipe import Options
from regard.tasks.batching import TooLong
from regard.tasks.encoding import (
    EncoderData,
    EncoderRecipe,
    EncoderTask,
    Part,
    Parts,
    as_texts,
    headed,
    keep_short,
)
from regard.text import Tokenizer

SAMPLES = 12  # rows that a run's report shows
GLUE_PARTS = {"train": "train", "valid": "dev", "test": "test"}


class TextsData(EncoderData):
    """[data]: tables of one text or two and their label, or the files of a task of GLUE."""

    columns: tuple[int | str, ...] = (0, 1)
    """One text or two, and then the label: by number from 0, or by name from a header."""
    format: str | None = None
    """tsv, csv, jsonl or parquet, where a file's ending does not say it."""
    header: bool | None = None
    glue: str = ""
    """A task of GLUE: `train` and the others are then its files, or its folder."""


class ClassificationObjective(Options):
    """[objective]"""

    smoothing: float = 0.0


class ClassificationEvaluation(Options):
    """[evaluation]"""

    metrics: tuple[str, ...] = ()
    """Names of metrics, the goal first; without any those of the task of GLUE, or accuracy."""


class ClassificationRecipe(EncoderRecipe):
    """A recipe's sections besides [model] and [training]."""

    data: TextsData
    objective: ClassificationObjective = ClassificationObjective()
    evaluation: ClassificationEvaluation = ClassificationEvaluation()


class TextTask(EncoderTask):
    """Rows of one text or two with a target at the end: what classes and numbers have in common."""

    head = "classes"
    glue = ""
    metrics: tuple[str, ...] = ()

    # ---- what a task of this kind says

    @abstractmethod
    def target(self, text: str, file: str, line: int) -> int | float:
        """What a row's last field asks for; it stands in this file on this line."""

    @abstractmethod
    def predict(self, texts: Any, *, too_long: TooLong = "error") -> Any:
        """The answer to each text or pair (a list for several, one for one)."""

    @abstractmethod
    def scored(self, scores: Tensor, targets: Tensor) -> list[Score]:
        """The metrics of the head's scores (N, O) against targets (N,)."""

    # ---- from a recipe

    @classmethod
    def texts(cls, recipe: Any) -> Iterator[str]:
        """What a tokenizer learns from: the training texts."""
        return (text for row in rows_of(recipe.data, "train") for text in row[:-1])

    @classmethod
    def files(cls, recipe: Any) -> list[str]:
        """The files of data, for the record of a run."""
        parts = [part for part in GLUE_PARTS if getattr(recipe.data, part) is not None]
        names = (rows_of(recipe.data, part).file_of(0).split(" and ") for part in parts)
        return [name for several in names for name in several]

    def _part(self, rows: Rows, data: TextsData) -> Part:
        """Encoded rows with their targets, which `self.target` reads."""
        report, texts, targets, lines = Report((rows.file_of(0),)), [], [], []
        for line, (*fields, target) in rows.numbered():
            report.read += 1
            if not any(field.strip() for field in fields):
                report.note("empty, row left out", line)
                continue
            texts.append(tuple(fields))
            targets.append(self.target(target, rows.file_of(0), line))
            lines.append(line)
        found = self.pieces.rows(texts)
        kept = keep_short(found, lines, self.pieces, data, report)
        report.kept = len(kept)
        if not kept:
            raise DataError(rows.file_of(0), None, f"no example is left. {report}.")
        return Part(
            Encoded.of([found[i] for i in kept]),
            torch.tensor([targets[i] for i in kept]),
            report,
        )

    def _with_parts(self, recipe: Any) -> Any:
        data = recipe.data
        train = self._part(rows_of(data, "train"), data)
        valid = None if data.valid is None else self._part(rows_of(data, "valid"), data)
        self.parts = Parts(train, valid, data, recipe.seed)
        return self

    # ---- scores

    def validate(self) -> dict[str, float]:
        """The metrics on the validation data; nothing where there is none."""
        valid = self._parts().valid
        if valid is None:
            return {}
        scores = self.scored(self.text_scores(valid.rows), valid.targets)
        return {key_of(score): score.value for score in scores}

    def evaluate(self, rows: Rows | Iterable[Sequence[str]]) -> list[Score]:
        """The metrics of the answers to rows of one text or two and their target."""
        rows = rows if isinstance(rows, Rows) else read(rows)
        numbered = list(rows.numbered())
        texts = [as_texts(row[:-1]) for _, row in numbered]
        targets = [self.target(row[-1], rows.file_of(0), line) for line, row in numbered]
        self.warn_if_cut(texts)
        scores = self.text_scores(self.encoded(texts, "truncate"))
        return self.scored(scores, torch.tensor(targets))

    def test(self, recipe: Any) -> tuple[list[Score], list[Any]]:
        """The scores on a recipe's test data; empty where it names none."""
        if recipe.data.test is None:
            return [], []
        return self.evaluate(rows_of(recipe.data, "test")), []

    def samples(self, recipe: Any) -> list[tuple[str, str, str]]:
        """The first validation rows: (text, answer, label)."""
        part = "train" if recipe.data.valid is None else "valid"
        rows = list(islice(rows_of(recipe.data, part), SAMPLES))
        found = self.predict([row[:-1] for row in rows], too_long="truncate")
        return [
            (" | ".join(row[:-1]), str(answer), row[-1])
            for row, answer in zip(rows, found, strict=True)
        ]

    def rows_to_evaluate(self, files: Sequence[Any], columns: Sequence[int | str]) -> Rows:
        """Rows of a file that a user names."""
        return read(files[0], tuple(columns) or (0, 1))

    def settings(self) -> dict[str, Any]:
        """What `load` must know beside model and tokenizer."""
        return {**super().settings(), "glue": self.glue, "metrics": list(self.metrics)}


@dataclass(frozen=True)
class Answer:
    """The best label, and the probability of each."""

    label: str
    probabilities: dict[str, float]

    def __str__(self) -> str:
        return self.label


class Classification(TextTask):
    """One of several classes for a text, or for a pair."""

    name = "classification"
    Recipe = ClassificationRecipe

    def __init__(
        self,
        model: Headed,
        tokenizer: Tokenizer,
        *,
        labels: Sequence[str],
        glue: str = "",
        metrics: Sequence[str] = (),
        smoothing: float = 0.0,
        max_tokens: int | None = None,
    ):
        super().__init__(model, tokenizer, max_tokens=max_tokens)
        self.labels, self.glue, self.metrics = tuple(labels), glue, tuple(metrics)
        self.smoothing = smoothing
        self._number = {label: i for i, label in enumerate(self.labels)}
        self.goal = (key_of_metric(self._new_metrics()[0]), "max")

    @classmethod
    def from_recipe(cls, recipe: Any, model: Any, tokenizer: Tokenizer) -> Any:
        """The task with its data and a head for its labels, ready to be trained."""
        labels = sorted({row[-1] for row in rows_of(recipe.data, "train")})
        if len(labels) < 2:
            raise DataError(
                rows_of(recipe.data, "train").file_of(0),
                None,
                f"has {len(labels)} label in its column {recipe.data.columns[-1]}.",
                "A class is one of at least two. Is it the right column?",
            )
        task = cls(
            headed(model).with_head(cls.head, len(labels)),
            tokenizer,
            labels=labels,
            glue=recipe.data.glue,
            metrics=recipe.evaluation.metrics,
            smoothing=recipe.objective.smoothing,
            max_tokens=recipe.data.max_tokens,
        )
        return task._with_parts(recipe)

    def target(self, label: str, file: str, line: int) -> int:
        """The number of a label.

        Raises:
            DataError: the model has no such label.
        """
        if label not in self._number:
            known = ", ".join(self.labels[:10])
            raise DataError(file, line, f"has the label {label!r}, which is none of: {known}.")
        return self._number[label]

    def loss(self, scores: Tensor, batch: RowBatch, targets: Any) -> tuple[Tensor, int]:
        """Cross-entropy, in nats."""
        wanted = targets[batch.numbers.cpu()].to(scores.device)
        value = F.cross_entropy(scores, wanted, reduction="sum", label_smoothing=self.smoothing)
        return value, len(batch)

    def predict(self, texts: Any, *, too_long: TooLong = "error") -> list[str] | str:
        """The label of each text or pair (a list for several, one for one)."""
        if isinstance(texts, str):
            return self.answers([texts], too_long=too_long)[0].label
        return [answer.label for answer in self.answers(texts, too_long=too_long)]

    classify = predict

    def answers(self, texts: Sequence[Any], *, too_long: TooLong = "error") -> list[Answer]:
        """The label of each text or pair, with the probabilities of all labels."""
        scores = self.text_scores(self.encoded(texts, too_long))
        found = []
        for row in scores.softmax(-1).tolist():
            named = dict(zip(self.labels, row, strict=True))
            found.append(Answer(max(named, key=named.__getitem__), named))
        return found

    def settings(self) -> dict[str, Any]:
        """What `load` must know beside model and tokenizer."""
        return {**super().settings(), "labels": list(self.labels), "smoothing": self.smoothing}

    def published(self) -> dict[str, Any]:
        """What config.json says of the labels where other libraries read it."""
        return {
            "id2label": dict(enumerate(self.labels)),
            "label2id": self._number,
            "problem_type": "single_label_classification",
        }

    def scored(self, scores: Tensor, targets: Tensor) -> list[Score]:
        found = [self.labels[i] for i in scores.argmax(-1).tolist()]
        wanted = [self.labels[i] for i in targets.tolist()]
        return results(self._new_metrics(), found, wanted)

    def _new_metrics(self) -> list[Any]:
        if self.metrics:
            return [self._metric(name) for name in self.metrics]
        return glue_metrics(self.glue) if self.glue else [Accuracy()]

    def _metric(self, name: str) -> Any:
        """`f1` is of the last label, which is the positive one of two ("0" and "1")."""
        kind = metric_class(name)
        if name == "f1":
            return kind(self.labels[-1], labels=self.labels)
        if name in ("accuracy", "macro-f1", "matthews"):
            return kind()
        raise ConfigError(f"The metric {name!r} is not one of classes: {', '.join(METRICS)}.")


class Regression(TextTask):
    """A number for a text, or for a pair: how alike two sentences are, from 0 to 5 (STS-B)."""

    name = "regression"
    Recipe = ClassificationRecipe
    goal = ("pearson", "max")

    def __init__(
        self,
        model: Headed,
        tokenizer: Tokenizer,
        *,
        glue: str = "",
        metrics: Sequence[str] = (),
        max_tokens: int | None = None,
    ):
        super().__init__(model, tokenizer, max_tokens=max_tokens)
        self.glue, self.metrics = glue, tuple(metrics)

    @classmethod
    def from_recipe(cls, recipe: Any, model: Any, tokenizer: Tokenizer) -> Any:
        """The task with its data and a head for one number, ready to be trained."""
        task = cls(
            headed(model).with_head(cls.head, 1),
            tokenizer,
            glue=recipe.data.glue,
            max_tokens=recipe.data.max_tokens,
        )
        return task._with_parts(recipe)

    def target(self, text: str, file: str, line: int) -> float:
        """The number that a field holds.

        Raises:
            DataError: it holds none.
        """
        try:
            return float(text)
        except ValueError:
            raise DataError(file, line, f"has {text!r} where a number should be.") from None

    def loss(self, scores: Tensor, batch: RowBatch, targets: Any) -> tuple[Tensor, int]:
        """Squared error."""
        wanted = targets[batch.numbers.cpu()].to(scores)
        return F.mse_loss(scores[:, 0], wanted, reduction="sum"), len(batch)

    def predict(self, texts: Any, *, too_long: TooLong = "error") -> list[float] | float:
        """The number of each text or pair (a list for several, one for one)."""
        if isinstance(texts, str):
            return self.predict([texts], too_long=too_long)[0]  # type: ignore[index]
        scores = self.text_scores(self.encoded(texts, too_long))
        return scores[:, 0].tolist()

    def published(self) -> dict[str, Any]:
        """What config.json says of the answer where other libraries read it."""
        return {
            "id2label": {0: "LABEL_0"},
            "label2id": {"LABEL_0": 0},
            "problem_type": "regression",
        }

    def scored(self, scores: Tensor, targets: Tensor) -> list[Score]:
        return results([Pearson(), Spearman()], scores[:, 0].tolist(), targets.tolist())


def rows_of(data: TextsData, part: str) -> Rows:
    """The rows of one part of a recipe's data: one text or two, then the target."""
    path = getattr(data, part)
    if not data.glue:
        return read(path, data.columns, format=data.format, header=data.header)
    return read_glue(data.glue, path, GLUE_PARTS[part] if path.is_dir() else "")


def results(metrics: Sequence[Any], found: Sequence[Any], wanted: Sequence[Any]) -> list[Score]:
    """The score of each metric."""
    for metric in metrics:
        metric.add(found, wanted)
    return [metric.result() for metric in metrics]


def key_of(score: Score) -> str:
    """The name of a score in the record: that of "Matthews correlation" is "matthews"."""
    return score.name.lower().split(" ")[0]


def key_of_metric(metric: Any) -> str:
    """The name that the score of a metric will have."""
    names = {"Accuracy": "accuracy", "F1": "f1", "MacroF1": "macro-f1", "Matthews": "matthews"}
    return names[type(metric).__name__]
