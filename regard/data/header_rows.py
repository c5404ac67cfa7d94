"""First lines of tables that name the columns, though no columns were given by name.

Such a line is a header where its fields are different and all of them usual names of columns; any
other is an example. `header = true` or `false` in [data] says it.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

from regard.data.files import ENDINGS, ending
from regard.data.in_memory import infer_columns, plain_names
from regard.data.readers import PartOfRows, Row, RowReader, open_table
from regard.errors import ConfigError, DataError
from regard.habit_names import COLUMNS, TARGETS, TEXTS


def without_header(reader: RowReader) -> RowReader:
    """The rows of a reader without the first line of a table, where it is a header."""

    def below(numbered: Iterator[tuple[int, Row]]) -> Iterator[tuple[int, Row]]:
        first = next(numbered)
        return numbered if _are_usual(plain_names(first[1])) else chain([first], numbered)

    return PartOfRows(reader, below) if reader.may_have_header else reader


def columns_in_header(
    path: str | Path, format: str | None = None, delimiter: str | None = None
) -> tuple[str, ...]:
    """The columns that the header of a CSV or TSV file names: of texts, then of the target.

    (): the first line of a TSV file is no header, or the file is no table, or it cannot be read.

    Raises:
        ConfigError: the names do not tell which columns they are, or the first line of a CSV file
            has no usual names.
    """
    kind = format or ("csv" if delimiter else ENDINGS.get(ending(path)))
    if kind not in ("csv", "tsv"):
        return ()
    try:
        table = open_table(path, header=False, format=format, delimiter=delimiter)
        written = list(next(table.records())[1].values())
    except DataError:  # is raised again where the rows are read
        return ()
    names = plain_names(written)
    with_both = any({*texts} <= {*names} for texts in TEXTS) and not {*TARGETS}.isdisjoint(names)
    if len({*names}) == len(names) and (with_both or _are_usual(names)):
        with suppress(ConfigError):
            return tuple(map(str, infer_columns([dict.fromkeys(written, "")])))
    elif kind == "tsv":
        return ()
    listed = ", ".join(name[:40] for name in written)
    raise ConfigError(
        f"{path}: the first line has the columns {listed}, and their names do not say which hold "
        "texts and which the target. Name them in [data], in this order: columns = [text column, "
        "label column]; or write header = false if this line is an example. If another sign than a "
        "comma stands between them, name it as `delimiter`."
    )


def _are_usual(names: Sequence[str]) -> bool:
    """Whether these are different names, and all of them usual."""
    return len({*names}) == len(names) and COLUMNS.issuperset(names)
