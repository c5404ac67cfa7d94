"""AESLC (Zhang and Tetreault 2019) as tables of email bodies and subjects, and a baseline's scores.

    python examples/aeslc.py enron_subject_line data
    AESLC=data regard train recipes/aeslc-transformer.toml

The first argument is the folder with train, dev and test, each file of which is an email with its
subject. The baseline takes the first sentence of a body, which is its first line, as the subject.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from regard.metrics import ROUGE

PARTS = ("train", "dev", "test")


def pair(text: str) -> tuple[str, str]:
    """The sentences of a body, a line each, and its subject."""
    body, _, rest = text.partition("@subject")
    return body.strip(), rest.partition("@ann0")[0].strip()


def pairs(folder: Path) -> list[tuple[str, str]]:
    """All emails of a part that have a body and a subject."""
    files = sorted(folder.glob("*.subject"))
    found = [pair(file.read_text(encoding="utf-8", errors="replace")) for file in files]
    return [(body, subject) for body, subject in found if body and subject]


def write(rows: list[tuple[str, str]], file: Path) -> None:
    """A JSON object a line, with the sentences of a body on one line."""
    named = [{"body": " ".join(body.split()), "subject": subject} for body, subject in rows]
    file.write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in named), "utf-8")


def first_sentence_scores(rows: list[tuple[str, str]]) -> list[str]:
    """ROUGE of the first sentences of bodies against their subjects."""
    metrics = [ROUGE(kind) for kind in ("rouge1", "rouge2", "rougeL")]
    for metric in metrics:
        metric.add([body.splitlines()[0] for body, _ in rows], [subject for _, subject in rows])
    return [str(metric.result()) for metric in metrics]


def main(source: str, target: str) -> None:
    """Write the tables and print the baseline's scores on the test part."""
    Path(target).mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        rows = pairs(Path(source) / part)
        write(rows, Path(target) / f"{part}.jsonl")
        print(f"{part}: {len(rows):,} emails")
    print("first sentence:", *first_sentence_scores(rows), sep="\n  ")


if __name__ == "__main__":
    main(*sys.argv[1:])
