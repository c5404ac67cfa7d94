"""Texts and pairs of texts with targets: what tasks with labels or numbers share.

Tables become encoded examples; pairs are read in one order or in both.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self, TypedDict

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from regard.data import RowReader
from regard.data.batches import moved
from regard.data.encoder_inputs import GroupBatch, InputBatch, Truncation
from regard.data.readers import Column, ReadReport
from regard.data.splits import group_folds, group_split
from regard.errors import ConfigError, DataError, TextError, warn
from regard.recipe import Options
from regard.suggest import nearest
from regard.tasks import sections
from regard.tasks.batching import TooLong
from regard.tasks.encoder_training import AuxiliaryLM
from regard.tasks.encoding import EncoderTask, Part, Parts, kept_examples
from regard.tasks.inputs import texts_in

Target = int | float | list[float]


# ------------------------------------------------------------------------------------- recipes


class TextsData(sections.TableOptions, sections.EncoderData):
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
    def pairs(self) -> bool | None:
        """Whether the examples are pairs of texts."""
        return len(self.columns) == 3

    def with_named_columns(self) -> Self:
        data: Self = sections.with_columns_of_header(self)
        return data

    def rows(self, path: Any, part: str, columns: Mapping[str, Column]) -> RowReader:
        """These columns of a file."""
        return self.table(path, columns)

    def texts(self) -> Iterator[str]:
        """The training texts, from which a tokenizer learns."""
        rows = self.records("train")
        return (text for line, row in rows.numbered() for text in texts_in(rows, row, line))

    def split(self, examples: RowReader) -> np.ndarray:
        """Which of the training rows are validation data, (N,) bool."""
        if self.group is not None:
            rows = self.rows(self.train, "train", {"group": self.group})
            groups = [rows.text(row, "group", line) for line, row in rows.numbered()]
            return self.split_by(groups, group_split, group_folds)
        return super().split(examples)


class TextObjective(Options):
    """[objective]"""

    both_orders: bool = False
    """Read each pair as (a, b) and as (b, a) and add what stands before the head: for questions in
    which the order says nothing (Radford et al. 2018, section 3.3)."""
    aux_lm_weight: float = Field(default=0.0, ge=0)
    """Weight of the loss of predicting the texts themselves (lambda of equation 5, there 0.5)."""


class TextRecipe(sections.EncoderRecipe):
    """What the recipes of all tasks on texts have in common."""

    data: TextsData
    objective: TextObjective = TextObjective()


class TextOptions(TypedDict, total=False):
    """The options that all tasks on texts have: see `TextsData` and `TextObjective`."""

    both_orders: bool
    max_length: int | None
    truncation: Truncation
    pairs: bool | None


def text_problems(recipe: TextRecipe) -> sections.Problems:
    """Options of a recipe that have no effect or lack another option: (dotted name, problem)."""
    yield from EncoderTask.problems(recipe)
    data = recipe.data
    if not data.splits_train:
        yield from sections.differing(data, "data", ("group",), OF_A_SHARE)
    if any(isinstance(column, str) for column in data.columns) and data.header is False:
        yield "data.header", "must not be false where `columns` are names: a header has them."


OF_A_SHARE = "is of `valid` as a share or a fold of the training data"


# -------------------------------------------------------------------------------- examples


def add_data(task: EncoderTask, recipe: TextRecipe) -> None:
    """Give a task the encoded data of a recipe with their targets, and its second objective.

    Raises:
        ConfigError: the model does not predict the next token, which the second objective asks for.
        DataError: a file cannot be read, or a target is not valid.
    """
    data, task.pairs = recipe.data, recipe.data.pairs
    task.aux_lm = AuxiliaryLM.of(task.module, recipe.objective.aux_lm_weight)
    train = encoded_rows(task, data.records("train"), data)
    valid = None if data.valid is None else encoded_rows(task, data.records("valid"), data)
    task.parts = Parts(train, valid, data, recipe.seed)


def encoded_rows(task: EncoderTask, rows: RowReader, data: TextsData) -> Part:
    """The encoded examples of rows with their targets.

    Raises:
        DataError: a text or a target is not valid, or no example is left.
    """
    report, texts, targets, lines = ReadReport((rows.name,)), [], [], []
    for line, row in rows.numbered():
        report.read += 1
        row_texts = task.texts_of(rows, row, line)
        if not any(map(str.strip, row_texts)):
            report.note("empty, example left out", line)
            continue
        texts.append(row_texts)
        targets.append(task.target(rows, row, line))
        lines.append(line)
    try:
        encoded = task.input_format.encode(texts)
    except TextError as error:
        raise error.of_row(rows.name, lines[error.index]) from None
    limit = task.input_format.max_length
    indices = kept_examples(list(map(len, encoded)), limit, lines, data, report)
    kept_targets = torch.tensor([targets[i] for i in indices])
    inputs = [task.input_format.truncate(encoded[i]) for i in indices]
    return Part(task.arranged(inputs), kept_targets, report)


def scores_and_targets(task: EncoderTask, rows: Any) -> tuple[Tensor, Tensor]:
    """The head's scores (N, O) for rows as a task evaluates them, and the targets (N, ...).

    Texts that are too long are truncated, with a warning.
    """
    texts, targets = task.read_to_evaluate(rows)
    task.warn_if_truncated(texts)
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


def weights_by_label(option: str, chosen: Mapping[str, float], labels: Sequence[str]) -> Tensor:
    """The weights (O,) of the labels, 1 for those that are not named.

    Raises:
        ConfigError: a name is not a label.
    """
    for name in chosen:
        if name not in labels:
            hint = nearest(name, labels)
            raise ConfigError(f"[objective] `{option}` has no label {name!r}. {hint}")
    return torch.tensor([chosen.get(label, 1.0) for label in labels])


LARGEST_TARGET = torch.finfo(torch.float32).max


def number_in(value: object, file: str, line: int) -> float:
    """The number that a field in this line of a file holds, also as text.

    Raises:
        DataError: it holds none, or one that is not finite in float32.
    """
    try:
        number = float(str(value).replace("_", "no digit"))  # Python reads 1_000, no file means it
    except ValueError:
        problem = f"has {value!r:.60} where a number should be."
        raise DataError(file, line, problem) from None
    if not abs(number) <= LARGEST_TARGET:
        raise DataError(file, line, f"has {value!r:.60}, but a target must be a finite float32.")
    return number


# of cross-encoders -> the class that sentence-transformers names
ACTIVATIONS = {
    "sigmoid": "torch.nn.modules.activation.Sigmoid",
    "identity": "torch.nn.modules.linear.Identity",
}


def cross_encoder_activation(config: Mapping[str, Any]) -> str | None:
    """What a cross-encoder of sentence-transformers applies to its one score: "sigmoid", unless its
    config.json names another; None for a model that is none.

    A published head of one output is that of a cross-encoder unless its `problem_type` is
    "regression": other libraries apply a sigmoid to it, too.

    Raises:
        ConfigError: it names another activation.
    """
    section = config.get("sentence_transformers")
    name = section.get("activation_fn") if isinstance(section, Mapping) else None
    name = name or config.get("sbert_ce_default_activation_function")
    if name is None and section is None:
        if "regard" in config or config.get("problem_type") == "regression":
            return None
        warn(
            "config.json names neither an activation nor a `problem_type`: a sigmoid is applied to "
            'the one output. For the number itself set `problem_type` to "regression".',
        )
    kind = str(name or "Sigmoid").rpartition(".")[2].lower()
    if kind not in ACTIVATIONS:
        raise ConfigError(
            f"config.json: the activation of a cross-encoder must be Sigmoid or Identity of torch, "
            f"but is {name!r}."
        )
    return kind
