"""A corpus on disk: a folder of arrays, written once, mapped into memory, verified.

    corpus.json       what it was made of, sizes and SHA-256 of its arrays; written last
    tokens.bin        all ids, uint16 or int32, little-endian
    documents.bin     where each document begins, and the number of ids: int64
    paragraphs.bin, sentences.bin     as documents.bin; with structure alone
    tokenizer.json    and tokenizer_config.json: the tokenizer
    building.json     how far the building is; until it is finished

All depend on the documents, the tokenizer and the options alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from regard.data.corpus import Corpus, MappedTokens
from regard.data.files import hash_of, is_file_name
from regard.errors import CheckpointError, ConfigError
from regard.schema import read_json
from regard.text import Tokenizer

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
    sizes = {TOKENS: facts.counts["tokens"] * np.dtype(facts.dtype).itemsize}
    sizes |= {name: 8 * facts.counts[name[:-4]] + 8 for name in STARTS if name in facts.sha256}
    for name, expected in facts.sha256.items():
        path = folder / name
        size = path.stat().st_size if path.is_file() else None
        if size != sizes[name]:
            was = "is missing" if size is None else f"has {size:,} bytes instead of {sizes[name]:,}"
            raise _damaged(folder, f"{path} {was}.")
        actual = hash_of(path)
        if actual != expected:
            checks = f"its SHA-256 must be {expected[:12]}…, but is {actual[:12]}…"
            raise _damaged(folder, f"{path} has changed: {checks}.")
    documents, *rest = (_mapped(folder / name, "<i8") for name in STARTS if name in sizes)
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
        problem = f"{path} has version {facts.version}, but this version of Regard reads {VERSION}."
        raise _damaged(folder, problem)
    return facts


def check_made_of(folder: Path, stored: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Compare what a corpus was made of with what it shall be made of.

    Raises:
        ConfigError: they differ; every difference is named.
    """
    changes = []
    for name in dict.fromkeys([*stored, *expected]):
        old, new = stored.get(name), expected.get(name)
        if name == "files" and old and new:
            before, now = dict(old), dict(new)
            for file in dict.fromkeys([*before, *now]):
                if before.get(file) != now.get(file):
                    what = "has changed" if file in before and file in now else "was not among them"
                    changes.append(f"{file} {what if file in now else 'is missing now'}")
            if not changes and old != new:
                changes.append("the files are in another order")
        elif old != new:
            changes.append(f"{name} was {_short(old)}, is {_short(new)}")
    if changes:
        raise ConfigError(
            f"{folder} holds a corpus that was made of something else:\n  "
            + "\n  ".join(changes)
            + "\nPut it back, remove the folder, or choose another one."
        )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:15] + "…'"


def _mapped(path: Path, dtype: str) -> np.ndarray:
    """The array in a file, read as it is used."""
    if not path.stat().st_size:
        return np.empty(0, dtype)
    return np.memmap(path, dtype, "r").view(np.ndarray)


def _damaged(folder: Path, problem: str) -> CheckpointError:
    return CheckpointError(f"{problem} Remove {folder} and build the corpus again.")
