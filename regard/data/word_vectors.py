"""Vectors of words that others trained, from the text files of GloVe and the files of word2vec.

    found = read_word_vectors("glove.6B.100d.txt", words)      for a list of words
    found.ids, found.vectors                                   (N,), (N, D): those that have one

GloVe's files have a word and its numbers on each line, word2vec's text files a first line with the
number of words and the width; word2vec's binary files have the same first line and float32 numbers
behind each word. Spaces or tabs separate. Files may be compressed, or be members of a zip archive.
Only the vectors of the words asked for stay.
"""

import re
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.data.files import LONGEST_LINE, open_bytes
from regard.errors import DataError

NUMBER = np.dtype("<f4")  # of binary files
LONGEST_WORD = 10_000  # bytes; a longer one means that the file is of another kind
WIDEST = 100_000
# The end of a word that is a number of its vector: whole numbers may be of a word with spaces.
LONGER = re.compile(rb"\s[-+]?(\d+\.\d*|\.\d+|\d+(?=e))(e[-+]?\d+)?\Z", re.IGNORECASE)

Entry = tuple[int, bytes, bytes | list[bytes]]  # the line, the word, and its vector


@dataclass(frozen=True, eq=False)
class PretrainedVectors:
    """The vectors of those of the words that the file has, exactly or in lower case.

    ids: (N,), the numbers of these words.  vectors: (N, D) float32.
    words: how many were asked for.  lowercased: how many were found in lower case alone.
    """

    ids: Tensor
    vectors: Tensor
    words: int
    lowercased: int

    @property
    def width(self) -> int:
        """D"""
        return self.vectors.size(1)

    def __str__(self) -> str:
        share = 100 * len(self.ids) / max(1, self.words)
        return (
            f"{len(self.ids):,} of {self.words:,} words ({share:.1f} %) have a vector of width "
            f"{self.width}, {self.lowercased:,} of them that of the word in lower case"
        )


def read_word_vectors(path: str | Path, words: Sequence[str]) -> PretrainedVectors:
    """The vectors of words; one that the file lacks takes that of the word in lower case.

    Where the file has a word twice, the first counts.

    Raises:
        DataError: the file does not exist or holds no vectors; a line has another number of
            numbers than the first one, or something that is no finite number; there are fewer words
            than the first line says. The line is named.
    """
    file = Path(path)
    forms = {word.encode() for word in words} | {word.lower().encode() for word in words}
    vector_of: dict[bytes, np.ndarray] = {}
    width = 0
    for numbers, line, word, values in _entries(file):
        width = numbers
        if word in forms and word not in vector_of:
            vector_of[word] = _numbers(values, file, line)
    exact = [vector_of.get(word.encode()) for word in words]
    chosen = [
        vector_of.get(word.lower().encode()) if vector is None else vector
        for word, vector in zip(words, exact, strict=True)
    ]
    ids = [n for n, vector in enumerate(chosen) if vector is not None]
    vectors = np.array([chosen[n] for n in ids], np.float32).reshape(len(ids), width)
    lowercased = sum(exact[n] is None for n in ids)
    return PretrainedVectors(torch.tensor(ids), torch.from_numpy(vectors), len(words), lowercased)


def _entries(file: Path) -> Iterator[tuple[int, int, bytes, bytes | list[bytes]]]:
    """Of each word the width of the file, its line, the word, and its vector as it is written."""
    with open_bytes(file) as stream:
        first = stream.readline(LONGEST_LINE).removeprefix(BOM_UTF8)
        words, width = _header(first) or (0, len(first.split()) - 1)
        if width < 1:
            raise DataError(file, 1, "is no word with its numbers.", "Is it a file of vectors?")
        if _header(first) is None:
            entries = _text(file, chain([first], stream), width, 1)
        elif _is_binary(stream, width):
            entries = _binary(file, stream, width)
        else:
            entries = _text(file, stream, width, 2)
        for entry in entries:
            words -= 1
            yield width, *entry
    if words > 0:
        problem = f"has {words:,} words fewer than its first line says."
        raise DataError(file, None, problem, "Is the file complete?")


def _header(line: bytes) -> tuple[int, int] | None:
    """The number of words and the width; None of another line."""
    parts = line.split()
    if len(parts) != 2 or not all(part.isdigit() for part in parts):
        return None
    words, width = map(int, parts)
    return (words, width) if 0 < width <= WIDEST else None


def _is_binary(stream: Any, width: int) -> bool:
    """Whether numbers follow the first word as bytes; nothing is read."""
    line, end, _ = stream.peek(8192)[:8192].partition(b"\n")
    numbers = line.split()[1:][-width:]  # a word may have spaces
    numbers = numbers if end else numbers[:-1]  # the last one may be cut
    try:
        [float(number) for number in numbers]
    except ValueError:
        return True
    return not numbers


def _text(file: Path, lines: Iterable[bytes], width: int, start: int) -> Iterator[Entry]:
    """Lines of a word, which may contain spaces, and `width` numbers; the first one is `start`."""
    for number, line in enumerate(lines, start):
        if not line.strip():
            continue
        parts = line.strip().rsplit(None, width)
        if len(parts) <= width:
            problem = f"has {len(parts) - 1} numbers behind the word, not {width}."
            raise DataError(file, number, problem, "Is the file complete?")
        if LONGER.search(parts[0]):
            problem = f"has more than {width} numbers behind the word."
            raise DataError(file, number, problem, "Is the width of its first line right?")
        yield number, parts[0], parts[1:]


def _binary(file: Path, stream: Any, width: int) -> Iterator[Entry]:
    """Words up to a space, and `width` numbers of 4 bytes."""
    size = width * NUMBER.itemsize
    for number in count(2):
        word = bytearray()
        while (byte := stream.read(1)) not in (b" ", b"") and len(word) <= LONGEST_WORD:
            if byte != b"\n" or word:  # some programs end every vector with a line end
                word += byte
        if not word:
            return
        values = stream.read(size)
        if len(values) < size or len(word) > LONGEST_WORD:
            problem = f"word {number - 1} has no vector of {width} numbers behind it."
            raise DataError(file, None, problem, "Is the file complete?")
        yield number, bytes(word), values


def _numbers(values: bytes | list[bytes], file: Path, line: int) -> np.ndarray:
    try:
        if isinstance(values, bytes):
            numbers = np.frombuffer(values, NUMBER)
        else:
            with np.errstate(over="ignore"):  # beyond float32 is infinite
                numbers = np.array([float(value) for value in values]).astype(np.float32)
    except ValueError:
        raise DataError(file, line, "has something that is no number behind the word.") from None
    if not np.isfinite(numbers).all():
        raise DataError(file, line, "has a number that is infinite or NaN.")
    return numbers
