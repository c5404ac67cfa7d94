"""A corpus: the documents of files of any size, and their tokens in memory or as a folder.

A document, a text with a beginning and an end, is a row of a file (a line, or a field of a JSONL,
CSV or Parquet row), the lines between two blank lines, or a whole file. It is read in passages, so
that no document is in memory as a whole: a passage begins at a line break, where tokenizers begin a
token, too.

A corpus has the tokens of documents, and where documents, paragraphs and sentences begin. It is in
memory (`encode_corpus`), or a folder of arrays that may be larger than it, built once, mapped into
memory, verified (`build_corpus`):

    corpus.json       what it was made of, sizes and SHA-256 of its arrays; written last
    tokens.bin        all ids, uint16 or int32, little-endian
    documents.bin     where each document begins, and the number of ids: int64
    paragraphs.bin, sentences.bin     as documents.bin; with structure alone
    tokenizer.json    and tokenizer_config.json: the tokenizer

All depend on the documents, the tokenizer and the options alone. A build that was killed begins
again.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from regard.data.files import ENDINGS, LONGEST_TEXT, ending, hash_of, is_file_name, split_member
from regard.data.readers import TEXT, Numbered, RowReader, open_table
from regard.data.token_arrays import TextTokenizer, TokenArray, ahead, chunks_of
from regard.errors import CheckpointError, ConfigError, DataError, RegardError, check_choice
from regard.file_writing import locked, not_written, write_text
from regard.progress import reporter
from regard.schema import read_json
from regard.text import Tokenizer
from regard.text.sentences import begin_at_space, divided_ids, sentence_starts

Separator = Literal["rows", "blank-lines", "files"]


class DocumentPassage(NamedTuple):
    """A part of a document that begins at a line break.

    line: of the file, from 1.  first, last: whether a document begins and ends with it.
    """

    text: str
    file: str
    line: int
    first: bool
    last: bool


@dataclass(frozen=True)
class Documents:
    """The documents of several readers, one reader after the other; it can be looped over again.

    separator: what a document is: each of the "rows"; what is between "blank-lines"; or all of a
        reader ("files").
    files: those that are read, for checksums and progress; () where the data are no files.
    field: of tables: the column with the text.
    """

    readers: tuple[RowReader, ...]
    separator: Separator = "rows"
    files: tuple[str, ...] = ()
    field: str | int | None = None

    def __iter__(self) -> Iterator[DocumentPassage]:
        """The passages of all documents.

        Raises:
            DataError: a file cannot be read, or has no document.
        """
        for reader in self.readers:
            rows, file = reader.numbered(), reader.name
            if self.separator == "rows":
                for line, row in rows:
                    text = reader.text(row, _single_column(row, file, line), line)
                    yield DocumentPassage(text, file, line, True, True)
            elif self.separator == "files":
                yield from _document((line, row[TEXT], file) for line, row in rows)
            else:
                yield from _between_blank_lines(rows, file)

    def texts(self) -> Iterator[str]:
        """All passages one after the other, for example to train a tokenizer."""
        return (passage.text for passage in self)


def read_documents(
    files: str | PathLike[str] | Iterable[str | PathLike[str]],
    documents: Separator | None = None,
    *,
    field: str | int | None = None,
) -> Documents:
    """The documents of files, or of all files in folders, in the order of their names.

    documents: what a document is: one of the "rows", what is between "blank-lines", or one of the
        "files". None: rows of tables (JSONL, CSV, TSV, Parquet), for other files what is between
        blank lines.
    field: of tables: the column with the text, by name or by number from 0.

    Raises:
        ConfigError: there are no files, or `documents` is something else.
        DataError: a folder has no files, a table is not read by rows, or `field` is that of plain
            text.
    """
    if documents is not None:
        check_choice("documents", documents, get_args(Separator))
    sources = [files] if isinstance(files, str | PathLike) else list(files)
    if not sources:
        raise ConfigError("`files` must name at least one file or folder, but is empty.")
    paths = [path for source in sources for path in _files_in(str(source))]
    tables = [path for path in paths if ending(path) in ENDINGS]
    separator = documents or ("rows" if len(tables) == len(paths) else "blank-lines")
    if tables and separator != "rows":
        problem = "is a table, each row of which is a document."
        hint = "Read it separately from plain text, with documents = 'rows'."
        raise DataError(tables[0], None, problem, hint)
    if field is not None and not tables:
        raise DataError(paths[0], None, f"is plain text, which has no field {field!r}.")
    columns = () if field is None else (field,)
    if separator == "rows":
        readers = [open_table(path, columns if path in tables else ()) for path in paths]
    elif separator == "blank-lines":
        readers = [open_table(path, format="lines", longest=LONGEST_TEXT) for path in paths]
    else:
        readers = [open_table(path, format="text") for path in paths]
    return Documents(tuple(readers), separator, tuple(paths), field)


def _files_in(path: str) -> Sequence[str]:
    """The path, or the files of the folder that it is."""
    if split_member(path)[1] or not Path(path).is_dir():
        return [path]
    names = [file.relative_to(path) for file in sorted(Path(path).rglob("*")) if file.is_file()]
    paths = [str(Path(path) / n) for n in names if not any(p.startswith(".") for p in n.parts)]
    if not paths:
        raise DataError(path, None, "is a folder without files.")
    return paths


def _single_column(row: Mapping[str, Any], file: str, line: int) -> str:
    """The one column of a row."""
    if len(row) != 1:
        problem = f"has {len(row)} fields, but a document is one text."
        raise DataError(file, line, problem, "Choose one: field = 'text'.")
    return next(iter(row))


def _document(passages: Iterator[tuple[int, str, str]]) -> Iterator[DocumentPassage]:
    """One document: (line, text, file) of each of its passages."""
    held = next(passages, None)
    first = True
    while held is not None:
        line, text, file = held
        held = next(passages, None)
        yield DocumentPassage(text, file, line, first, held is None)
        first = False


def _between_blank_lines(rows: Numbered, file: str) -> Iterator[DocumentPassage]:
    """The lines between blank lines; each but the first of a document with the break before it."""
    held: DocumentPassage | None = None
    empty = True
    for line, row in rows:
        text = row[TEXT]
        if not text or text.isspace():
            if held is not None:
                yield held._replace(last=True)
            held = None
            continue
        empty = False
        if held is None:
            held = DocumentPassage(text, file, line, True, False)
        else:
            yield held
            held = DocumentPassage("\n" + text, file, line, False, False)
    if held is not None:
        yield held._replace(last=True)
    if empty:
        raise DataError(file, None, "has no document: it is empty, or all its lines are blank.")


DOCUMENT, PARAGRAPH, SENTENCE, INSIDE = 3, 2, 1, 0  # what begins with a unit of text


@dataclass(frozen=True, eq=False)
class MappedTokens(TokenArray):
    """A `TokenArray` in mapped files.

    ids_crc: the CRC-32 of all ids, so that they need not be read for the checksum.
    """

    ids_crc: int

    @cached_property
    def checksum(self) -> int:
        return zlib.crc32(self.offsets.tobytes(), self.ids_crc)

    def joined(self) -> TokenArray:
        return MappedTokens(self.ids, np.array([0, len(self.ids)]), self.ids_crc)


@dataclass(frozen=True, eq=False)
class Corpus:
    """The tokens of documents.

    tokens: a sequence for each document; all ids end to end, in files or in memory.
    paragraphs, sentences: where each begins in `tokens.ids`, then the number of all ids, (n + 1,)
        int64; None where structure was not asked for. They tile the ids: a document begins a
        paragraph and a paragraph a sentence, and none is without tokens.
    """

    tokens: TokenArray
    paragraphs: np.ndarray | None = None
    sentences: np.ndarray | None = None

    def split(self, share: float) -> tuple[Corpus, Corpus]:
        """The corpus without its last documents, and these: a share of the documents. A single
        document is cut.

        Raises:
            ConfigError: no document, or no token, would be left on one side.
        """
        count = len(self.tokens)
        last = max(1, round(count * share))
        offsets = self.tokens.offsets
        bounds = offsets[[0, max(0, count - last), count]]
        if count == 1:
            bounds[1] = bounds[2] - max(1, round(int(bounds[2]) * share))
        if not 0 < share < 1 or not bounds[0] < bounds[1] < bounds[2]:
            raise ConfigError(
                f"{share:g} of {count:,} documents as validation data leaves nothing to train on. "
                "Give more documents, or another share."
            )
        if count == 1:
            return self._between(bounds[:2]), self._between(bounds[1:])
        return self._between(offsets[: count - last + 1]), self._between(offsets[count - last :])

    def _between(self, offsets: np.ndarray) -> Corpus:
        """The documents that begin and end at these tokens of the whole corpus."""
        begin, end = int(offsets[0]), int(offsets[-1])
        tokens = TokenArray(self.tokens.ids[begin:end], offsets - begin)
        if self.paragraphs is None or self.sentences is None:
            return Corpus(tokens)

        def inside(starts: np.ndarray) -> np.ndarray:
            low, high = np.searchsorted(starts, [begin + 1, end])
            return np.concatenate([[begin], starts[low:high], [end]]) - begin

        return Corpus(tokens, inside(self.paragraphs), inside(self.sentences))


def encode_corpus(
    documents: Documents,
    tokenizer: TextTokenizer,
    *,
    end: Sequence[int] = (),
    structure: bool = False,
) -> Corpus:
    """A corpus in memory.

    end: ids at the end of each document, such as that of `</s>`
    structure: also store where paragraphs (lines) and sentences begin; sentences are then encoded
        one by one

    Raises:
        DataError: a file cannot be read, or a text cannot be encoded; names file and line.
    """
    encoder = PassageEncoder(tokenizer, end, structure)
    parts = list(encoder.encoded(documents))
    total = sum(len(part.ids) for part in parts)
    ids = np.concatenate([part.ids for part in parts] or [np.empty(0, encoder.dtype)])
    documents_, *rest = (
        np.concatenate([*(part.starts[kind] for part in parts), [total]]).astype(np.int64)
        for kind in encoder.kinds
    )
    return Corpus(TokenArray(ids, documents_), *rest)


class EncodedPassages(NamedTuple):
    """Passages that were encoded together.

    starts: where documents, paragraphs and sentences begin among all ids of the corpus.
    file: of the last passage.
    """

    ids: np.ndarray
    starts: tuple[np.ndarray, ...]
    file: str


@dataclass
class _Units:
    """What is encoded of passages: them, or their sentences.

    texts: one a unit; those of `divided` passages are empty.
    levels: what begins with each unit.  lasts: the numbers of those that end a document.
    divided: the number of a passage's first unit -> its text and where its sentences start; of
        passages whose sentences do not all begin at white space.
    """

    passages: list[DocumentPassage]
    texts: list[str] = field(default_factory=list)
    levels: list[int] = field(default_factory=list)
    lasts: list[int] = field(default_factory=list)
    divided: dict[int, tuple[str, list[int]]] = field(default_factory=dict)


class PassageEncoder:
    """Encodes passages, some hundreds at a time, and finds what begins where.

    tokens: the ids so far.  pending: what has begun, but has no token yet.
    """

    def __init__(self, tokenizer: TextTokenizer, end: Sequence[int], structure: bool):
        self.tokenizer, self.end, self.structure = tokenizer, list(end), structure
        self.kinds = range(3) if structure else range(1)
        self.dtype = np.dtype("<u2" if tokenizer.vocab_size <= 1 << 16 else "<i4")
        self.tokens, self.pending = 0, INSIDE

    def encoded(self, passages: Iterable[DocumentPassage]) -> Iterator[EncodedPassages]:
        """The passages, encoded by a thread while the next ones are read."""
        chunks = map(self._units, chunks_of(iter(passages), lambda passage: len(passage.text)))
        for sequences, levels, file in ahead(self._ids, chunks):
            yield self._located(sequences, levels, file)

    def _units(self, chunk: list[DocumentPassage]) -> _Units:
        units = _Units(chunk)
        texts, levels, lasts = units.texts, units.levels, units.lasts
        for passage in chunk:
            first = DOCUMENT if passage.first else INSIDE
            if not self.structure:
                texts.append(passage.text)
                levels.append(first)
            else:
                starts = sentence_starts(passage.text)
                cuts = [start for start, _ in starts]
                if begin_at_space(passage.text, cuts):
                    texts += map(passage.text.__getitem__, map(slice, cuts, [*cuts[1:], None]))
                else:
                    units.divided[len(texts)] = passage.text, cuts
                    texts += [""] * len(cuts)
                levels += [PARAGRAPH if paragraph else SENTENCE for _, paragraph in starts]
                levels[-len(starts)] = max(first, PARAGRAPH)
            if passage.last:
                lasts.append(len(texts) - 1)
        return units

    def _ids(self, units: _Units) -> tuple[TokenArray, np.ndarray, str]:
        """The ids of each unit, what begins with it, and the file of the last passage."""
        try:
            encoded = self.tokenizer.encode_many(units.texts)
            for first, (text, cuts) in units.divided.items():
                encoded[first : first + len(cuts)] = divided_ids(self.tokenizer, text, cuts)
        except RegardError as error:
            raise self._located_error(units.passages) or error from None
        if self.end:
            for number in units.lasts:
                encoded[number] = [*encoded[number], *self.end]
        tokens = TokenArray.of(encoded, self.tokenizer.vocab_size)
        return tokens, np.array(units.levels, np.int8), units.passages[-1].file

    def _located_error(self, chunk: list[DocumentPassage]) -> DataError | None:
        """The error of the first passage that cannot be encoded."""
        for passage in chunk:
            try:
                self.tokenizer.encode_many([passage.text])
            except RegardError as error:
                return DataError(passage.file, passage.line, str(error))
        return None

    def _located(self, units: TokenArray, levels: np.ndarray, file: str) -> EncodedPassages:
        """What begins where, counted from the beginning of the corpus."""
        begins = self.tokens + units.offsets[:-1]
        starts = [begins[levels == DOCUMENT]]
        if self.structure:
            levels[0] = max(levels[0], self.pending)
            empty = np.flatnonzero(units.lengths == 0)
            for number in empty[empty + 1 < len(levels)]:  # what begins there begins with the next
                levels[number + 1] = max(levels[number], levels[number + 1])
            self.pending = INSIDE if units.lengths[-1] else int(levels[-1])
            filled = units.lengths > 0
            starts += [begins[filled & (levels >= least)] for least in (PARAGRAPH, SENTENCE)]
        self.tokens += len(units.ids)
        return EncodedPassages(units.ids, tuple(starts), file)


FACTS = "corpus.json"
TOKENS = "tokens.bin"
STARTS = ("documents.bin", "paragraphs.bin", "sentences.bin")
VERSION = 1


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
    progress: bool | None = None,
) -> Corpus:
    """The corpus in a folder: built where it is not there or not finished, opened where it is.

    The memory that this takes does not depend on the number of documents.

    Args:
        end, structure: as in `encode_corpus`.
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
            "field": documents.field,
            "files": [[name, hash_of(name)] for name in documents.files],
        }
        if not (folder / FACTS).exists():
            encoder = PassageEncoder(tokenizer, end, structure)
            names = [TOKENS, *(STARTS[kind] for kind in encoder.kinds)]
            try:
                crc = _write_arrays(folder, documents, encoder, names, reporter(progress))
                tokenizer.save(folder)
                _write_facts(folder, made_of, encoder, names, crc)
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


