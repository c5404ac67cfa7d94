"""A corpus on disk: a folder of arrays, built once, mapped into memory, verified.

    corpus.json       what it was made of, sizes and SHA-256 of its arrays; written last
    tokens.bin        all ids, uint16 or int32, little-endian
    documents.bin     where each document begins, and the number of ids: int64
    paragraphs.bin, sentences.bin     as documents.bin; with structure alone
    tokenizer.json    and tokenizer_config.json: the tokenizer
    building.json     how far the building is; until it is finished

All depend on the documents, the tokenizer and the options alone. A build that was killed at any
moment goes on and writes the same bytes: every few seconds a journal says how many passages have
been encoded and the length of each file at that point. What was written after that is cut off, and
encoded again.
"""

import json
import os
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from regard.data.corpus import Corpus, EncodedPassages, EncoderState, MappedTokens, PassageEncoder
from regard.data.documents import DocumentPassage, Documents
from regard.data.files import hash_of, is_file_name
from regard.errors import CheckpointError, ConfigError, DataError
from regard.file_writing import locked, not_written, write_text
from regard.progress import reporter
from regard.schema import read_json
from regard.text import Tokenizer

FACTS, JOURNAL = "corpus.json", "building.json"
TOKENS = "tokens.bin"
STARTS = ("documents.bin", "paragraphs.bin", "sentences.bin")
VERSION = 1
SAVE_EVERY = 10.0  # seconds of work that are lost at most where the process is killed
_BLOCK = 1 << 22


@dataclass(frozen=True)
class CorpusFacts:
    """The content of corpus.json.

    made_of: all that the arrays depend on.  counts: of tokens, documents, paragraphs, sentences.
    ids_crc: the CRC-32 of tokens.bin.
    """

    version: int
    made_of: dict[str, Any]
    dtype: str
    counts: dict[str, int]
    ids_crc: int
    sha256: dict[str, str]


def open_corpus(folder: str | Path, *, tokenizer: Tokenizer | None = None) -> Corpus:
    """The corpus in a folder, mapped into memory.

    tokenizer: the one whose tokens it must have

    Raises:
        CheckpointError: there is no finished corpus, or a file is damaged.
        ConfigError: it has the tokens of another tokenizer.
    """
    folder = Path(folder)
    facts = read_facts(folder)
    if tokenizer is not None and tokenizer.fingerprint() != facts.made_of["tokenizer"]:
        raise ConfigError(
            f"{folder} was built with another tokenizer. Take the one that it holds, or build it "
            "again with this one."
        )
    for name, expected in facts.sha256.items():
        path = folder / name
        if not path.is_file() or hash_of(path) != expected:
            raise _damaged(f"{path} is missing or has changed.")
    documents, *rest = (_mapped(folder / name, "<i8") for name in STARTS if name in facts.sha256)
    tokens = MappedTokens(_mapped(folder / TOKENS, facts.dtype), documents, facts.ids_crc)
    return Corpus(tokens, *rest)


def is_corpus(folder: str | Path) -> bool:
    """Whether a folder holds a finished corpus."""
    return is_file_name(str(Path(folder) / FACTS))


def read_facts(folder: Path) -> CorpusFacts:
    """The content of corpus.json.

    Raises:
        CheckpointError: there is none, or it is damaged.
    """
    path = folder / FACTS
    try:
        facts: CorpusFacts = read_json(path, CorpusFacts)
    except FileNotFoundError:
        hint = "Build it: regard corpus FILES --tokenizer TOKENIZER --out FOLDER."
        raise CheckpointError(f"{folder} holds no finished corpus. {hint}") from None
    if facts.version != VERSION:
        raise _damaged(f"{path} has version {facts.version}, but {VERSION} is read here.")
    return facts


def _damaged(problem: str) -> CheckpointError:
    return CheckpointError(f"{problem} Remove the folder, and build the corpus again.")


def _mapped(path: Path, dtype: str) -> np.ndarray:
    """The array in a file; an empty file cannot be mapped."""
    if not path.stat().st_size:
        return np.empty(0, dtype)
    return np.memmap(path, dtype, "r").view(np.ndarray)


# ------------------------------------------------------------------------------------- building


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
        _check_made_of(folder, read_facts(folder).made_of, made_of)
        return open_corpus(folder)


def _check_made_of(folder: Path, stored: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Raise a ConfigError that names what a corpus was made of and is something else now."""
    changes = [name for name in expected if stored.get(name) != expected[name]]
    if "files" in changes:
        before, now = dict(stored["files"]), dict(expected["files"])
        files = [file for file in {**before, **now} if before.get(file) != now.get(file)]
        changes[changes.index("files")] = ", ".join(files) or "the order of the files"
    if changes:
        raise ConfigError(
            f"{folder} holds a corpus that was made of something else: {', '.join(changes)} "
            "changed. Put it back, remove the folder, or choose another one."
        )


@dataclass
class _Journal:
    """passages: number encoded so far.  bytes: length of each file after them."""

    made_of: dict[str, Any]
    passages: int = 0
    state: EncoderState = field(default_factory=EncoderState)
    bytes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class BuildStage:
    """How far the building of a corpus is; `fraction`: of the files."""

    fraction: float
    tokens: int
    tokens_per_s: float

    def __str__(self) -> str:
        return f"{self.tokens:,} tokens · {self.tokens_per_s:,.0f} tokens/s"


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
            _check_made_of(folder, self.journal.made_of, made_of)
        encoder.state = replace(self.journal.state)
        self.file = ""  # of the passage that was read last

    def run(self, shown: Any) -> None:
        """Encode what the journal does not have yet."""
        with ExitStack() as stack:
            stack.callback(shown.close)
            files = [stack.enter_context(self._opened(name)) for name in self.names]
            rest = islice(self._passages(), self.journal.passages, None)
            started = saved = reported = time.monotonic()
            before = self.journal.state.tokens
            try:
                for part in self.encoder.encoded(rest):
                    self._write(files, part)
                    now, tokens = time.monotonic(), self.encoder.state.tokens
                    if now - saved > SAVE_EVERY:
                        self._save(files)
                        saved = now
                    if now - reported > shown.every:
                        rate = (tokens - before) / (now - started)
                        shown.show(BuildStage(self._fraction(), tokens, rate))
                        reported = now
            except KeyboardInterrupt:
                self._save(files)
                raise
            for file in files[1:]:
                file.write(np.array([self.encoder.state.tokens], "<i8").data)
            for file in files:
                file.flush()
                os.fsync(file.fileno())

    def _passages(self) -> Iterator[DocumentPassage]:
        for passage in self.documents:
            self.file = passage.file
            yield passage

    def _fraction(self) -> float:
        """The share of the files that have been read."""
        files = self.documents.files
        return files.index(self.file) / len(files) if self.file in files else 0.0

    def _opened(self, name: str) -> IO[bytes]:
        """A file, cut to the bytes that the journal has."""
        path, size = self.folder / name, self.journal.bytes[name]
        path.touch()
        if (actual := path.stat().st_size) < size:
            raise _damaged(f"{path} has {actual:,} bytes, but {size:,} had been written.")
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
        crc = 0
        with open(self.folder / TOKENS, "rb") as stream:
            while block := stream.read(_BLOCK):
                crc = zlib.crc32(block, crc)
        facts = CorpusFacts(
            VERSION,
            self.journal.made_of,
            self.encoder.dtype.str,
            counts,
            crc,
            {name: hash_of(self.folder / name) for name in self.names},
        )
        write_text(self.folder / FACTS, json.dumps(asdict(facts), indent=1) + "\n")
        (self.folder / JOURNAL).unlink(missing_ok=True)
