"""SHA-256 of files, computed again only where a file's size or time has changed."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from regard.data.files import hash_of, split_member
from regard.errors import CheckpointError
from regard.file_writing import write_text
from regard.schema import read_json

_RECENT = 100_000_000  # nanoseconds: a file may have changed again without another time


@dataclass(frozen=True)
class KnownFile:
    """A file when its checksum was computed; `time` of its last change, in nanoseconds."""

    size: int
    time: int
    sha256: str


@dataclass(frozen=True)
class CheckedFiles:
    """The content of the JSON file: what is known of each file, by its path."""

    files: dict[str, KnownFile]


class ChecksumCache:
    """What is known of files: their size, time and SHA-256, in a JSON file.

    The file is a cache: where it is missing or cannot be written, checksums are computed.
    """

    def __init__(self, path: Path):
        self.path = path
        self._known: dict[str, KnownFile] = {}
        with suppress(OSError, CheckpointError):
            self._known = dict(read_json(path, CheckedFiles).files)

    def sha256(self, file: str | Path, *, again: bool = False) -> str:
        """The SHA-256 (hex) of a file or of a member of an archive.

        again: compute it whatever is known

        Raises:
            DataError: it does not exist or cannot be read.
        """
        name, archive = str(file), split_member(file)[0]
        before = archive.stat() if archive.exists() else None
        known = self._known.pop(name, None)
        if known and before and not again:
            if (known.size, known.time) == (before.st_size, before.st_mtime_ns):
                self._known[name] = known
                return known.sha256
        checksum = hash_of(file)
        if before and time.time_ns() - before.st_mtime_ns > _RECENT:
            self._known[name] = KnownFile(before.st_size, before.st_mtime_ns, checksum)
        return checksum

    def save(self) -> None:
        """Remember what is known, where the folder can be written."""
        with suppress(CheckpointError):
            write_text(self.path, json.dumps(asdict(CheckedFiles(self._known)), indent=1) + "\n")
