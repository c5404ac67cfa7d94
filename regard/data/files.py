"""Files of text as streams of lines: compressed or not, strictly UTF-8; errors name the line.

A path may name a member of an archive: `corpus.zip!train/fra.txt`. Files and members that end in
`.gz`, `.bz2` or `.xz` are decompressed on the way. A line ends with `\\n` or `\\r\\n` and
with nothing else: form feeds, U+2028, lone `\\r` and NUL are characters like all others. (A file
without one line feed, but with carriage returns, is an error.) A byte order mark is dropped.
"""

import bz2
import gzip
import hashlib
import io
import lzma
import re
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from regard.errors import DataError

COMPRESSED: dict[str, Any] = {".gz": gzip.GzipFile, ".bz2": bz2.BZ2File, ".xz": lzma.LZMAFile}
_DAMAGED = (
    *(EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, gzip.BadGzipFile),
    *(RuntimeError, NotImplementedError),  # zip: a password, a method that is not known
)
_MAGIC = {
    b"\x1f\x8b": "looks like gzip data: give it the ending .gz",
    b"BZh": "looks like bzip2 data: give it the ending .bz2",
    b"\xfd7zXZ": "looks like xz data: give it the ending .xz",
    b"PK\x03\x04": "looks like a zip archive: give it the ending .zip",
    b"\xff\xfe": "looks like UTF-16. Convert it: iconv -f UTF-16 -t UTF-8",
    b"\xfe\xff": "looks like UTF-16. Convert it: iconv -f UTF-16 -t UTF-8",
}
# The format of a file by its ending; of any other ending it is lines.
ENDINGS = {f".{name}": name for name in ("tsv", "csv", "jsonl", "parquet")}
ENDINGS |= {".json": "jsonl", ".ndjson": "jsonl"}
_BLOCK = 1 << 15  # bytes that are read together
LONGEST_LINE = 1 << 24  # bytes of a line that is a row, and characters of a row of several lines
LONGEST_TEXT = 1 << 28  # bytes of a line of running text: text8 is one line of 100 MB


class DamagedFile(DataError):
    """A compressed file cannot be decompressed, or not to its end."""


@contextmanager
def open_bytes(path: str | Path) -> Iterator[BinaryIO]:
    """The decompressed bytes of a file, or of a member of a zip archive (`x.zip!member`).

    Raises:
        DataError: it does not exist, cannot be read or cannot be decompressed.
    """
    archive, member = split_member(path)
    check_file(archive)
    with _located_errors(path), _opened(archive, member) as stream:
        yield stream


def lines(path: str | Path, longest: int = LONGEST_LINE) -> Iterator[str]:
    """The lines of a UTF-8 file, without their ends, one at a time.

    Raises:
        DataError: it cannot be read, is not UTF-8, or a line has more than `longest` bytes.
    """
    return chain.from_iterable(map(without_ends, blocks_of_file(path, longest)))


def without_ends(block: Sequence[Any]) -> list[Any]:
    """Lines without their line ends; errors as they are."""
    return [
        line.removesuffix("\n")
        if type(line) is str and line[-2:] != "\r\n"
        else line[:-2]
        if type(line) is str
        else line
        for line in block
    ]


def blocks_of_file(
    path: str | Path, longest: int = LONGEST_LINE, keep_errors: bool = False
) -> Iterator[list[Any]]:
    """As `line_blocks`, of a file.

    Raises:
        DataError: also if the file cannot be opened.
    """
    with open_bytes(path) as stream:
        yield from line_blocks(stream, path, longest, keep_errors)


def line_blocks(
    stream: Any, name: str | Path, longest: int = LONGEST_LINE, keep_errors: bool = False
) -> Iterator[list[Any]]:
    """The lines of an open stream of bytes, such as `sys.stdin.buffer`, each with its line end; as
    many together as one read of the stream gives. A longer line is never in memory as a whole.

    keep_errors: whether a line that is not UTF-8 is its `DataError`, and is not raised.

    Raises:
        DataError: a line is too long or not UTF-8, or the file is damaged or no text at all.
    """
    number, parts, size = 0, list[bytes](), 0
    try:
        while True:
            block = stream.read1(_BLOCK)
            whole, end, rest = block.rpartition(b"\n")
            if end or not block:
                text_lines = _decoded(b"".join([*parts, whole, end]), name, number, longest)
                if not keep_errors and DataError in map(type, text_lines):
                    error = next(line for line in text_lines if isinstance(line, DataError))
                    yield text_lines[: text_lines.index(error)]
                    raise error
                number += len(text_lines)
                yield text_lines
                parts, size = [], 0
            if not block:
                return
            parts.append(rest)
            size += len(rest)
            if size > longest:
                _decoded(b"".join(parts), name, number, longest)  # raises the error
    except (*_DAMAGED, OSError) as error:
        raise _damaged(name, error, number) from error


def _decoded(raw: bytes, name: str | Path, before: int, longest: int) -> list[Any]:
    """The lines of these bytes, of which `before` others are before them."""
    if len(raw) > longest:
        for number, line in enumerate(io.BytesIO(raw), before + 1):
            if len(line) > longest:
                problem = f"the line has more than {longest:,} bytes."
                hint = "Is this the right file? A long text is read with format = 'text'."
                raise DataError(name, number, problem, hint)
    try:
        text_lines: list[Any] = [*io.StringIO(raw.decode())]
    except UnicodeDecodeError:
        numbered = enumerate(io.BytesIO(raw), before + 1)
        text_lines = [_line_or_error(line, name, number) for number, line in numbered]
    if not before and text_lines and isinstance(first := text_lines[0], str):
        if "\r" in first and not first.endswith("\n"):
            problem = "lines end in carriage returns alone, which are no line ends here."
            hint = r"Convert the file first: tr '\r' '\n' < FILE > NEW"
            raise DataError(name, 1, problem, hint)
        text_lines[0] = first.removeprefix("\ufeff")
    return text_lines


