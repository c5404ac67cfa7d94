"""Reading vocabulary files line by line; what is malformed is named by file and line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from regard.errors import DataError
from regard.text.pairs import Pair


def read_text(path: Path) -> str:
    """The file as UTF-8, its line ends untouched."""
    if not path.is_file():
        raise DataError(path, None, "there is no such file.", _neighbours(path))
    data = path.read_bytes()
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problem = f"byte 0x{data[error.start]:02x} is not UTF-8."
        raise DataError(path, line, problem, "Convert the file to UTF-8.") from None


def read_lines(path: Path) -> list[str]:
    """Lines as a vocabulary has them: only the line feed ends one, for pieces may be strange."""
    lines = read_text(path).removesuffix("\n").split("\n")
    if all(line.endswith("\r") for line in lines):  # written on Windows
        lines = [line.removesuffix("\r") for line in lines]
    return lines


def read_pieces(path: Path) -> dict[str, int]:
    """One piece per line; its id is the line's number, from 0."""
    vocab: dict[str, int] = {}
    for id, piece in enumerate(read_lines(path)):
        if not piece:
            raise DataError(path, id + 1, "an empty line where a piece must stand.")
        if piece in vocab:
            problem = f"piece {piece!r} stands on line {vocab[piece] + 1} already."
            raise DataError(path, id + 1, problem, "Each piece must stand once.")
        vocab[piece] = id
    return vocab


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; a key that stands twice is an error, not the last one silently."""

    def unique(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in items:
            if key in found:
                raise DataError(path, None, f"{key!r} stands twice.", "Each must stand once.")
            found[key] = value
        return found

    try:
        read = json.loads(read_text(path), object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        problem = f"is not JSON: {error.msg} (column {error.colno})."
        raise DataError(path, error.lineno, problem, "The file may be cut off.") from None
    if not isinstance(read, dict):
        raise DataError(path, None, f"must hold a JSON object, but holds a {type(read).__name__}.")
    return read


def read_vocab_json(path: Path) -> dict[str, int]:
    """{"piece": id, …}; every id is a whole number and stands once."""
    vocab = read_json(path)
    owners: dict[int, str] = {}
    for piece, id in vocab.items():
        if type(id) is not int or id < 0:
            raise DataError(path, None, f"the id of piece {piece!r} must be 0 or more, is {id!r}.")
        if id in owners:
            raise DataError(path, None, f"pieces {owners[id]!r} and {piece!r} share the id {id}.")
        owners[id] = piece
    return vocab


def read_merges(path: Path, vocab: dict[str, int]) -> list[Pair]:
    """One merge per line, two pieces with a space between; a first line `#version…` is skipped."""
    lines = read_lines(path)
    seen: dict[Pair, int] = {}
    for number, line in enumerate(lines, 1):
        if (number == 1 and line.startswith("#version")) or (number == len(lines) and not line):
            continue
        fields = line.split(" ")
        if len(fields) != 2 or not all(fields):
            problem = f"a merge is two pieces with one space between, but the line is {line!r}."
            raise DataError(path, number, problem)
        pair = fields[0], fields[1]
        if pair in seen:
            raise DataError(path, number, f"merge {line!r} stands on line {seen[pair]} already.")
        for piece in (*pair, "".join(pair)):
            if piece not in vocab:
                problem = f"merge {line!r} needs piece {piece!r}, which the vocabulary lacks."
                raise DataError(path, number, problem, "Do both files belong together?")
        seen[pair] = number
    return list(seen)


def _neighbours(path: Path) -> str:
    if not path.parent.is_dir():
        return f"The folder {path.parent} does not exist either."
    there = sorted(p.name for p in path.parent.iterdir())[:8]
    return f"Its folder holds {', '.join(there)}." if there else "Its folder is empty."
