"""Builds a corpus on disk; a build that was killed at any moment goes on and writes the same bytes.

Every few seconds a journal says how many passages have been encoded and the length of each file
at that point.
What was written after that is cut off, and encoded again.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from regard.data.corpus import Corpus, EncodedPassages, EncoderState, PassageEncoder
from regard.data.corpus_folder import (
    FACTS,
    STARTS,
    TOKENS,
    VERSION,
    CorpusFacts,
    check_made_of,
    open_corpus,
    read_facts,
)
from regard.data.documents import DocumentPassage, Documents
from regard.data.files import hash_of, reading_position, split_member
from regard.errors import CheckpointError, DataError
from regard.file_writing import locked, not_written, write_text
from regard.progress import clock, reporter
from regard.schema import read_json
from regard.text import Tokenizer

JOURNAL = "building.json"
SAVE_EVERY = 10.0  # seconds of work that are lost at most where the process is killed
_BLOCK = 1 << 22


def build_corpus(
    documents: Documents,
    tokenizer: Tokenizer,
    folder: str | Path,
    *,
    end: Sequence[int] = (),
    structure: bool = False,
    options: Mapping[str, Any] | None = None,
    progress: bool | None = None,
) -> Corpus:
    """The corpus in a folder: built where it is not there or not finished, opened where it is.

    The memory that this takes does not depend on the number of documents.

    Args:
        end, structure: as in `encode_corpus`.
        options: what else the documents depend on, besides their files: values for JSON.
        progress: whether it is shown; None: as `regard.progress.showing` says.

    Raises:
        ConfigError: the folder holds a corpus of other files, another tokenizer or other options,
            or another process builds one in it.
        DataError: a file cannot be read, a text cannot be encoded, or a file changed meanwhile.
        CheckpointError: the folder cannot be written, or what it holds is damaged.
    """
    folder = Path(folder)
    with locked(folder, "building a corpus in"):
        made_of = {
            "tokenizer": tokenizer.fingerprint(),
            "vocab_size": tokenizer.vocab_size,
            "end": list(end),
            "structure": structure,
            "documents": documents.separator,
            "options": dict(options or {}),
            "files": [[name, hash_of(name)] for name in documents.files],
        }
        if not (folder / FACTS).exists():
            build = _Build(folder, documents, PassageEncoder(tokenizer, end, structure), made_of)
            try:
                build.run(reporter(progress))
                tokenizer.save(folder)
                build.finish()
            except OSError as error:
                raise not_written(folder, error) from error
        check_made_of(folder, read_facts(folder).made_of, made_of)
        return open_corpus(folder)


@dataclass
class _Journal:
    """passages: number encoded so far.  bytes: length of each file after them."""

    made_of: dict[str, Any]
    passages: int = 0
    state: EncoderState = field(default_factory=EncoderState)
    bytes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class BuildStage:
    """How far the building of a corpus is; `left`: seconds to its end, estimated."""

    fraction: float
    tokens: int
    tokens_per_s: float
    left: float

    def __str__(self) -> str:
        return (
            f"{self.fraction:.1%} · {self.tokens:,} tokens · {self.tokens_per_s:,.0f} tokens/s · "
            f"{clock(self.left)} left"
        )


class _Build:
    """The arrays of a folder while they are written."""

    def __init__(
        self, folder: Path, documents: Documents, encoder: PassageEncoder, made_of: dict[str, Any]
    ):
        self.folder, self.documents, self.encoder = folder, documents, encoder
        self.names = [TOKENS, *(STARTS[kind] for kind in encoder.kinds)]
        self.journal = _Journal(made_of, bytes=dict.fromkeys(self.names, 0))
        if (folder / JOURNAL).exists():
            self.journal = read_json(folder / JOURNAL, _Journal)
            check_made_of(folder, self.journal.made_of, made_of)
        encoder.state = replace(self.journal.state)

    def run(self, shown: Any) -> None:
        """Encode what the journal does not have yet."""
        with ExitStack() as stack:
            stack.callback(shown.close)
            files = [stack.enter_context(self._opened(name)) for name in self.names]
            position = stack.enter_context(reading_position())
            progress = _Progress(self.documents, position, self.journal.state.tokens)
            rest = islice(progress.passages(), self.journal.passages, None)
            saved = reported = time.monotonic()
            try:
                for part in self.encoder.encoded(rest):
                    self._write(files, part)
                    now = time.monotonic()
                    if now - saved > SAVE_EVERY:
                        self._save(files)
                        saved = now
                    if now - reported > shown.every:
                        shown.show(progress.stage(self.encoder.state.tokens))
                        reported = now
            except KeyboardInterrupt:
                self._save(files)
                raise
            for file in files[1:]:
                file.write(np.array([self.encoder.state.tokens], "<i8").data)
            for file in files:
                file.flush()
                os.fsync(file.fileno())

    def _opened(self, name: str) -> IO[bytes]:
        """A file, cut to the bytes that the journal has."""
        path, size = self.folder / name, self.journal.bytes[name]
        path.touch()
        if (actual := path.stat().st_size) < size:
            raise CheckpointError(
                f"{path} has {actual:,} bytes, but {size:,} had been written. Remove {self.folder} "
                "and build the corpus again."
            )
        file = open(path, "r+b")
        file.truncate(size)
        file.seek(size)
        return file

    def _write(self, files: Sequence[IO[bytes]], part: EncodedPassages) -> None:
        """Append a part to the files; an interrupted call leaves the journal as it was."""
        for file, array in zip(files, (part.ids, *part.starts), strict=True):
            file.write(array.astype(array.dtype.newbyteorder("<"), copy=False).data)
        self.journal = _Journal(
            self.journal.made_of,
            self.journal.passages + part.passages,
            replace(self.encoder.state),
            {name: file.tell() for name, file in zip(self.names, files, strict=True)},
        )

    def _save(self, files: Sequence[IO[bytes]]) -> None:
        """Write the journal, after the bytes of which it speaks."""
        for file in files:
            file.flush()
            os.fsync(file.fileno())
        write_text(self.folder / JOURNAL, json.dumps(asdict(self.journal)))

    def finish(self) -> None:
        """Write corpus.json, with which the corpus is complete.

        Raises:
            DataError: a file of documents has changed since its checksum was computed.
        """
        counts = {"tokens": self.encoder.state.tokens}
        for name in self.names[1:]:
            counts[name[:-4]] = (self.folder / name).stat().st_size // 8 - 1
        for name, sha in self.journal.made_of["files"]:
            if hash_of(name) != sha:
                raise DataError(name, None, "changed while the corpus was built.", "Build again.")
        facts = CorpusFacts(
            VERSION,
            self.journal.made_of,
            self.encoder.dtype.str,
            counts,
            _crc(self.folder / TOKENS),
            {name: hash_of(self.folder / name) for name in self.names},
        )
        write_text(self.folder / FACTS, json.dumps(asdict(facts), indent=1) + "\n")
        (self.folder / JOURNAL).unlink(missing_ok=True)


class _Progress:
    """How much of the files has been read, and how fast tokens come."""

    def __init__(self, documents: Documents, position: Callable[[], int | None], tokens: int):
        self.documents, self.position, self.tokens = documents, position, tokens
        self.sizes = {name: split_member(name)[0].stat().st_size for name in documents.files}
        self.before, self.file = 0, ""  # bytes of the files before this one
        self.started = time.monotonic()

    def passages(self) -> Iterator[DocumentPassage]:
        """The passages; from which file the last one comes is noted."""
        for passage in self.documents:
            if passage.file != self.file:
                self.before += self.sizes.get(self.file, 0)
                self.file = passage.file
            yield passage

    def stage(self, tokens: int) -> BuildStage:
        """How far the work is when there are so many tokens."""
        position, size = self.position(), self.sizes.get(self.file, 0)
        bytes_read = self.before + (size if position is None else min(position, size))
        fraction = min(1.0, bytes_read / max(1, sum(self.sizes.values())))
        rate = (tokens - self.tokens) / (time.monotonic() - self.started)
        per_token = fraction / max(1, tokens)
        left = (1 - fraction) / (per_token * rate) if per_token * rate else float("inf")
        return BuildStage(fraction, tokens, rate, left)


def _crc(path: Path) -> int:
    """The CRC-32 of a file."""
    crc = 0
    with open(path, "rb") as stream:
        while block := stream.read(_BLOCK):
            crc = zlib.crc32(block, crc)
    return crc
