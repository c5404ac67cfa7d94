"""Structured rows: what the readers of sentences, questions and choices have in common.

Such a reader gives one record after another, can be looped over again, and counts in its `report`
what it left out or mended on the last pass.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from os import PathLike
from pathlib import Path
from typing import Any, Generic, TypeVar

from regard.data.files import open_bytes, whole_lines_of
from regard.data.readers import ItemReader, json_value
from regard.data.token_arrays import ReadReport
from regard.errors import ConfigError, DataError

T = TypeVar("T")
Place = tuple[str, int | None]  # what an error names: a file or a part of it, and a line
Source = str | ItemReader
LARGEST = 1 << 29  # bytes of a JSON file that is in memory as a whole
Read = Callable[[Source, ReadReport], Iterator[tuple[int, T]]]


class RecordReader(Generic[T]):
    """Records of one kind from a file or from anything one can loop over.

    `read(source, report)` makes a pass: numbered records, counting in the report what it reads.
    `what` names a record, and `unit` what its number counts.
    """

    def __init__(
        self, data: str | PathLike[str] | Iterable[Any], read: Read[T], what: str, unit: str
    ):
        self.source: Source = str(data) if isinstance(data, str | PathLike) else ItemReader(data)
        self.what, self.unit, self._read = what, unit, read
        self.report = self._fresh()

    @property
    def name(self) -> str:
        """The file, or the kind of object, that the records come from."""
        return self.source if isinstance(self.source, str) else self.source.file_of(0)

    def __iter__(self) -> Iterator[T]:
        return (record for _, record in self.numbered())

    def numbered(self) -> Iterator[tuple[int, T]]:
        """Records with the number, from 1, of the `unit` at which each begins."""
        self.report = report = self._fresh()
        for number, record in self._read(self.source, report):
            report.kept += 1
            yield number, record
        if not report.kept:
            problem = f"no {self.what} is left." if report.read else f"has not one {self.what}."
            raise DataError(self.name, None, problem, f"{report}." * bool(report.events))

    def _fresh(self) -> ReadReport:
        return ReadReport((self.name,), unit=self.unit)


def json_of(path: str | Path) -> Any:
    """What a JSON file holds, as a whole in memory; a fault of its syntax is named by line."""
    with open_bytes(path) as stream:
        data = stream.read(LARGEST + 1)
    if len(data) > LARGEST:
        problem = f"has more than {LARGEST:,} bytes, and would be in memory as a whole."
        raise DataError(path, None, problem, "Split it, or write it as .jsonl, an object a line.")
    text = "".join(whole_lines_of(io.BytesIO(data), path, most=LARGEST))
    return json_value(text, path)


def must_be(value: Any, kind: type[T], what: str, place: Place) -> T:
    """The value if it is of this kind; otherwise an error that says what it is."""
    if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    problem = f"{what} must be {_KINDS[kind]}, but is {_KINDS.get(type(value), 'something else')}."
    raise DataError(*place, problem)


def one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Refuse an option's value that is none of those allowed."""
    if value not in allowed:
        known = f"{', '.join(allowed[:-1])} or {allowed[-1]}"
        raise ConfigError(f"`{name}` must be {known}, but is {value!r}.")


_KINDS: dict[type, str] = {
    dict: "an object",
    list: "a list",
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    type(None): "missing (null)",
}
