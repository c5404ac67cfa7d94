"""Examples as token ids in flat arrays: compact, and any rows of them become a batch at once.

A field of n examples is one array of all its ids, end to end, and n + 1 offsets into it. Ids take
two bytes where the vocabulary has at most 65,536 pieces, four otherwise: the 4.5 million sentence
pairs of WMT14 (about 270 million tokens) take 0.6 GB.
"""

from __future__ import annotations

import zlib
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import torch

from regard.data.batches import Sequences
from regard.data.readers import Row, RowReader, read
from regard.errors import ConfigError, DataError

_CHUNK = 512  # rows that are encoded together: what they need lies in the cache
_FEW = 8  # rows that are read before their lengths are looked at
_CHARACTERS = 1 << 22  # of rows that are encoded together
T = TypeVar("T")
Chunk = list[tuple[int, Row]]


class TextTokenizer(Protocol):
    """What this module needs of a tokenizer."""

    @property
    def vocab_size(self) -> int: ...
    def encode_many(self, texts: list[str]) -> list[list[int]]: ...


@dataclass(frozen=True)
class FieldEncoder:
    """How one field of a row becomes ids: `before`, then the text's ids, then `after`.

    `max_length` limits the whole, `before` and `after` included. What is longer is an error, loses
    the end of its text (`truncate`), or leaves its whole row out (`skip`); both are counted.
    """

    name: str
    tokenizer: TextTokenizer
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    max_length: int | None = None
    too_long: Literal["error", "truncate", "skip"] = "error"

    def __post_init__(self) -> None:
        if self.too_long not in ("error", "truncate", "skip"):
            raise ConfigError(
                f"`too_long` must be error, truncate or skip, but is {self.too_long!r}."
            )
        least = len(self.before) + len(self.after) + 1
        if self.max_length is not None and self.max_length < least:
            raise ConfigError(f"`max_length` must be at least {least}, but is {self.max_length}.")

    def encode_many(self, texts: list[str]) -> list[list[int]]:
        """The ids of each text between `before` and `after`, whatever their number."""
        before, after = list(self.before), list(self.after)
        return [[*before, *ids, *after] for ids in self.tokenizer.encode_many(texts)]

    def long_ones(self, rows: Sequence[Sequence[int]]) -> list[int]:
        """Which of the rows of ids are longer than `max_length`."""
        most = self.max_length
        return [] if most is None else [i for i, ids in enumerate(rows) if len(ids) > most]

    def truncated(self, ids: list[int]) -> list[int]:
        """The first `max_length` ids, of which the last are `after`."""
        assert self.max_length is not None
        return ids[: self.max_length - len(self.after)] + list(self.after)


@dataclass
class ReadReport:
    """What became of the rows that were read: nothing is left out or cut without being counted.

    `events` maps what happened ("source: empty, row left out") to how often and to the line where
    it happened first (or the question, in a file without lines: `unit` says which).
    """

    files: tuple[str, ...]
    read: int = 0
    kept: int = 0
    events: dict[str, dict[str, int]] = field(default_factory=dict)
    unit: str = "line"

    def note(self, event: str, line: int) -> None:
        """Count one more of an event, which happened on this line."""
        self.events.setdefault(event, {"count": 0, "first_line": line})["count"] += 1

    def __str__(self) -> str:
        said = [f"{' and '.join(self.files)}: {self.read:,} rows read, {self.kept:,} kept"]
        for event, seen in self.events.items():
            said.append(f"{event}: {seen['count']:,} (first at {self.unit} {seen['first_line']})")
        return "; ".join(said)


@dataclass(frozen=True, eq=False)
class TokenArray:
    """Rows of ids end to end: `ids` (N,) uint16 or int32, `offsets` (rows + 1,) int64."""

    ids: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of(cls, rows: Iterable[Sequence[int]], vocab_size: int = 1 << 31) -> TokenArray:
        """The rows in one array; `vocab_size` decides how many bytes an id takes."""
        growing = _ArrayBuilder(vocab_size)
        growing.extend(rows)
        return growing.done()

    @cached_property
    def lengths(self) -> np.ndarray:
        """(rows,) int64: how many ids each row has."""
        return np.diff(self.offsets)

    @cached_property
    def checksum(self) -> int:
        """A CRC-32 of all ids and offsets: tells data that changed from data that did not."""
        return zlib.crc32(self.offsets.tobytes(), zlib.crc32(self.ids.data))

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        """The ids of one row."""
        if not 0 <= row < len(self):
            raise IndexError(f"row must be from 0 to {len(self) - 1}, but is {row}")
        return self.ids[self.offsets[row] : self.offsets[row + 1]]

    def padded(self, rows: np.ndarray, pad: int | None) -> Sequences:
        """These rows as a batch (B, T), T the longest; `pad` (None: 0) stands after the ends."""
        lengths = self.lengths[rows]
        places = np.arange(lengths.max(initial=0))
        inside = places < lengths[:, None]  # (B, T)
        ids = np.full(inside.shape, pad or 0, np.int64)
        ids[inside] = self.ids[(self.offsets[rows][:, None] + places)[inside]]
        return Sequences(torch.from_numpy(ids), torch.from_numpy(lengths))


