"""Predictions for lines of text or rows of tables, and the errors of those that have none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.data.files import delimiter_hint
from regard.data.text_chunks import Chunk, is_blank
from regard.errors import ConfigError, DataError, TextError

if TYPE_CHECKING:
    from regard.data.readers import Location, Record
    from regard.tasks.batching import TooLong
    from regard.tasks.task import Task

Result = dict[str, Any]  # of a line: its number, source, text, and the fields of the prediction
EMPTY_HYPOTHESIS = {"text": "", "score": 0.0, "log_prob": 0.0, "finished": True}


class LinePredictor:
    """Predictions for lines of text, and `counts` of the texts that were truncated or cut off."""

    def __init__(self, task: Task, too_long: TooLong, decoding: Mapping[str, Any]):
        self.task, self.too_long, self.decoding = task, too_long, decoding
        self.counts = Counter[str]()

    @property
    def limit(self) -> int | None:
        """The most tokens that a text, or the question of one, may have; None: any number."""
        return self.task.token_limit(**self.decoding)

    def predict(self, chunk: Chunk) -> tuple[list[Result], DataError | None]:
        """The results of the lines before the first without a prediction, and the error for it."""
        results, errors = self.predict_each(chunk)
        end = min(errors, default=len(results))
        return [result for result in results[:end] if result is not None], errors.get(end)

    def predict_each(self, chunk: Chunk) -> tuple[list[Result | None], dict[int, DataError]]:
        """The result of each line, None for those without one; of these the errors, by index."""
        errors = dict[int, DataError]()
        while True:
            filled = [
                index
                for index, line in enumerate(chunk.texts)
                if index not in errors and not is_blank(line)
            ]
            texts = [self._text(chunk.texts[index]) for index in filled]
            try:
                long = self.task.over_limit(texts, **self.decoding)
                if not long or self.too_long == "truncate":
                    predictions = self._predictions(texts, "truncate" if long else "error")
                    break
                for number, tokens in long.items():
                    wrong = chunk.too_long(filled[number], tokens, self.limit, self.task.limited)
                    errors[filled[number]] = wrong
            except TextError as problem:
                index = filled[problem.index]
                errors[index] = chunk.error(index, problem.problem, problem.hint)
        results = self._results(chunk, dict(zip(filled, predictions, strict=True)), long)
        return [None if i in errors else result for i, result in enumerate(results)], errors

    def _text(self, line: str | tuple[str, ...]) -> Any:
        """The text of a line; for a task that reads several columns, what stands between tabs.

        A row of a table is a tuple: its texts may contain tabs.
        """
        if isinstance(line, tuple):
            return line if len(line) > 1 else line[0]
        several = len(self.task.input_columns) > 1 and "\t" in line
        return tuple(line.split("\t")) if several else line

    def _predictions(self, texts: Sequence[Any], too_long: TooLong) -> Sequence[Result]:
        task = self.task
        if not task.decodes:
            predictions = task.predict(texts, return_proba=True, too_long=too_long)
            return [{"text": str(prediction), **prediction.values()} for prediction in predictions]
        from regard.decoding.steps import unfinished, values_of

        hypotheses = task.hypotheses(texts, **self.decoding, too_long=too_long)
        self.counts["unfinished"] += unfinished(hypotheses)
        return [
            {"text": outputs[0], "hypotheses": values_of(ranked, outputs)}
            for ranked, outputs in zip(hypotheses, task.spelled(texts, hypotheses), strict=True)
        ]

    def _results(
        self, chunk: Chunk, results: Mapping[int, Result], long: Mapping[int, int]
    ) -> list[Result]:
        """A result for each line.

        results: by the index of the line, without those of empty lines.  long: tokens of the texts
            that are too long, by their numbers among these.
        """
        self.counts.update(texts=len(chunk.texts), truncated=len(long))
        truncated = {index for number, index in enumerate(results) if number in long}
        return [
            {
                "number": chunk.first + index,
                "source": line,
                "text": "",
                "truncated": index in truncated,
                **(results[index] if index in results else self._empty()),
            }
            for index, line in enumerate(chunk.texts)
        ]

    def _empty(self) -> Result:
        """The result of an empty line."""
        if self.task.decodes:
            return {"hypotheses": [EMPTY_HYPOTHESIS]}
        return {**self.task.prediction_type.empty_values(), "text": ""}


COMMON_FIELDS = ("number", "source", "text", "truncated")  # fields of the results of all tasks


def check_columns(task: Task, columns: Sequence[str], path: Path) -> None:
    """Check that a `Task` predicts from a table with this number of columns of texts.

    Raises:
        ConfigError: the task reads no tables, or fewer columns.
    """
    if not task.input_columns:
        raise ConfigError(
            f"A model of {task.name} reads one JSON object a line. Use: regard predict MODEL "
            f"< {path.with_suffix('.jsonl')}"
        )
    most = 1 if task.pairs is False else len(task.input_columns)
    if len(columns) > most and list not in task.input_columns.values():
        reads = "single texts" if most == 1 else f"inputs of 1 to {most} columns"
        raise ConfigError(
            f"This model of {task.name} reads {reads}, but --columns names {len(columns)}: "
            f"{', '.join(columns)}. Name {most}."
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
    from regard.data.in_memory import text_columns_among

    hint = delimiter_hint(list(record))
    if not hint and (columns := text_columns_among(list(record))):
        return columns
    raise ConfigError(
        f"{path} {hint}has the columns {', '.join(record)}, and their "
        "names do not say which of them are texts. Name one, or the two of a pair: --columns "
        f"{next(iter(record), 'text')}."
    )


def texts_of_row(
    record: Mapping[str, Any],
    columns: Sequence[str],
    location: Location,
    lists: bool = False,
) -> tuple[Any, ...]:
    """The texts of a row in these columns; "" for a value that is missing.

    lists: whether a value may be a list.

    Raises:
        DataError: there is no such column, or its value is of another type.
    """
    from regard.data.readers import field_value, text_of

    values = []
    for name in columns:
        value = field_value(record, name, location)
        is_list = lists and isinstance(value, list)
        values.append(value if is_list else "" if value is None else text_of(name, value, location))
    return tuple(values)
