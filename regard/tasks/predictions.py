"""What a task predicts for one text: each prediction has a text form and plain values.

str(prediction)         as a text: a label, tags, a number
prediction.values()     all its fields by name, as values that JSON can contain

A prediction is a frozen dataclass derived from `Prediction`, whose first field is the result; its
task names the class as `prediction_type`. In a table predictions are further columns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from regard.data.in_memory import text_columns_among
from regard.data.readers import Location, field_value, text_of
from regard.errors import ConfigError

Record = dict[str, Any]  # a row by column
COMMON_FIELDS = ("number", "source", "text", "truncated")  # fields of the results of all tasks


@dataclass(frozen=True)
class Prediction:
    """What a task predicts for one text.

    NAMES: field -> its key in `values`, where that differs.
    """

    NAMES: ClassVar[Mapping[str, str]] = {}

    @property
    def result(self) -> Any:
        """What `predict` returns for the text: the first field."""
        return getattr(self, fields(self)[0].name)

    def __str__(self) -> str:
        return str(self.result)

    def values(self) -> dict[str, Any]:
        """All fields as plain values."""
        return {self.NAMES.get(name, name): value for name, value in asdict(self).items()}

    @classmethod
    def empty_values(cls) -> dict[str, Any]:
        """The keys of `values` with None for each: the prediction for an empty line."""
        return dict.fromkeys(cls.NAMES.get(field.name, field.name) for field in fields(cls))


@dataclass(frozen=True)
class MaskCandidate:
    """A word for a mask: as text, as the vocabulary writes it, and its probability."""

    word: str
    token: str
    probability: float


@dataclass(frozen=True)
class FilledText(Prediction):
    """A text with the most probable word at each mask; and for each mask the best candidates.

    The probability of a candidate is that for this mask alone: the best words of several masks need
    not be the best together.
    """

    text: str
    masks: list[list[MaskCandidate]]


@dataclass(frozen=True)
class TextMatch:
    """A text that was found: its index among those searched, its cosine, and the text."""

    index: int
    score: float
    text: str


def check_columns(task: Any, columns: Sequence[str], path: Path) -> None:
    """Check that a `Task` predicts from a table with this number of columns of texts.

    Raises:
        ConfigError: the task reads no tables, or fewer columns.
    """
    if task.name == "multiple-choice":
        raise ConfigError(
            "Multiple choice reads questions, one JSON object a line. Use: regard predict MODEL "
            f"< {path.with_suffix('.jsonl')}"
        )
    single = task.decodes or not task.reads_pairs or task.pairs is False
    if len(columns) > (1 if single else 2):
        reads = "single texts" if single else "a text or a pair"
        raise ConfigError(
            f"This model of {task.name} reads {reads}, but --columns names {len(columns)}: "
            f"{', '.join(columns)}. Name {1 if single else 2}."
        )


def prediction_columns(result: Mapping[str, Any]) -> Record:
    """The prediction of a text as columns: `prediction`, and the other fields of the result.

    Fields of a field, such as the probability of each label, are `probabilities.LABEL`. Of several
    hypotheses it is the best.
    """
    fields = {name: value for name, value in result.items() if name not in COMMON_FIELDS}
    text = result["text"]
    if "hypotheses" in fields:
        best = fields["hypotheses"][0]
        return {"prediction": text, "score": best["score"], "log_prob": best["log_prob"]}
    if isinstance(fields.get("value"), float):  # a number, which the text rounds
        text = fields["value"]
    columns = {"prediction": text}
    fields = {name: value for name, value in fields.items() if value != text}
    for name, value in fields.items():
        if isinstance(value, Mapping):
            columns |= {f"{name}.{key}": entry for key, entry in value.items()}
        else:
            columns[name] = value
    return columns


def infer_columns(path: Path, record: Mapping[str, Any]) -> tuple[str, ...]:
    """The columns of texts by their usual names, from one row of the table.

    Raises:
        ConfigError: no names do.
    """
    if columns := text_columns_among(list(record)):
        return columns
    raise ConfigError(
        f"{path} has the columns {', '.join(record)}, and their names do not say which of them are "
        f"texts. Name one, or the two of a pair: --columns {next(iter(record), 'text')}."
    )


def texts_of_row(
    record: Mapping[str, Any], columns: Sequence[str], location: Location
) -> tuple[str, ...]:
    """The texts of a row in these columns; "" for a value that is missing.

    Raises:
        DataError: there is no such column, or its value is no text.
    """
    values = [(name, field_value(record, name, location)) for name in columns]
    return tuple("" if value is None else text_of(name, value, location) for name, value in values)
