"""Several numbers for a text or for a pair of texts: the head has an output for each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Unpack

from torch import Tensor, nn
from torch.nn import functional as F

from regard.data import RowReader
from regard.data.encoder_inputs import Texts
from regard.errors import DataError
from regard.metrics import Scores
from regard.metrics.multi_regression import MultiRegressionReport
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.recipe import Options
from regard.tasks.batching import TooLong
from regard.tasks.encoding import EncoderTask, Part, headed, labelled, transformed
from regard.tasks.predictions import Prediction
from regard.tasks.several_targets import (
    MakeList,
    SeveralTargetsData,
    SeveralTargetsRecipe,
    columns_to_score,
    list_in,
    rows_to_score,
    several_target_problems,
)
from regard.tasks.texts import (
    TextOptions,
    add_data,
    number_in,
    published_labels,
    scores_and_targets,
    targets_of,
    text_example,
    text_options,
    text_settings,
    texts_and_targets,
)
from regard.text import Tokenizer

DIRECTIONS = {"mse": "min", "mae": "min", "pearson": "max", "spearman": "max"}


class MultiRegressionData(SeveralTargetsData):
    """[data]: tables of one text or two and their numbers: a list in one column, or a column for
    each number.
    """

    def make_list(self) -> MakeList:
        """From a number in each column to the numbers."""
        return partial(_numbers_in_columns, tuple(map(str, self.target_columns)))


class MultiRegressionEvaluation(Options):
    """[evaluation]"""

    goal: Literal["mse", "mae", "pearson", "spearman"] = "mse"
    """The score that selects the best weights, a mean over the numbers: squared error, absolute
    error, or a correlation. All of them are computed."""


class MultiRegressionRecipe(SeveralTargetsRecipe):
    """A recipe's sections besides [model] and [training]."""

    data: MultiRegressionData
    evaluation: MultiRegressionEvaluation = MultiRegressionEvaluation()


@dataclass(frozen=True)
class MultiRegressionPrediction(Prediction):
    """The numbers of a text or of a pair, by name."""

    numbers: dict[str, float]

    def __str__(self) -> str:
        return ", ".join(f"{name} {number:.7g}" for name, number in self.numbers.items())