@dataclass(frozen=True)
class BuildStage:
    """How far the building of a corpus is; `fraction`: of the files."""

    fraction: float
    tokens: int
    tokens_per_s: float

    def __str__(self) -> str:
        return f"{self.tokens:,} tokens · {self.tokens_per_s:,.0f} tokens/s"


def _write_arrays(
    folder: Path, documents: Documents, encoder: PassageEncoder, names: Sequence[str], shown: Any
) -> int:
    """Write the arrays of documents into files of these names; the CRC-32 of the ids."""
    crc, started = 0, time.monotonic()
    reported, sources = started, documents.files
    with ExitStack() as stack:
        stack.callback(shown.close)
        files = [stack.enter_context(open(folder / name, "wb")) for name in names]
        for part in encoder.encoded(documents):
            for file, array in zip(files, (part.ids, *part.starts), strict=True):
                file.write(array.astype(array.dtype.newbyteorder("<"), copy=False).data)
            crc, now = zlib.crc32(part.ids.data, crc), time.monotonic()
            if now - reported > shown.every:
                fraction = sources.index(part.file) / len(sources) if part.file in sources else 0.0
                rate = encoder.tokens / (now - started)
                shown.show(BuildStage(fraction, encoder.tokens, rate))
                reported = now
        for file in files[1:]:
            file.write(np.array([encoder.tokens], "<i8").data)
        for file in files:
            file.flush()
            os.fsync(file.fileno())
    return crc


def _write_facts(
    folder: Path, made_of: dict[str, Any], encoder: PassageEncoder, names: Sequence[str], crc: int
) -> None:
    """Write corpus.json, with which the corpus is complete.

    Raises:
        DataError: a file of documents has changed since its checksum was computed.
    """
    counts = {"tokens": encoder.tokens}
    for name in names[1:]:
        counts[name[:-4]] = (folder / name).stat().st_size // 8 - 1
    for name, sha in made_of["files"]:
        if hash_of(name) != sha:
            raise DataError(name, None, "changed while the corpus was built.", "Build again.")
    checksums = {name: hash_of(folder / name) for name in names}
    facts = CorpusFacts(VERSION, made_of, encoder.dtype.str, counts, crc, checksums)
    write_text(folder / FACTS, json.dumps(asdict(facts), indent=1) + "\n")
