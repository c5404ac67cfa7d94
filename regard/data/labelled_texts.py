"""Texts of a file with a label each, or none: lines, or the rows of a table."""

from dataclasses import dataclass
from pathlib import Path

from regard.data.files import ENDINGS, ending
from regard.data.in_memory import text_columns_among
from regard.data.readers import open_table, read
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
        first = next(open_table(path).records())[1]
        texts = text_columns_among([name for name in first if name != labels])
        if len(texts) != 1:
            problem = f"has the columns {', '.join(first)}; their names do not say which is a text."
            raise DataError(path, None, problem, "Rename it to text.")
        columns = texts if labels is None else (*texts, labels)
        rows = [row for row in read(str(path), columns) if row[0].strip()]
    elif labels is not None:
        hint = "Give a CSV, TSV, JSONL or Parquet file with this column."
        raise DataError(path, None, f"is read as lines, which have no column {labels!r}.", hint)
    else:
        rows = [row for row in read(str(path)) if row[0].strip()]
    if not rows:
        raise DataError(path, None, "has no text: every row is blank.", "Give one text a line.")
    if most is not None and len(rows) > most:
        hint = f"Give some of them: shuf -n {most} {path}"
        raise DataError(path, None, f"has {len(rows):,} texts; at most {most:,} are taken.", hint)
    names = tuple(row[1] for row in rows) if labels is not None else ()
    return LabelledTexts(tuple(row[0] for row in rows), names)
