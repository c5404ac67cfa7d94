"""Several targets for a text or a pair of texts: its labels, or several numbers.

A row has its targets as a list in one column, or each in its own column. Readers give rows of
texts, so the list is JSON in the last field: `["old", "warm"]`, `[0.5, 2]`.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

from regard.data import RowReader, read
from regard.data.header_rows import WithoutHeader
from regard.data.in_memory import column_names, infer_columns, infer_text_columns
from regard.errors import ConfigError, DataError
from regard.recipe import Options
from regard.tasks.sections import differing
from regard.tasks.texts import TextRecipe, TextsData, text_problems

# (values of the columns of targets, file, line) -> the list of targets
MakeList = Callable[[Sequence[str], str, int], list[Any]]


class SeveralTargetsData(TextsData):
    """[data]: tables of one text or two, and their targets."""

    target_columns: tuple[int | str, ...] = ()
    """The columns of the targets, where each has its own: `columns` then names the texts alone."""

    @abstractmethod
    def make_list(self) -> MakeList:
        """The function that makes the list of targets from the values of `target_columns`."""

    @property
    def pairs(self) -> bool:
        """Whether the examples are pairs of texts."""
        return len(self.columns) == (2 if self.target_columns else 3)

    def read(self, source: Any, part: str) -> RowReader:
        """The rows of a file: one text or two, then the targets as JSON text, or as a table has it.

        Raises:
            ConfigError: `columns` does not name one text or two.
        """
        least, also = (1, "") if self.target_columns else (2, ", and then that of the targets")
        if len(self.columns) not in (least, least + 1):
            given = f"names {len(self.columns)} columns"
            raise ConfigError(f"[data] `columns` must name one text or two{also}, but {given}.")
        if self.target_columns and "columns" not in self.model_fields_set:
            raise ConfigError(
                "[data] `columns` is missing: beside `target_columns` it names one text or two."
            )
        return self.rows(source, part, (*self.columns, *self.target_columns))

    def with_named_columns(self) -> Self:
        return self if self.target_columns else super().with_named_columns()

    def rows(self, path: Any, part: str, columns: Sequence[int | str]) -> RowReader:
        """These columns of a file, those of targets as a list."""
        lists = () if self.target_columns else self.columns[-1:]
        reader = self.table(path, columns, lists)
        if not self.target_columns and len(columns) > 1:
            reader = WithoutHeader(reader)
        separate = self.target_columns and len(columns) > 1  # a single column is that of the groups
        if not separate:
            return reader
        return MergedColumns(reader, len(self.target_columns), self.make_list())


@dataclass(frozen=True, eq=False)
class MergedColumns(RowReader):
    """A reader whose rows have their last `count` fields merged into one, a list in JSON."""

    reader: RowReader
    count: int
    make_list: MakeList

    def file_of(self, field: int) -> str:
        return self.reader.file_of(field)

    def numbered(self) -> Iterator[tuple[int, tuple[str, ...]]]:
        for line, row in self.reader.numbered():
            texts, values = row[: -self.count], row[-self.count :]
            yield line, (*texts, json.dumps(self.make_list(values, self.file_of(0), line)))


class SeveralTargetsRecipe(TextRecipe):
    """Base class of the recipes for several targets."""

    data: SeveralTargetsData
    evaluation: Options


def several_target_problems(recipe: SeveralTargetsRecipe) -> Iterator[tuple[str, str]]:
    """As `text_problems`, of a recipe for several targets."""
    yield from text_problems(recipe)
    data = recipe.data
    if twice := [column for column in data.target_columns if data.target_columns.count(column) > 1]:
        yield "data.target_columns", f"must name each column once, but names {twice[0]!r} twice."
    if any(isinstance(column, str) for column in data.target_columns) and data.header is False:
        why = "must not be false where `target_columns` are names: a header has them."
        yield "data.header", why
    if data.valid is None:
        yield from differing(recipe.evaluation, "evaluation", ("goal",), "needs validation data")


def rows_to_score(
    rows: RowReader | Iterable[Any], labels: Sequence[str], make_list: MakeList
) -> RowReader:
    """Rows in memory as a reader whose last field holds the targets, for `evaluate`.

    labels: those of the model. If columns have these names, each holds a target.

    Raises:
        ConfigError: the names of the columns do not tell which hold texts and targets.
    """
    if isinstance(rows, RowReader):
        return rows
    rows = list(rows) if isinstance(rows, Iterator) else rows
    if {*labels} <= {*column_names(rows)}:
        texts = infer_text_columns(rows, excluded=labels)
        return MergedColumns(read(rows, (*texts, *labels)), len(labels), make_list)
    columns = infer_columns(rows)
    return read(rows, columns, lists=columns[-1:])


def columns_to_score(
    file: Any, columns: Sequence[int | str], labels: Sequence[str], make_list: MakeList
) -> RowReader:
    """The rows of a file to evaluate: texts and a list, or texts and a column for each label.

    The number of a column may be a label by chance (labels "0", "1", ...): numbers are columns of
    labels only where all labels have one, and a text is left.

    Raises:
        ConfigError: the columns of some labels are named, but not of all, or none of a text.
    """
    column_of = {str(column): column for column in columns if str(column) in labels}
    texts = [column for column in columns if str(column) not in labels]
    missing = [label for label in labels if label not in column_of]
    if texts and not missing:
        target_columns = [column_of[label] for label in labels]
        return MergedColumns(read(file, (*texts, *target_columns)), len(labels), make_list)
    if any(isinstance(column, str) for column in column_of.values()):
        if not missing:
            raise ConfigError("`columns` names those of the labels, but none that holds a text.")
        raise ConfigError(
            f"Name the columns of all labels, or of none: {', '.join(missing)} is missing."
        )
    return read(file, columns, lists=columns[-1:])


def list_in(text: str, file: str, line: int) -> list[Any] | None:
    """The list that a field holds in JSON; None if it holds something else.

    Raises:
        DataError: the field is in brackets, but not a list in JSON.
    """
    text = text.strip()
    if not (text.startswith("[") and text.endswith("]")):
        return None
    try:
        items = json.loads(text)
    except ValueError:
        problem = f"has {text!r:.60}, which is no list in JSON."
        raise DataError(file, line, problem, 'Write ["a", "b"], as JSON Lines has it.') from None
    return list(items)