class MultiRegressor(EncoderTask):
    """Several numbers for a text, or for a pair.

    labels: the names of the numbers, in the order of the head's scores.
    """

    name = "multi-regression"
    head = "classes"
    prediction_type = MultiRegressionPrediction
    reads_pairs = True
    Recipe = MultiRegressionRecipe
    metric_names = tuple(DIRECTIONS)

    def __init__(
        self,
        module: EncoderWithHeads,
        tokenizer: Tokenizer,
        *,
        labels: Sequence[str],
        **options: Unpack[TextOptions],
    ):
        super().__init__(module, tokenizer, **options)
        self.labels = tuple(labels)
        self.goal = ("mse", DIRECTIONS["mse"])

    @classmethod
    def from_recipe(
        cls, recipe: MultiRegressionRecipe, model: nn.Module, tokenizer: Tokenizer
    ) -> MultiRegressor:
        """The task with its data and a head for its numbers, ready to be trained.

        Raises:
            ConfigError: the model is not an encoder, options do not fit together, or there is one
                number only.
            DataError: a target is not a finite number.
        """
        source = headed(model)
        model, labels, remarks = labelled(source, cls.head, names_of(recipe.data))
        model, tokenizer = transformed(model, tokenizer, source)
        task = cls(model, tokenizer, labels=labels, **text_options(recipe))
        task.remarks = remarks
        task.goal = (recipe.evaluation.goal, DIRECTIONS[recipe.evaluation.goal])
        add_data(task, recipe, task.target)
        return task

    @classmethod
    def problems(cls, recipe: Any) -> Iterator[tuple[str, str]]:
        """Options without effect, or without what they need."""
        yield from several_target_problems(recipe)
        if len(recipe.data.target_columns) == 1:
            yield "data.target_columns", f"names one number. {ONE_NUMBER}"

    example = staticmethod(text_example)

    def target(self, field: str, file: str, line: int) -> list[float]:
        """The numbers in a field of this line of a file.

        Raises:
            DataError: there are not as many as the model predicts.
        """
        numbers = numbers_in(field, file, line)
        if len(numbers) != len(self.labels):
            problem = f"has {len(numbers)} numbers, but this model predicts {len(self.labels)}."
            raise DataError(file, line, problem, f"They are: {', '.join(self.labels)}.")
        return numbers

    def shown_target(self, field: str) -> str:
        """The numbers by name."""
        return str(
            MultiRegressionPrediction(dict(zip(self.labels, numbers_in(field, "", 0), strict=True)))
        )

    def loss(self, scores: Tensor, batch: Any, targets: Tensor) -> tuple[Tensor, int]:
        """The sum over examples of the mean of their numbers' squared errors, and the number of
        examples.

        scores: (B, O).  targets: (N, O), of all examples.
        """
        total = F.mse_loss(scores, targets_of(batch, targets, scores), reduction="sum")
        return total / len(self.labels), len(batch)

    def measured(self, valid: Part) -> dict[str, float]:
        """Errors and correlations on the validation data, means over the numbers."""
        return self._report(self.text_scores(valid.inputs), valid.targets).values()

    def _report(self, scores: Tensor, targets: Tensor) -> MultiRegressionReport:
        return MultiRegressionReport.of(scores.numpy(), targets.numpy(), self.labels)

    def _predictions(
        self, texts: Sequence[Any], *, too_long: TooLong = "error"
    ) -> list[MultiRegressionPrediction]:
        """The numbers of each text or pair."""
        rows = self.text_scores(self.encoded(texts, too_long)).tolist()
        return [MultiRegressionPrediction(dict(zip(self.labels, row, strict=True))) for row in rows]

    def evaluate(
        self, rows: RowReader | Iterable[Any], *, columns: Sequence[int | str] = ()
    ) -> Scores:
        """Mean errors and correlations; the first score has a `MultiRegressionReport`.

        rows: of one text or two and a list of their numbers; or a table with a column for each
            number, under its name.
        columns: of texts and numbers in a table, where their names do not say which they are.
        """
        report = self._report(*scores_and_targets(self, self.with_columns(rows, columns)))
        return Scores(report.scores())

    def read_to_evaluate(self, rows: Any) -> tuple[list[Texts], Tensor]:
        """The texts of rows as of `evaluate`, and their numbers, (N, O)."""
        reader = rows_to_score(rows, self.labels, partial(_numbers_in_columns, self.labels))
        return texts_and_targets(reader, self.target)

    def rows_to_evaluate(self, files: Sequence[Any], columns: Sequence[int | str]) -> RowReader:
        """The examples of a file that a user names."""
        make_list = partial(_numbers_in_columns, self.labels)
        return columns_to_score(files[0], tuple(columns) or self.columns, self.labels, make_list)

    def settings(self) -> dict[str, Any]:
        """What `load` must know beside model and tokenizer."""
        return {**text_settings(self), "labels": list(self.labels)}

    def published(self) -> dict[str, Any]:
        """The fields of config.json in which other libraries look for the kind of the head."""
        return published_labels(self.labels, "regression")


ONE_NUMBER = 'For one number say task = "regression".'


def names_of(data: MultiRegressionData) -> list[str]:
    """The names of the numbers: those of their columns; LABEL_0 and so on where rows have lists.

    Raises:
        DataError: the first row has fewer than two numbers.
    """
    if data.target_columns:
        return list(map(str, data.target_columns))
    rows = data.read(data.train, "train")
    line, row = next(iter(rows.numbered()))
    count = len(numbers_in(row[-1], rows.file_of(0), line))
    if count < 2:
        problem = f"has {count} number{'s' * (count != 1)} in its list."
        raise DataError(rows.file_of(0), line, problem, ONE_NUMBER)
    return [f"LABEL_{i}" for i in range(count)]


def numbers_in(field: str, file: str, line: int) -> list[float]:
    """The numbers in a field, a list in JSON.

    Raises:
        DataError: it is no list, or holds something else.
    """
    items = list_in(field, file, line)
    if items is None:
        problem = f"has {field!r:.60} where a list of numbers should be."
        hint = "Numbers in columns of their own are named by `target_columns` of [data]."
        raise DataError(file, line, problem, hint)
    for item in items:
        if isinstance(item, bool) or not isinstance(item, int | float | str):
            problem = f"has {json.dumps(item)} in a list of numbers."
            raise DataError(file, line, problem, "Leave such rows out.")
    return [number_in(str(item), file, line) for item in items]


def _numbers_in_columns(
    names: Sequence[str], values: Sequence[str], file: str, line: int
) -> list[float]:
    """The numbers in columns of their own.

    Raises:
        DataError: a column holds none, or one that is not finite.
    """
    numbers = []
    for name, value in zip(names, values, strict=True):
        if not value.strip():
            raise DataError(file, line, f"has no value in column {name!r}.", "Leave such rows out.")
        numbers.append(number_in(value, file, line))
    return numbers
