"""Texts to process: those of the command line, or the lines of standard input as they arrive."""

import sys
from collections import deque
from collections.abc import Iterator, Sequence
from typing import IO, Any, cast

from regard.cli.console import say
from regard.data.files import ending, is_file_name, lines_of
from regard.data.text_chunks import MAX_TEXTS, Chunk
from regard.errors import DataError

STANDARD_INPUT = "standard input"
BLOCK = 1 << 16  # bytes read at once
TABLES = (".csv", ".tsv", ".jsonl", ".json", ".ndjson", ".parquet")  # what `open_table` reads
NOT_UTF8 = ("has bytes that are not UTF-8.", "Give the text as UTF-8.")


LINES = "< {}, without the name as a text"  # how a file is given to a command that reads lines


def hint_at_file(texts: Sequence[str] | None, given: str = LINES, table: str = "") -> None:
    """Ask what is meant where one of the texts is the name of a file.

    given: how a file is given to the command.  table: how a table is, where in another way.
    """
    for text in filter(is_file_name, texts or ()):
        meant = (table if table and ending(text) in TABLES else given).format(text)
        return say(f"{text!r} is processed as a text, but is a file. Did you mean {meant}?")


def chunks_of(texts: Sequence[str] | None) -> Iterator[Chunk]:
    """The given texts; those of standard input where there are none, or "-" alone.

    Raises:
        DataError: a text is not UTF-8; those before it have been yielded.
    """
    if not texts or list(texts) == ["-"]:
        yield from _arriving(sys.stdin.buffer)
        return
    chunk = Chunk(0, list(texts), "text")
    wrong = next((index for index, text in enumerate(texts) if not _is_utf8(text)), None)
    if wrong is None:
        yield chunk
    else:
        if wrong:
            yield chunk.until(wrong)
        raise chunk.error(wrong, *NOT_UTF8)


def checked_argument(text: str) -> str:
    """A text of the command line.

    Raises:
        DataError: it is not UTF-8.
    """
    if not _is_utf8(text):
        raise DataError("text", None, *NOT_UTF8)
    return text


def _is_utf8(text: str) -> bool:
    """Python decodes bytes of the command line that are not UTF-8 to lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class ArrivingLines:
    """The lines of a stream of bytes; `waiting` has those that were read and not yet yielded."""

    def __init__(self, stream: Any):
        self.stream = stream
        self.waiting: deque[bytes] = deque()

    def __iter__(self) -> Iterator[bytes]:
        rest = b""
        while block := self.stream.read1(BLOCK):
            *whole, rest = (rest + block).split(b"\n")
            self.waiting.extend(whole)
            while self.waiting:
                yield self.waiting.popleft() + b"\n"
        if rest:
            yield rest


def _arriving(stream: Any) -> Iterator[Chunk]:
    """The lines of a stream; what has been read is yielded before more is waited for.

    Raises:
        DataError: a line is not UTF-8; those before it have been yielded.
    """
    source, first, texts = ArrivingLines(stream), 0, list[str]()
    try:
        for text in lines_of(cast("IO[bytes]", source), STANDARD_INPUT):
            texts.append(text)
            if not source.waiting or len(texts) == MAX_TEXTS:
                yield Chunk(first, texts, STANDARD_INPUT)
                first, texts = first + len(texts), []
    except DataError:
        if texts:
            yield Chunk(first, texts, STANDARD_INPUT)
        raise
