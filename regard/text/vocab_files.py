"""Reads vocabulary files; errors name file and line."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard import schema
from regard.errors import DataError
from regard.schema import data_error
from regard.text.merges import Pair

DICTIONARY = re.compile(r"dict(\.\w+)?\.txt")
# Published vocabularies have at most some 300,000 entries. An embedding has a row for every id up
# to the largest, so that one id of 4,294,967,295 would ask for terabytes.
MOST_IDS = 2**24


def read_text(path: Path) -> str:
    """The file as UTF-8, its line ends untouched."""
    try:
        return schema.read_text(path, error=data_error(path))
    except OSError as error:
        held = path.parent.is_dir() and ", ".join(sorted(p.name for p in path.parent.iterdir())[:8])
        hint = f"Its folder holds {held or 'nothing'}."
        raise DataError(path, None, f"cannot be read: {error.strerror}.", hint) from None


def read_lines(path: Path) -> list[str]:
    """The lines of a vocabulary. Only a line feed ends one: tokens may have other line breaks."""
    lines = read_text(path).removesuffix("\n").split("\n")
    if all(line.endswith("\r") for line in lines):  # written on Windows
        lines = [line.removesuffix("\r") for line in lines]
    return lines


def read_vocab_txt(path: Path) -> dict[str, int]:
    """Token -> id of a file with one token per line; its id is the line's number, from 0."""
    vocab: dict[str, int] = {}
    for id, token in enumerate(read_lines(path)):
        if not token or token in vocab:
            problem = f"must be a token that is on no line before, but is {token!r}."
            raise DataError(path, id + 1, problem)
        vocab[token] = id
    return vocab


def is_fairseq(path: Path) -> bool:
    """Whether this is a folder with a dictionary of fairseq, or such a file."""
    folder = path if path.is_dir() else path.parent
    named = DICTIONARY.fullmatch(path.name) if path.is_file() else (path / "dict.txt").is_file()
    return bool(named) and not (folder / "tokenizer.json").is_file()


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Its keys are unique, and its whole numbers may have any size.

    Raises:
        DataError: there is no such file, or it is not a JSON object.
    """
    return parse_json(path, read_text(path))


def parse_json(path: Path, text: str) -> dict[str, Any]:
    """As `read_json`, of a text that was read from `path`."""
    content = schema.parse_json(text, str(path), data_error(path), any_size=True)
    if not isinstance(content, dict):
        raise DataError(
            path, None, f"must hold a JSON object, but holds a {type(content).__name__}."
        )
    return content


def read_vocab_json(path: Path) -> dict[str, int]:
    """{"token": id, …}; see `check_ids`."""
    vocab = read_json(path)
    check_ids(path, vocab)
    return vocab


def check_ids(path: Path, vocab: Mapping[str, Any]) -> None:
    """Every id must be a whole number from 0 to `MOST_IDS`, and belong to one token.

    Raises:
        DataError: an id is something else, or two tokens share it.
    """
    ids = vocab.values()
    # The usual case, checked without a loop in Python: some vocabularies have 250,000 entries.
    if set(map(type, ids)) <= {int} and len(set(ids)) == len(vocab):
        if not vocab or (min(ids) >= 0 and max(ids) < MOST_IDS):
            return
    owners: dict[int, str] = {}
    for token, id in vocab.items():
        if type(id) is not int or not 0 <= id < MOST_IDS:
            problem = (
                f"the id of token {token!r} must be from 0 to {MOST_IDS - 1:,}, but is {id!r}."
            )
            raise DataError(path, None, problem)
        if id in owners:
            raise DataError(path, None, f"tokens {owners[id]!r} and {token!r} share the id {id}.")
        owners[id] = token


def read_merges(path: Path, vocab: dict[str, int]) -> list[Pair]:
    """One merge per line, two tokens with a space between; a first line `#version…` is skipped."""
    lines = read_lines(path)
    seen: dict[Pair, int] = {}
    for number, line in enumerate(lines, 1):
        if (number == 1 and line.startswith("#version")) or (number == len(lines) and not line):
            continue
        left, space, right = line.partition(" ")
        pair = left, right
        if not space or pair in seen or not {left, right, left + right} <= vocab.keys():
            problem = f"must be two tokens that make a third one, but is {line!r}."
            raise DataError(path, number, problem, "Do both files belong together?")
        seen[pair] = number
    return list(seen)
