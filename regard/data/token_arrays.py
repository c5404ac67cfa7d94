"""Examples as token ids in flat arrays: compact, and any of them become a batch at once.

A column of n examples is one array of all its ids, end to end, and n + 1 offsets into it. Ids take
two bytes where the vocabulary has at most 65,536 tokens, four otherwise: the 4.5 million sentence
pairs of WMT14 (about 270 million tokens) take 0.6 GB.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import torch

from regard.data.batches import Sequences
from regard.data.in_memory import is_path
from regard.data.readers import ReadReport, RowReader, open_table
from regard.errors import DataError, check_at_least, check_choice

_CHUNK = 512  # rows that are encoded together: their ids fit in the cache
_FEW = 8  # rows that are read before their lengths are looked at
_CHARACTERS = 1 << 22  # of rows that are encoded together
_DONE = {"skip": "example left out", "keep": "example kept", "truncate": "truncated"}
S = TypeVar("S")
T = TypeVar("T")
Chunk = list[tuple[int, list[str]]]  # lines, and the texts to encode


class TextTokenizer(Protocol):
    """What this module needs of a tokenizer."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""

    def encode_many(self, texts: list[str]) -> list[list[int]]:
        """The ids of each text."""


@dataclass(frozen=True)
class FieldEncoder:
    """How one field of a row becomes ids: `before`, then the text's ids, then `after`.

    name: of the field, for messages and reports
    column: of rows; "": that of this name
    max_length: the most ids, `before` and `after` included; None: any number
    too_long: for a longer text, raise an error, `truncate` it, or `skip` its row; both are counted
    prefix: text put before each text
    truncation_side: the end at which a text is truncated

    Raises:
        ConfigError: `too_long` is something else, or `max_length` leaves no room for a text.
    """

    name: str
    tokenizer: TextTokenizer
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    max_length: int | None = None
    too_long: Literal["error", "truncate", "skip"] = "error"
    prefix: str = ""
    truncation_side: Literal["left", "right"] = "right"
    column: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "column", self.column or self.name)
        check_choice("too_long", self.too_long, ("error", "truncate", "skip"))
        check_at_least(self.special_count + 1, max_length=self.max_length)

    @property
    def special_count(self) -> int:
        """How many ids are added to a text."""
        return len(self.before) + len(self.after)

    def encode_many(self, texts: list[str]) -> list[list[int]]:
        """The ids of each text between `before` and `after`, whatever their number."""
        before, after = list(self.before), list(self.after)
        return [[*before, *ids, *after] for ids in self.encode_without_special_tokens(texts)]

    def encode_without_special_tokens(self, texts: list[str]) -> list[list[int]]:
        """The ids of each text after `prefix`, without `before` and `after`."""
        if self.prefix:
            texts = [self.prefix + text for text in texts]
        return self.tokenizer.encode_many(texts)

    def over_limit(self, encoded: Sequence[Sequence[int]]) -> list[int]:
        """The indices of encoded texts longer than `max_length`."""
        limit = self.max_length
        return [] if limit is None else [i for i, ids in enumerate(encoded) if len(ids) > limit]

    def truncated(self, ids: list[int]) -> list[int]:
        """`max_length` of the ids, of which the first are `before` and the last are `after`."""
        assert self.max_length is not None
        if self.truncation_side == "left":
            return list(self.before) + ids[len(ids) - self.max_length + len(self.before) :]
        return ids[: self.max_length - len(self.after)] + list(self.after)


