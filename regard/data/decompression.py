"""The decompressed bytes of `.gz`, `.bz2`, `.xz` and `.zst` files.

A file may have several members, one after the other, as `cat a.gz b.gz` writes them; zeros between
and after them are skipped. Other bytes after a member raise an error. Python's own `bz2` and `lzma`
files end there without one, so that a file of many members with a damaged one would lose its rest.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
from collections.abc import Callable
from typing import Any, BinaryIO, Protocol, cast

from regard.errors import MissingExtra

BLOCK = 1 << 16  # compressed bytes that are read at once


class DamagedMember(Exception):
    """Compressed data are cut short or have wrong bytes."""


class Decompressor(Protocol):
    """What decompresses one member, as in `bz2`, `lzma` and `compression.zstd`."""

    eof: bool
    needs_input: bool
    unused_data: bytes

    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class MemberReader(io.RawIOBase):
    """The decompressed bytes of a file of one or more members.

    new: makes the decompressor of a member.  error: what it raises for wrong bytes.
    """

    def __init__(self, file: BinaryIO, new: Callable[[], Decompressor], error: type[Exception]):
        self.file, self.new, self.error = file, new, error
        self.member, self.members, self.position = new(), 0, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a position; backwards by decompressing from the beginning."""
        if whence == io.SEEK_END:
            raise io.UnsupportedOperation("the size of compressed data is not known")
        target = offset + (self.position if whence == io.SEEK_CUR else 0)
        if target < self.position:
            self.file.seek(0)
            self.member, self.members, self.position = self.new(), 0, 0
        while self.position < target and self._next(min(BLOCK, target - self.position)):
            pass
        return self.position

    def readinto(self, buffer: Any) -> int:
        data = self._next(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _next(self, most: int) -> bytes:
        """Some decompressed bytes, b"" at the end.

        Raises:
            DamagedMember: a member is damaged, cut short, or followed by something else.
        """
        while True:
            block = b""
            if self.member.eof:
                block = self._beginning()
                if not block:
                    return b""
                self.member, self.members = self.new(), self.members + 1
            elif self.member.needs_input:
                block = self.file.read(BLOCK)
                if not block:
                    raise DamagedMember("the compressed data end before their end marker")
            try:
                data = self.member.decompress(block, most)
            except self.error as error:
                before = f" after {self.members} compressed parts" if self.members else ""
                raise DamagedMember(f"{error}{before}") from error
            if data:
                self.position += len(data)
                return data

    def _beginning(self) -> bytes:
        """The first bytes of the next member; b"" at the end of the file."""
        block = self.member.unused_data.lstrip(b"\0")
        while not block and (more := self.file.read(BLOCK)):
            block = more.lstrip(b"\0")
        return block


def _bz2(file: BinaryIO) -> BinaryIO:
    return _buffered(file, bz2.BZ2Decompressor, OSError)


def _xz(file: BinaryIO) -> BinaryIO:
    return _buffered(file, lzma.LZMADecompressor, lzma.LZMAError)


def _zstd(file: BinaryIO) -> BinaryIO:
    try:
        from compression import zstd  # type: ignore[import-not-found]  # since Python 3.14
    except ImportError:
        try:
            from backports import zstd
        except ImportError as error:
            raise MissingExtra("backports.zstd", "zstd", "Reading .zst files") from error
    return _buffered(file, zstd.ZstdDecompressor, zstd.ZstdError)


def _buffered(file: BinaryIO, new: Callable[[], Any], error: type[Exception]) -> BinaryIO:
    return io.BufferedReader(MemberReader(file, new, error), BLOCK)


def _gzip(file: BinaryIO) -> BinaryIO:
    return cast(BinaryIO, gzip.GzipFile(fileobj=file, mode="rb"))  # of all members, strict itself


# What decompresses a file, by its ending.
COMPRESSED: dict[str, Callable[[BinaryIO], BinaryIO]] = {
    ".gz": _gzip,
    ".bz2": _bz2,
    ".xz": _xz,
    ".zst": _zstd,
}