@dataclass(frozen=True, eq=False)
class EncodedExamples:
    """Encoded rows: one `TokenArray` for each column, all of the same number of rows."""

    columns: tuple[TokenArray, ...]
    report: ReadReport

    def __len__(self) -> int:
        """The number of examples."""
        return len(self.columns[0])


def encode(
    data: RowReader | Iterable[Any] | str,
    columns: Sequence[FieldEncoder],
    empty: Literal["error", "keep", "skip"] = "skip",
) -> EncodedExamples:
    """Read all rows of `data` and encode field i of each with `columns[i]`.

    A row with an empty field (white space alone) is left out (`skip`), encoded like others (`keep`)
    or an error. Rows pass in chunks, so that only ids stay in memory. Nothing left is an error.
    """
    if empty not in ("error", "keep", "skip"):
        raise ConfigError(f"`empty` must be error, keep or skip, but is {empty!r}.")
    rows = data if isinstance(data, RowReader) else read(data)
    encoding = _Encoding(rows, tuple(columns), empty)
    for chunk in _ahead(encoding.encoded, encoding.chunks()):
        encoding.add(*chunk)
    return encoding.done()


def encode_texts(
    texts: Iterable[str],
    tokenizer: TextTokenizer,
    *,
    first: Sequence[int] = (),
    after: Sequence[int] = (),
) -> TokenArray:
    """Texts end to end, a row each, with `after` behind every one; `first` is a row before them.

    Only ids stay in memory, as with `encode`.
    """
    growing = _ArrayBuilder(tokenizer.vocab_size)
    if first:
        growing.extend([first])

    def encoded(chunk: list[str]) -> _RaggedIds:
        return _RaggedIds.of(tokenizer.encode_many(chunk), growing.ids.typecode)

    several = iter(texts)
    for rows in _ahead(encoded, _chunks(several, len)):
        growing.add(rows.framed((), tuple(after)))
    return growing.done()


def _chunks(items: Iterator[T], length: Callable[[T], int]) -> Iterator[list[T]]:
    """Up to `_CHUNK` items at a time; fewer where their `length` adds up to much."""
    chunk: list[T] = []
    total = 0
    while few := list(islice(items, _FEW)):
        chunk += few
        total += sum(map(length, few))
        if len(chunk) >= _CHUNK or total > _CHARACTERS:
            yield chunk
            chunk, total = [], 0
    if chunk:
        yield chunk


def _ahead(work: Callable[[Any], Any], parts: Iterator[Any]) -> Iterator[Any]:
    """`work(part)` for each part, in order; the next is worked on, in a thread, while one is used.

    Tokenizers compute on all cores without holding Python up, so that reading and storing cost
    nothing. What goes wrong does so in the order of the parts.
    """
    with ThreadPoolExecutor(1) as pool:
        waiting: deque[Future[Any]] = deque()
        more = True
        while more:
            try:
                waiting.append(pool.submit(work, next(parts)))
            except StopIteration:
                more = False
            except Exception as error:
                waiting.append(Future())
                waiting[-1].set_exception(error)
                more = False
            if len(waiting) > 1:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


@dataclass(frozen=True)
class _RaggedIds:
    """Rows of ids end to end, and the length of each."""

    ids: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of(cls, rows: Sequence[list[int]], kind: str) -> _RaggedIds:
        ids = array(kind)
        for row in rows:
            ids.fromlist(row)
        return cls(np.frombuffer(ids, kind), np.fromiter(map(len, rows), np.int64, len(rows)))

    def rows(self, keep: np.ndarray) -> _RaggedIds:
        """Those where `keep` (rows,) is True."""
        return _RaggedIds(self.ids[np.repeat(keep, self.lengths)], self.lengths[keep])

    def shortened(self, lengths: np.ndarray) -> _RaggedIds:
        """The first ids of each row, so many."""
        starts = np.cumsum(self.lengths) - self.lengths
        places = np.arange(len(self.ids)) - np.repeat(starts, self.lengths)
        return _RaggedIds(self.ids[places < np.repeat(lengths, self.lengths)], lengths)

    def framed(self, before: tuple[int, ...], after: tuple[int, ...]) -> _RaggedIds:
        """Each row between these."""
        if not before and not after:
            return self
        lengths = self.lengths + len(before) + len(after)
        ends = np.cumsum(lengths)
        ids = np.empty(lengths.sum(), self.ids.dtype)
        inside = np.ones(len(ids), bool)
        for first, pieces in ((ends - lengths, before), (ends - len(after), after)):
            for place, piece in enumerate(pieces):
                ids[first + place] = piece
                inside[first + place] = False
        ids[inside] = self.ids
        return _RaggedIds(ids, lengths)


