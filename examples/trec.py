"""TREC's questions with their six kinds (Li and Roth 2002) as tables.

    python examples/trec.py qc.zip data
    TREC=data regard train recipes/trec-kim-cnn.toml

The first argument is NLTK's archive: 5,452 questions for training and 500 for test.
"""

from __future__ import annotations

import csv
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path


def questions(archive: Path, name: str) -> list[tuple[str, str]]:
    """(question, one of six labels) of a file of the archive."""
    with zipfile.ZipFile(archive) as files:
        lines = files.read(f"qc/{name}.txt").decode("latin-1").splitlines()
    pairs = (line.split(" ", 1) for line in lines)
    return [(text.strip(), label.split(":")[0]) for label, text in pairs]


def write_table(file: Path, rows: Sequence[tuple[str, str]]) -> None:
    """Questions and labels, with a header."""
    with file.open("w", encoding="utf-8", newline="") as out:
        csv.writer(out, delimiter="\t").writerows([("text", "label"), *rows])


def main(archive: str, target: str) -> None:
    """Write train.tsv and test.tsv."""
    folder = Path(target)
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("train", "test"):
        rows = questions(Path(archive), name)
        write_table(folder / f"{name}.tsv", rows)
        print(f"{name}: {len(rows):,} questions")


if __name__ == "__main__":
    main(*sys.argv[1:])
