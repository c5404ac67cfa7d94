"""Rows of CSV files, each with the line on which it begins."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path

from regard.data.files import LONGEST_LINE, open_bytes, whole_lines_of
from regard.errors import DataError

_SPACE_BEFORE_QUOTE = re.compile(r'\s+"').match  # in a field; quoted ones may have it, too


def csv_rows(path: str | Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """The rows of a CSV file that are not blank, each with the number of the line it begins on.

    Raises:
        DataError: a row is not CSV or too long, or a space stands before a quote.
    """
    unquoted = re.compile(rf'(?:^|{re.escape(delimiter)})\s+"(?!")').search
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_LINE))
    begun = 1
    with open_bytes(path) as stream:
        text = _BoundedLines(path, whole_lines_of(stream, path))
        table = csv.reader(text, delimiter=delimiter, strict=True)
        try:
            for fields in table:
                if any(map(_SPACE_BEFORE_QUOTE, fields)) and unquoted(text.line):
                    problem = "a space stands between the delimiter and a quote."
                    raise DataError(path, begun, problem, 'Remove it: "a","b".')
                if fields:  # none: a blank line
                    yield begun, fields
                begun = table.line_num + 1
                text.begin_row(begun)
        except csv.Error as error:
            problem = f"the row that begins here is not CSV: {error}."
            hint = csv_hint(error)
            if delimiter == ",":
                hint += ' If another sign than "," stands between the fields: `delimiter`.'
            raise DataError(path, begun, problem, hint) from error


def csv_hint(error: csv.Error) -> str:
    """What may be wrong with a row that is not CSV."""
    if "new-line character" in str(error):
        return (
            "A carriage return stands outside of quotes: put the field into quotes, or where it "
            "ends the lines, write line feeds."
        )
    return 'Is a quote (") that opens on this line never closed, or not doubled inside?'


class _BoundedLines:
    """The lines of a table of which several may be one row; too long a row raises an error."""

    def __init__(self, path: str | Path, lines: Iterator[str]):
        self.path, self.lines = path, lines
        self.begin_row(1)

    def __iter__(self) -> _BoundedLines:
        return self

    def __next__(self) -> str:
        self.line = next(self.lines)
        self.length += len(self.line)
        if self.length > LONGEST_LINE:
            problem = f"the row that begins here has more than {LONGEST_LINE:,} characters."
            raise DataError(self.path, self.begun, problem, 'Is a quote (") never closed?')
        return self.line

    def begin_row(self, number: int) -> None:
        """The next row begins on this line."""
        self.begun, self.length = number, 0