class _ArrayBuilder:
    """Flat arrays that grow at the end without ever being copied whole at finish."""

    def __init__(self, vocab_size: int):
        self.ids = array("H" if vocab_size <= 1 << 16 else "i")
        self.offsets = array("q", [0])

    def extend(self, rows: Iterable[Sequence[int]]) -> None:
        rows = list(rows)
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        flat = np.fromiter(chain.from_iterable(rows), self.ids.typecode, int(lengths.sum()))
        self.add(_RaggedIds(flat, lengths))

    def add(self, rows: _RaggedIds) -> None:
        self.ids.frombytes(rows.ids.tobytes())
        self.offsets.frombytes((self.offsets[-1] + np.cumsum(rows.lengths)).tobytes())

    def done(self) -> TokenArray:
        return TokenArray(
            np.frombuffer(self.ids, self.ids.typecode), np.frombuffer(self.offsets, "q")
        )


class _Encoding:
    """The work of `encode`: columns that grow, and the report of what was met."""

    def __init__(self, rows: RowReader, columns: tuple[FieldEncoder, ...], empty: str):
        self.rows, self.columns, self.empty = rows, columns, empty
        self.growing = [_ArrayBuilder(column.tokenizer.vocab_size) for column in columns]
        files = dict.fromkeys(rows.file_of(i) for i in range(len(columns)))
        self.report = ReadReport(tuple(files))

    def chunks(self) -> Iterator[Chunk]:
        """The rows that are encoded, some thousands at a time."""
        numbered = self.rows.numbered()
        for chunk in _chunks(numbered, lambda numbered_row: sum(map(len, numbered_row[1]))):
            self.report.read += len(chunk)
            if not self._are_whole([row for _, row in chunk]):
                chunk = [(line, row) for line, row in chunk if self._is_whole(line, row)]
            yield chunk

    def encoded(self, chunk: Chunk) -> tuple[Chunk, list[_RaggedIds]]:
        """A chunk with the ids of each of its columns."""
        fields = []
        for i, (column, growing) in enumerate(zip(self.columns, self.growing, strict=True)):
            rows = column.tokenizer.encode_many([row[i] for _, row in chunk])
            fields.append(_RaggedIds.of(rows, growing.ids.typecode))
        return chunk, fields

    def add(self, chunk: Chunk, fields: list[_RaggedIds]) -> None:
        keep = np.ones(len(chunk), bool)
        for i, column in enumerate(self.columns):
            if column.max_length is None:
                continue
            around = len(column.before) + len(column.after)
            lengths = fields[i].lengths
            long = lengths + around > column.max_length
            for place in np.flatnonzero(long):
                self._note_long(i, chunk[place][0], int(lengths[place]) + around)
            if column.too_long == "skip":
                keep &= ~long
            elif long.any():
                fields[i] = fields[i].shortened(np.minimum(lengths, column.max_length - around))
        for growing, column, rows in zip(self.growing, self.columns, fields, strict=True):
            kept = rows if keep.all() else rows.rows(keep)
            growing.add(kept.framed(column.before, column.after))
        self.report.kept += int(keep.sum())

    def _are_whole(self, rows: list[Row]) -> bool:
        """Whether no row of a chunk needs a closer look."""
        count = len(self.columns)
        return all(len(row) == count for row in rows) and not any(
            not text or text.isspace() for row in rows for text in row
        )

    def done(self) -> EncodedExamples:
        if not self.report.kept:
            raise DataError(self.report.files[0], None, f"no example is left. {self.report}.")
        return EncodedExamples(tuple(growing.done() for growing in self.growing), self.report)

    def _is_whole(self, line: int, row: Row) -> bool:
        if len(row) != len(self.columns):
            names = ", ".join(column.name for column in self.columns)
            problem = f"has {len(row)} fields, but {len(self.columns)} are needed: {names}."
            raise DataError(self.rows.file_of(0), line, problem)
        whole = True
        for i, (column, text) in enumerate(zip(self.columns, row, strict=True)):
            if text and not text.isspace():
                continue
            if self.empty == "error":
                hint = "Fill it, or choose empty = 'skip' or 'keep'."
                raise DataError(self.rows.file_of(i), line, f"the {column.name} is empty.", hint)
            self.report.note(f"{column.name}: empty, {_DONE[self.empty]}", line)
            whole = self.empty == "keep"
        return whole

    def _note_long(self, i: int, line: int, length: int) -> None:
        column = self.columns[i]
        if column.too_long == "error":
            problem = f"the {column.name} has {length} tokens, more than {column.max_length}."
            hint = "Raise the limit if the model allows, or choose too_long = 'truncate' or 'skip'."
            raise DataError(self.rows.file_of(i), line, problem, hint)
        what = f"{column.name}: longer than {column.max_length} tokens"
        self.report.note(f"{what}, {_DONE[column.too_long]}", line)


_DONE = {"skip": "row left out", "keep": "row kept", "truncate": "truncated"}
