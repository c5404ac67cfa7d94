"""Reading the original files with plain Python: no quoting, no cleaning, no skipped row."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

from benchmarks.finetuning.conditions import Columns, Task

Label = str | float | list[str]


@dataclass(frozen=True)
class Row:
    """One or two texts with a class name or a number; or words with their tags in IOB2."""

    texts: tuple[str, ...]
    label: Label


def read(task: Task, files: tuple[str, ...], data: Path) -> list[Row]:
    """All rows of the files, one file after the other."""
    if task.columns is None:
        return [each for file in files for each in _sentences(data / file)]
    if ".zip:" in files[0]:
        return [each for file in files for each in _questions(*str(data / file).split(":"))]
    numbers = not task.labels
    return [each for file in files for each in _rows(data / file, task.columns, numbers)]


def training(task: Task, data: Path, count: int | None) -> list[Row]:
    """The rows to train on: the first `count` of a shuffle that is always the same, or all."""
    found = read(task, (task.train,), data)
    wanted = count or task.rows
    if wanted:
        random.Random(1).shuffle(found)
        if wanted > len(found):
            raise SystemExit(f"{wanted} rows were asked for, {task.train} has {len(found)}")
    return found[:wanted]


def _lines(file: Path) -> Iterator[str]:
    # Only "\n" ends a line: texts may hold other characters that Python takes for line ends.
    with file.open(encoding="utf-8-sig", newline="\n") as opened:
        for line in opened:
            yield line.rstrip("\r\n")


def _rows(file: Path, columns: Columns, numbers: bool) -> Iterator[Row]:
    for number, line in enumerate(_lines(file)):
        if number == 0 and columns.header:
            continue
        fields = line.split("\t")
        label: Label = float(fields[columns.label]) if numbers else fields[columns.label]
        yield Row(tuple(fields[at] for at in columns.texts), label)


def _questions(archive: str, file: str) -> Iterator[Row]:
    """TREC's questions, "NUM:dist How far is it", of which the class before the colon is the label.

    The files are in Latin-1.
    """
    with ZipFile(archive) as opened:
        lines = opened.read(file).decode("latin-1").splitlines()
    for line in lines:
        kind, _, question = line.partition(" ")
        yield Row((question,), kind.partition(":")[0])


def _sentences(file: Path) -> Iterator[Row]:
    words: list[str] = []
    tags: list[str] = []
    for line in (*_lines(file), ""):
        fields = line.split()
        if fields and fields[0] != "-DOCSTART-":
            words.append(fields[0])
            tags.append(fields[-1])
        elif words:
            yield Row(tuple(words), _iob2(tags))
            words, tags = [], []


def _iob2(tags: list[str]) -> list[str]:
    """B- where an entity begins; the files write it only between two of a kind that touch."""
    before = ["O", *tags[:-1]]
    return [
        f"B{tag[1:]}" if tag[0] == "I" and last[2:] != tag[2:] else tag
        for last, tag in zip(before, tags, strict=True)
    ]
