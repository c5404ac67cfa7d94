"""What the dataset readers have in common: passes over records, their locations, and a report."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from itertools import compress
from os import PathLike
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from regard.data.files import ending, open_bytes, whole_lines_of
from regard.data.readers import ItemReader, Location, json_value, open_table
from regard.data.token_arrays import ReadReport
from regard.errors import ConfigError, DataError

T = TypeVar("T")
Source = str | ItemReader
LARGEST = 1 << 29  # bytes of a JSON file that is held in memory as a whole
Read = Callable[[Source, ReadReport], Iterator[tuple[int, T]]]


class RecordReader(Generic[T]):
    """Records of one kind from a file or from anything one can loop over.

    Looping gives one record after another, and can be repeated. `report` counts what the last pass
    left out or changed.

    data: the path of a file, or something to loop over
    read: makes a pass: gives numbered records and counts in the report how many it reads
    what: the name of a record, for messages
    unit: what the record's number counts: a "line", or a "question"
    """

    def __init__(
        self, data: str | PathLike[str] | Iterable[Any], read: Read[T], what: str, unit: str
    ):
        self.source: Source = str(data) if isinstance(data, str | PathLike) else ItemReader(data)
        self.what, self.unit, self._read = what, unit, read
        self.report = ReadReport((self.name,), unit=unit)

    def only(self, chosen: np.ndarray) -> RecordReader[T]:
        """The records, counted from 0, where `chosen` (N,) is true."""

        def read(source: Source, report: ReadReport) -> Iterator[tuple[int, T]]:
            return compress(self._read(source, report), chosen)

        selected = copy(self)
        selected._read = read
        return selected

    @property
    def name(self) -> str:
        """The file, or the kind of object, that the records come from."""
        return self.source if isinstance(self.source, str) else self.source.file_of(0)

    def __iter__(self) -> Iterator[T]:
        return (record for _, record in self.numbered())

    def numbered(self) -> Iterator[tuple[int, T]]:
        """Records with the number, from 1, of the `unit` at which each begins.

        Raises:
            DataError: the file cannot be read, a record is malformed, or there is none.
        """
        self.report = report = ReadReport((self.name,), unit=self.unit)
        for number, record in self._read(self.source, report):
            report.kept += 1
            yield number, record
        if not report.kept:
            problem = f"no {self.what} is left." if report.read else f"has not one {self.what}."
            raise DataError(self.name, None, problem, f"{report}." * bool(report.events))


def items_of(source: Source) -> Iterator[tuple[Location, Any]] | None:
    """The given items, or the objects of a .jsonl file; None for a file of another format."""
    if isinstance(source, ItemReader):
        name, numbered = source.file_of(0), source.whole()
    elif ending(source) in (".jsonl", ".ndjson"):
        name, numbered = source, open_table(source).records()
    else:
        return None
    return (((name, number), item) for number, item in numbered)


def read_json_file(path: str | Path) -> Any:
    """The value of a JSON file, which is read into memory as a whole.

    Raises:
        DataError: it is larger than `LARGEST`, or is not JSON; the message names the line.
    """
    with open_bytes(path) as stream:
        data = stream.read(LARGEST + 1)
    if len(data) > LARGEST:
        problem = f"has more than {LARGEST:,} bytes, and would be in memory as a whole."
        raise DataError(path, None, problem, "Split it, or write it as .jsonl, an object a line.")
    text = "".join(whole_lines_of(io.BytesIO(data), path, longest=LARGEST))
    return json_value(text, path)


def items_of_list(path: str) -> Iterator[tuple[Location, Any]]:
    """The items of a JSON file that is a list, with their places.

    Raises:
        DataError: its name does not end in .json, or it is no list.
    """
    if ending(path) != ".json":
        hint = "Name it .json (a list) or .jsonl (an object a line)."
        raise DataError(path, None, "has an ending that tells no format.", hint)
    for i, item in enumerate(must_be(read_json_file(path), list, "the file", (path, None))):
        yield (f"{path}, item {i}", None), item


def must_be(value: object, kind: type[T], what: str, location: Location) -> T:
    """The value, if it is of this kind.

    Raises:
        DataError: it is not; the message names its kind.
    """
    if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    problem = f"{what} must be {_KINDS[kind]}, but is {_KINDS.get(type(value), 'something else')}."
    raise DataError(*location, problem)


def check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Raise a ConfigError unless the option `name` has one of the values that are allowed."""
    if value not in allowed:
        listed = f"{', '.join(allowed[:-1])} or {allowed[-1]}"
        raise ConfigError(f"`{name}` must be {listed}, but is {value!r}.")


_KINDS: dict[type, str] = {
    dict: "an object",
    list: "a list",
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    type(None): "missing (null)",
}