def _line_or_error(raw: bytes, name: str | Path, number: int) -> str | DataError:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        return _not_utf8(name, number, error)


def hash_of(path: str | Path) -> str:
    """SHA-256 (hex) of the bytes of a file, not decompressed; or of a member, `x.zip!member`, as it
    is read.

    Raises:
        DataError: it does not exist or cannot be read.
    """
    archive, member = split_member(path)
    check_file(archive)
    digest = hashlib.sha256()
    with _located_errors(path), open_bytes(path) if member else open(archive, "rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def split_member(path: str | Path) -> tuple[Path, str]:
    """`("x.zip", "member")` for the path "x.zip!member"; `(path, "")` for any other."""
    match = re.search(r"\.zip!", text := str(path), re.IGNORECASE)
    if match is None:
        return Path(path), ""
    return Path(text[: match.end() - 1]), text[match.end() :]


def ending(path: str | Path) -> str:
    """The ending without compression, in lower case: ".tsv" for "a.tsv.gz", "a.tsv.zip" and
    "b.zip!c.tsv"."""
    archive, member = split_member(path)
    name = Path(member) if member else archive
    name = name.with_suffix("") if name.suffix.lower() in (*COMPRESSED, ".zip") else name
    return name.suffix.lower()


def is_file_name(text: str) -> bool:
    """Whether a text is the name of a file that exists."""
    try:
        return bool(text.strip()) and Path(text).is_file()
    except (OSError, ValueError):  # too long for a name; a zero byte
        return False


def delimiter_hint(columns: Sequence[str]) -> str:
    """Begins the message on a table whose only column seems to hold several; else ""."""
    sign = next((sign for sign in ";\t|" if len(columns) == 1 and sign in columns[0]), None)
    if sign is None:
        return ""
    quoted = f"{'$' * (sign == chr(9))}{sign!r}"  # as a shell reads it
    return f"may have the `delimiter` {sign!r} (in [data], or --delimiter {quoted}): "


def check_file(path: Path) -> None:
    """Raise a DataError unless the path is a file; offers the nearest name that exists."""
    try:
        if path.is_file():
            return
        if path.is_dir():
            held = ", ".join(sorted(child.name for child in path.iterdir())[:5])
            hint = f"It holds: {held or 'nothing'}."
            raise DataError(path, None, "is a folder, not a file.", hint)
        if path.exists():
            raise DataError(path, None, "is a pipe or a device, not a file.")
        missing = path
        while not missing.parent.is_dir():
            missing = missing.parent
        siblings = [child.name for child in missing.parent.iterdir()]
        hint = _nearest(missing.name, siblings, missing.parent)
    except OSError as error:  # a name that is too long, a folder that may not be read
        raise DataError(path, None, f"cannot be read: {error.strerror}.") from None
    raise DataError(path, None, "does not exist.", hint)


@contextmanager
def _located_errors(path: str | Path) -> Iterator[None]:
    try:
        yield
    except (*_DAMAGED, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise DataError(path, None, f"cannot be read: {error.strerror}.") from error
        raise _damaged(path, error) from error


@contextmanager
def _opened(path: Path, member: str) -> Iterator[BinaryIO]:
    with open(path, "rb") as file:
        if path.suffix.lower() == ".zip":
            with zipfile.ZipFile(file) as archive:
                name = _member(path, member, archive)
                with archive.open(name) as packed, _decompressed(packed, name) as stream:
                    # `readline` of a member itself reads single bytes.
                    yield io.BufferedReader(stream) if stream is packed else stream  # type: ignore[type-var]
        else:
            with _decompressed(file, path.name) as stream:
                yield stream


def _decompressed(file: Any, name: str) -> Any:
    """The decompressed bytes of an open file of this name; itself where it is not compressed."""
    kind = COMPRESSED.get(Path(name).suffix.lower())
    return file if kind is None else kind(fileobj=file) if kind is gzip.GzipFile else kind(file)


def _member(path: Path, member: str, archive: zipfile.ZipFile) -> str:
    names = [name for name in archive.namelist() if not name.endswith("/")]
    if member in names:
        return member
    if not member and len(names) == 1:
        return names[0]
    if not member:
        problem = f"holds {len(names)} files; say which one."
        raise DataError(path, None, problem, f"Such as {path.name}!{names[0]}" if names else "")
    raise DataError(path, None, f"has no member {member!r}.", _nearest(member, names, path))


def _nearest(name: str, names: list[str], where: Path) -> str:
    close = get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f"Did you mean {close[0]!r}?"
    listed = ", ".join(sorted(names)[:5])
    return f"{where} holds: {listed or 'nothing'}{', …' if len(names) > 5 else ''}."


def _not_utf8(name: str | Path, line: int, error: UnicodeDecodeError) -> DataError:
    """The error for a line.

    Raises:
        DataError: it is the first one, and the file is of another kind.
    """
    at = error.start
    problem = f"byte 0x{error.object[at]:02X} at position {at + 1} of the line is not UTF-8."
    for magic, description in _MAGIC.items():
        if line == 1 and error.object.startswith(magic):
            raise DataError(name, line, problem, f"The file {description}.") from error
    hint = "Convert the file first, for example: iconv -f LATIN1 -t UTF-8 FILE > NEW"
    return DataError(name, line, problem, hint)


def _damaged(name: str | Path, error: Exception, lines_read: int | None = None) -> DamagedFile:
    after = "" if lines_read is None else f" after line {lines_read}"
    problem = f"cannot be decompressed{after}: {error}."
    return DamagedFile(name, None, problem, "The file is damaged or cut short; fetch it again.")
