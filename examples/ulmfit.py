"""ULMFiT on TREC's questions (Howard & Ruder 2018): three trainings, beside one from scratch.

    python examples/ulmfit.py imdb_labeled_50k.tsv.gz qc.zip runs/ulmfit [words]

The first argument has reviews in its last column, the second is NLTK's archive of TREC. A language
model is trained on so many words of reviews (two million), tuned on the texts of the questions, and
then classifies; for 100, 1,000 and all labels its accuracy is printed beside that of the same model
with the same options from random weights, and from the language model before it was tuned.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import sys
from collections.abc import Iterable
from pathlib import Path

from trec import questions, write_table

import regard
from regard.experiments import runs
from regard.recipe import read

WORDS, VALID_WORDS = "2000000", 20_000
LABELS = (100, 1000, 5452)
RECIPES = Path(__file__).parents[1] / "recipes"


def reviews(file: Path) -> list[str]:
    """The reviews of the training part, shuffled."""
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        rows = [line.rstrip("\n").split("\t") for line in lines]
    texts = [row[-1].replace("<br />", " ") for row in rows if row[0] == "train"]
    random.Random(1).shuffle(texts)
    return texts


def words_of(texts: Iterable[str], count: int) -> list[str]:
    """Texts until they have so many words."""
    found: list[str] = []
    for text in texts:
        if count <= 0:
            break
        found.append(text)
        count -= len(text.split())
    return found


def write_data(imdb: Path, trec: Path, folder: Path, words: int) -> None:
    """The files that the recipes name."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = reviews(imdb)
    train = words_of(texts, words)
    (folder / "pretrain.txt").write_text("\n".join(train) + "\n", "utf-8")
    valid = words_of(texts[len(train) :], VALID_WORDS)
    (folder / "pretrain-valid.txt").write_text("\n".join(valid) + "\n", "utf-8")
    rows = questions(trec, "train")
    random.Random(1).shuffle(rows)
    lines = [text for text, _ in rows]
    (folder / "trec-texts.txt").write_text("\n".join(lines[500:]) + "\n", "utf-8")
    (folder / "trec-texts-valid.txt").write_text("\n".join(lines[:500]) + "\n", "utf-8")
    for count in LABELS:
        write_table(folder / f"trec-train-{count}.tsv", rows[:count])
    write_table(folder / "trec-test.tsv", questions(trec, "test"))


def trained(recipe: str, out: Path, start: Path | None = None, *options: str) -> Path:
    """The run of a recipe; one that is finished is not trained again."""
    os.environ["ULMFIT_MODEL"] = str(start)
    if not (out / "result.json").exists():
        runs.train_recipe(
            read(RECIPES / f"ulmfit-{recipe}.toml", ["training.threads=1", *options]), out=out
        )
    return out


def accuracy(run: Path) -> float:
    """On the test questions."""
    return json.loads((run / "result.json").read_text())["test_scores"]["accuracy"]


def from_scratch(folder: Path, start: Path) -> Path:
    """The language model with random weights, under the tokenizer of the trained one."""
    task = regard.load(start)
    model = type(task.module)(task.module.config)
    task.module.load_state_dict(model.state_dict())
    regard.save(task, folder)
    return folder


def main(imdb: str, trec: str, out: str, words: str = WORDS) -> None:
    """Train all of them and print a table."""
    folder = Path(out)
    os.environ["ULMFIT"] = str(folder / "data")
    if not (folder / "data" / "trec-test.tsv").exists():
        write_data(Path(imdb), Path(trec), folder / "data", int(words))
    pretrained = trained("pretrain", folder / "pretrained")
    starts = {
        "scratch": from_scratch(folder / "scratch", pretrained),
        "pre-trained": pretrained,
        "tuned": trained("tune", folder / "tuned", pretrained),
    }
    print("labels  " + "  ".join(f"{name:>11}" for name in starts))
    for count in LABELS:
        found = []
        for name, start in starts.items():
            data = f"data.train={folder}/data/trec-train-{count}.tsv"
            length = "training.epochs=30" if count < 1000 else "training.epochs=12"
            run = trained("classify", folder / f"{name}-{count}", start, data, length)
            found.append(f"{accuracy(run):11.1%}")
        print(f"{count:6,}  " + "  ".join(found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
