"""Tables with predictions: which columns hold the texts, and the columns that are added."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.data.in_memory import text_columns_among
from regard.data.readers import Location, field_value, text_of
from regard.errors import ConfigError

if TYPE_CHECKING:
    from regard.tasks.task import Task

Record = dict[str, Any]  # a row by column
COMMON_FIELDS = ("number", "source", "text", "truncated")  # fields of the results of all tasks


def check_columns(task: Task, columns: Sequence[str], path: Path) -> None:
    """Check that a task predicts from a table with this number of columns of texts.

    Raises:
        ConfigError: the task reads no tables, or fewer columns.
    """
    if task.name == "multiple-choice":
        raise ConfigError(
            "Multiple choice reads questions, one JSON object a line. Use: regard predict MODEL "
            f"< {path.with_suffix('.jsonl')}"
        )
    most = 1 if task.decodes or not task.reads_pairs else 2
    if task.pairs is False and len(columns) > 1:
        raise ConfigError(
            f"This model was trained on single texts, but {len(columns)} columns are chosen: "
            f"{', '.join(columns)}. Name the column of the texts alone, by --columns."
        )
    if len(columns) > most:
        raise ConfigError(
            f"A model of {task.name} reads {'one text' if most == 1 else 'a text or a pair'}, but "
            f"--columns names {len(columns)}: {', '.join(columns)}. Name {most}."
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
