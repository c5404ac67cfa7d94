"""Texts of a file with a label each, or none: lines, or the rows of a table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from regard.data.files import ENDINGS, ending
from regard.data.in_memory import text_columns_among
from regard.data.readers import field_value, read, read_records, text_of
from regard.errors import DataError


@dataclass(frozen=True)
class LabelledTexts:
    """Texts; labels: as many, or none."""

    texts: tuple[str, ...]
    labels: tuple[str, ...] = ()


def read_labelled(path: Path, labels: str | None = None, most: int | None = None) -> LabelledTexts:
    """The texts of a file that are not blank.

    Args:
        path: a CSV, TSV, JSONL or Parquet file, whose column of texts is found by its name; any
            other file has a text a line.
        labels: the column of the labels.
        most: texts that there may be.

    Raises:
        DataError: the file cannot be read, has no text, or too many; a table has no column of
            texts, or not this one of labels; lines have no labels.
    """
    if ending(path) in ENDINGS:
        rows = _rows_of_table(path, labels)
    elif labels is not None:
        hint = "Give a CSV, TSV, JSONL or Parquet file with this column."
        raise DataError(path, None, f"is read as lines, which have no column {labels!r}.", hint)
    else:
        rows = [(text, "") for (text,) in read(str(path))]
    rows = [(text, label) for text, label in rows if text.strip()]
    if not rows:
        raise DataError(path, None, "has no text: every row is blank.", "Give one text a line.")
    if most is not None and len(rows) > most:
        hint = f"Give some of them: shuf -n {most} {path}"
        raise DataError(path, None, f"has {len(rows):,} texts; at most {most:,} are taken.", hint)
    texts, names = zip(*rows, strict=True)
    return LabelledTexts(texts, names if labels is not None else ())


def _rows_of_table(path: Path, labels: str | None) -> list[tuple[str, str]]:
    """The text and the label of each row; a value that is missing is an empty one."""
    column, rows = "", list[tuple[str, str]]()
    for line, record in read_records(path).records():
        column = column or _text_column(path, [name for name in record if name != labels])
        fields = [column] if labels is None else [column, labels]
        values = [field_value(record, name, (path, line)) for name in fields]
        strings = [
            "" if value is None else text_of(name, value, (path, line))
            for name, value in zip(fields, values, strict=True)
        ]
        rows.append((strings[0], strings[-1]))
    return rows


def _text_column(path: Path, names: list[str]) -> str:
    texts = text_columns_among(names)
    if len(texts) == 1:
        return texts[0]
    problem = f"has the columns {', '.join(names)}, and their names do not say which one is a text."
    raise DataError(path, None, problem, "Rename it to text.")
