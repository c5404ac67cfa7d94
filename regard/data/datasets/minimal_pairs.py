"""Minimal pairs, of which one sentence is grammatical: BLiMP (Warstadt et al. 2020), or others."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from os import PathLike
from pathlib import Path, PurePath
from typing import Any
from zipfile import BadZipFile, ZipFile

from regard.data.datasets.records import RecordReader, Source, items_of, must_be
from regard.data.files import check_file, split_member
from regard.data.readers import Location, field_value
from regard.data.token_arrays import ReadReport
from regard.errors import ConfigError, DataError, check_at_least

_FIELDS = (("sentence_good", "good"), ("sentence_bad", "bad"))
_ENDINGS = (".jsonl", ".ndjson")


@dataclass(frozen=True)
class MinimalPair:
    """good: the grammatical sentence.  bad: the other one.  name: of the set that has this pair."""

    good: str
    bad: str
    name: str


def read_minimal_pairs(
    data: str | PathLike[str] | Iterable[Any], *, pairs_per_set: int | None = None
) -> list[MinimalPair]:
    """The pairs of a file, of all `.jsonl` files of a folder or of a zip archive, or of anything to
    loop over.

    Args:
        data: each line or item is an object with `sentence_good` and `sentence_bad`, and the name
            of its set as `UID`, as BLiMP has them; or with `good` and `bad`. Without `UID`, the set
            is the file.
        pairs_per_set: the first so many pairs of each file; None: all.

    Raises:
        ConfigError: `pairs_per_set` is below 1.
        DataError: a file cannot be read, or a pair is malformed; there is no pair.
    """
    check_at_least(1, pairs_per_set=pairs_per_set)
    sources = _files(data) if isinstance(data, str | PathLike) else [data]
    readers = (RecordReader(source, _read, "minimal pair", unit="line") for source in sources)
    return [pair for reader in readers for pair in islice(reader, pairs_per_set)]


def _files(path: str | PathLike[str]) -> list[str]:
    """The file itself, or the .jsonl files of a folder or a zip archive by name."""
    path = Path(path)
    if path.is_dir():
        files = [str(file) for file in path.rglob("*") if file.suffix in _ENDINGS]
    elif path.suffix.lower() == ".zip":
        files = [f"{path}!{member}" for member in _members(path)]
    else:
        return [str(path)]
    if not files:
        raise DataError(path, None, "has no .jsonl file.", "Each line must be a minimal pair.")
    return sorted(files)


def _members(path: Path) -> list[str]:
    """The .jsonl files of an archive, without those that macOS adds to it."""
    check_file(path)
    try:
        names = ZipFile(path).namelist()
    except BadZipFile as error:
        raise DataError(path, None, f"is no zip archive: {error}.") from None
    return [n for n in names if PurePath(n).suffix in _ENDINGS and "__MACOSX" not in n]


def _read(source: Source, report: ReadReport) -> Iterator[tuple[int, MinimalPair]]:
    items = items_of(source)
    if items is None:
        raise ConfigError(f"{source} must end in .jsonl, .ndjson or .zip, or be a folder of such.")
    for number, (location, item) in enumerate(items, 1):
        report.read += 1
        yield number, _pair(item, location)


def _pair(item: object, location: Location) -> MinimalPair:
    if isinstance(item, MinimalPair):
        return item
    record = must_be(item, dict, "a minimal pair", location)
    sentences = []
    for names in _FIELDS:
        value = field_value(record, next((n for n in names if n in record), names[0]), location)
        if not must_be(value, str, names[0], location).strip():
            raise DataError(*location, f"{names[0]} must have a word, but is {value!r}.")
        sentences.append(value)
    file, member = split_member(location[0])
    good, bad = sentences
    return MinimalPair(good, bad, str(record.get("UID") or PurePath(member or file).stem))