@dataclass(frozen=True, eq=False)
class TokenArray:
    """Sequences of ids end to end: `ids` (N,) uint16 or int32, `offsets` (sequences + 1,) int64."""

    ids: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of(cls, sequences: Iterable[Sequence[int]], vocab_size: int = 1 << 31) -> TokenArray:
        """The sequences in one array; `vocab_size` decides how many bytes an id takes."""
        ids, offsets = array(_typecode(vocab_size)), array("q", [0])
        for sequence in sequences:
            if isinstance(sequence, list):
                ids.fromlist(sequence)  # faster than `extend`
            else:
                ids.extend(sequence)
            offsets.append(len(ids))
        return cls(np.frombuffer(ids, ids.typecode), np.frombuffer(offsets, "q"))

    @classmethod
    def _of_lengths(cls, ids: np.ndarray, lengths: np.ndarray) -> TokenArray:
        return cls(ids, np.concatenate([[0], np.cumsum(lengths)]))

    @classmethod
    def concatenated(cls, parts: Sequence[TokenArray]) -> TokenArray:
        """The sequences of all parts, in order."""
        lengths = np.concatenate([part.lengths for part in parts])
        return cls._of_lengths(np.concatenate([part.ids for part in parts]), lengths)

    def joined(self) -> TokenArray:
        """All sequences as a single one."""
        return TokenArray(self.ids, np.array([0, len(self.ids)]))

    def reversed(self) -> TokenArray:
        """The last id first."""
        offsets = self.offsets[-1] - self.offsets[::-1]
        return TokenArray(np.ascontiguousarray(self.ids[::-1]), offsets)

    @cached_property
    def lengths(self) -> np.ndarray:
        """(sequences,) int64: the number of ids of each sequence."""
        return np.diff(self.offsets)

    @cached_property
    def checksum(self) -> int:
        """CRC-32 of all ids and offsets, by which data is recognized when a run resumes."""
        return zlib.crc32(self.offsets.tobytes(), zlib.crc32(self.ids.data))

    def __len__(self) -> int:
        """The number of sequences."""
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        """The ids of one sequence.

        Raises:
            IndexError: there is no such sequence.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"the index must be from 0 to {len(self) - 1}, but is {index}.")
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    def padded(self, indices: np.ndarray, pad: int | None) -> Sequences:
        """The sequences at `indices` (B,) as a batch (B, T), padded with `pad` (None: 0)."""
        lengths = self.lengths[indices]
        positions = np.arange(lengths.max(initial=0))
        inside = positions < lengths[:, None]  # (B, T)
        ids = np.full(inside.shape, pad or 0, np.int64)
        ids[inside] = self.ids[(self.offsets[indices][:, None] + positions)[inside]]
        return Sequences(torch.from_numpy(ids), torch.from_numpy(lengths))

    def select(self, keep: np.ndarray) -> TokenArray:
        """The sequences where `keep` (sequences,) is True."""
        return self._of_lengths(self.ids[np.repeat(keep, self.lengths)], self.lengths[keep])

    def truncated(self, lengths: np.ndarray, side: str = "right") -> TokenArray:
        """The first `lengths` (sequences,) ids of each sequence, or the last ones."""
        positions = np.arange(len(self.ids)) - np.repeat(self.offsets[:-1], self.lengths)
        if side == "left":
            positions = np.repeat(self.lengths, self.lengths) - 1 - positions
        return self._of_lengths(self.ids[positions < np.repeat(lengths, self.lengths)], lengths)

    def framed(self, before: tuple[int, ...], after: tuple[int, ...]) -> TokenArray:
        """Each sequence between `before` and `after`."""
        if not before and not after:
            return self
        lengths = self.lengths + len(before) + len(after)
        ends = np.cumsum(lengths)
        ids = np.empty(lengths.sum(), self.ids.dtype)
        inside = np.ones(len(ids), bool)
        for first, added in ((ends - lengths, before), (ends - len(after), after)):
            for offset, id in enumerate(added):
                ids[first + offset] = id
                inside[first + offset] = False
        ids[inside] = self.ids
        return self._of_lengths(ids, lengths)


@dataclass(frozen=True, eq=False)
class EncodedExamples:
    """Encoded rows: one `TokenArray` for each column, all of the same number of sequences."""

    columns: tuple[TokenArray, ...]
    report: ReadReport

    def __len__(self) -> int:
        """The number of examples."""
        return len(self.columns[0])


def encode(
    data: RowReader | Iterable[Any] | str,
    columns: Sequence[FieldEncoder],
    empty: Literal["keep", "skip"] = "skip",
) -> EncodedExamples:
    """Read all rows of `data` and encode of each the columns that the encoders are named after.

    Rows are read in chunks, so that only ids stay in memory.

    data: a reader or a file with these columns, or rows in memory, whose first columns these are
    empty: for a row with an empty field (white space alone), `keep` it or `skip` it

    Raises:
        ConfigError: `empty` is something else.
        DataError: a row cannot be read, is too long as the options say, or none is left.
    """
    check_choice("empty", empty, ("keep", "skip"))
    numbers = {field.column: number for number, field in enumerate(columns)}
    rows = open_table(data, {} if is_path(data) else numbers)
    encoding = _Encoding(rows, tuple(columns), empty)
    for chunk, fields in ahead(encoding.encoded, encoding.chunks()):
        encoding.add(chunk, fields)
    return encoding.done()


def encode_texts(
    texts: Iterable[str],
    tokenizer: TextTokenizer,
    *,
    first: Sequence[int] = (),
    after: Sequence[int] = (),
) -> TokenArray:
    """Texts end to end, a sequence each; only ids stay in memory.

    first: ids of a sequence before all texts
    after: ids at the end of every text
    """
    builder = _ArrayBuilder(tokenizer.vocab_size)
    if first:
        builder.add(TokenArray.of([first], tokenizer.vocab_size))

    def encoded(chunk: list[str]) -> TokenArray:
        return TokenArray.of(tokenizer.encode_many(chunk), tokenizer.vocab_size)

    for tokens in ahead(encoded, chunks_of(iter(texts), len)):
        builder.add(tokens.framed((), tuple(after)))
    return builder.done()


def chunks_of(items: Iterator[T], length: Callable[[T], int]) -> Iterator[list[T]]:
    """Up to `_CHUNK` items at a time; fewer where their lengths sum to over `_CHARACTERS`."""
    chunk: list[T] = []
    total = 0
    while first_items := list(islice(items, _FEW)):
        chunk += first_items
        total += sum(map(length, first_items))
        if len(chunk) >= _CHUNK or total > _CHARACTERS:
            yield chunk
            chunk, total = [], 0
    if chunk:
        yield chunk


def ahead(work: Callable[[S], T], parts: Iterator[S]) -> Iterator[T]:
    """`work(part)` for each part, in order; a thread works on the next one while one is used.

    Tokenizers compute on all cores without holding Python's lock, so that reading and storing cost
    nothing. Errors are raised in the order of the parts.
    """
    with ThreadPoolExecutor(1) as pool:
        waiting: list[Future[T]] = []
        failure = None
        while failure is None:
            try:
                waiting.append(pool.submit(work, next(parts)))
            except StopIteration:
                break
            except Exception as error:
                failure = error
            if len(waiting) > 1:
                yield waiting.pop(0).result()
        for future in waiting:
            yield future.result()
        if failure is not None:
            raise failure


def _typecode(vocab_size: int) -> str:
    return "H" if vocab_size <= 1 << 16 else "i"


class _ArrayBuilder:
    """Flat arrays that grow at the end; the finished `TokenArray` shares their memory."""

    def __init__(self, vocab_size: int):
        self.ids, self.offsets = array(_typecode(vocab_size)), array("q", [0])

    def add(self, tokens: TokenArray) -> None:
        self.ids.frombytes(tokens.ids.tobytes())
        self.offsets.frombytes((self.offsets[-1] + tokens.offsets[1:]).tobytes())

    def done(self) -> TokenArray:
        ids = np.frombuffer(self.ids, self.ids.typecode)
        return TokenArray(ids, np.frombuffer(self.offsets, "q"))


class _Encoding:
    """The work of `encode`: an array for each column, and the report."""

    def __init__(self, rows: RowReader, columns: tuple[FieldEncoder, ...], empty: str):
        self.rows, self.columns, self.empty = rows, columns, empty
        self.builders = [_ArrayBuilder(column.tokenizer.vocab_size) for column in columns]
        files = dict.fromkeys(rows.file_of(column.column) for column in columns)
        self.report = ReadReport(tuple(files))

    def chunks(self) -> Iterator[Chunk]:
        """The rows to encode, some hundreds at a time."""
        for chunk in chunks_of(self._texts(), lambda numbered: sum(map(len, numbered[1]))):
            self.report.read += len(chunk)
            yield [(line, texts) for line, texts in chunk if self._keeps(line, texts)]

    def _texts(self) -> Iterator[tuple[int, list[str]]]:
        names, text = [field.column for field in self.columns], self.rows.text
        for line, row in self.rows.numbered():
            yield line, [text(row, name, line) for name in names]

    def _keeps(self, line: int, texts: Sequence[str]) -> bool:
        """Whether a row is encoded; an empty field is noted."""
        complete = True
        for column, text in zip(self.columns, texts, strict=True):
            if text and not text.isspace():
                continue
            self.report.note(f"{column.name}: empty, {_DONE[self.empty]}", line)
            complete = self.empty == "keep"
        return complete

    def encoded(self, chunk: Chunk) -> tuple[Chunk, list[TokenArray]]:
        """A chunk with the ids of each of its columns."""
        fields = []
        for i, column in enumerate(self.columns):
            ids = column.encode_without_special_tokens([texts[i] for _, texts in chunk])
            fields.append(TokenArray.of(ids, column.tokenizer.vocab_size))
        return chunk, fields

    def add(self, chunk: Chunk, fields: list[TokenArray]) -> None:
        """Append the rows of a chunk that are not left out, truncated as the columns say."""
        keep = np.ones(len(chunk), bool)
        for i, column in enumerate(self.columns):
            if column.max_length is None:
                continue
            lengths = fields[i].lengths
            long = lengths + column.special_count > column.max_length
            for number in np.flatnonzero(long):
                self._note_long(i, chunk[number][0], int(lengths[number]) + column.special_count)
            if column.too_long == "skip":
                keep &= ~long
            elif long.any():
                limit = column.max_length - column.special_count
                shorter = np.minimum(lengths, limit)
                fields[i] = fields[i].truncated(shorter, column.truncation_side)
        for builder, column, ids in zip(self.builders, self.columns, fields, strict=True):
            selected = ids if keep.all() else ids.select(keep)
            builder.add(selected.framed(column.before, column.after))
        self.report.kept += int(keep.sum())

    def _note_long(self, i: int, line: int, length: int) -> None:
        column = self.columns[i]
        if column.too_long == "error":
            problem = f"the {column.name} has {length} tokens, more than {column.max_length}."
            hint = "Raise the limit if the model allows, or choose too_long = 'truncate' or 'skip'."
            raise DataError(self.rows.file_of(column.column), line, problem, hint)
        event = f"{column.name}: longer than {column.max_length} tokens"
        self.report.note(f"{event}, {_DONE[column.too_long]}", line)

    def done(self) -> EncodedExamples:
        if not self.report.kept:
            raise DataError(self.report.files[0], None, f"no example is left. {self.report}.")
        return EncodedExamples(tuple(builder.done() for builder in self.builders), self.report)
