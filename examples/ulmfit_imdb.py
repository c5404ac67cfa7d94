"""ULMFiT on IMDB's reviews (Howard & Ruder 2018, figure 3): few labels, with and without it.

    python examples/ulmfit_imdb.py imdb_labeled_50k.tsv.gz runs/ulmfit-imdb [words [labels...]]

The file has the columns part, label, name and review. A language model reads so many words (two
million) of the training reviews, without their labels. Then classifiers learn from 100, 1,000 and
25,000 labels, or as many as are asked for: from that language model, and from random weights with
the same options but for gradual unfreezing, which would leave random layers as they are. Reviews
are cut to 128 subwords, and the first 2,000 test reviews, shuffled, are scored: with all of them
whole, `data.max_length=512` and TEST_REVIEWS = 25_000, it takes hours.
"""

from __future__ import annotations

import gzip
import os
import random
import sys
from pathlib import Path

from trec import write_table
from ulmfit import VALID_WORDS, WORDS, accuracy, from_scratch, trained, words_of

LABELS = ("100", "1000", "25000")
TEST_REVIEWS = 2_000
OPTIONS = (
    "data.max_length=128",
    "training.precision=bfloat16",
    "training.validation.eval_steps=100000",
)


def reviews(file: Path, part: str) -> list[tuple[str, str]]:
    """(review, label) of the part "train" or "test", shuffled."""
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        rows = [line.rstrip("\n").split("\t") for line in lines]
    found = [(row[-1].replace("<br />", " "), row[1]) for row in rows if row[0] == part]
    random.Random(1).shuffle(found)
    return found


def write_data(imdb: Path, folder: Path, words: int, labels: list[int]) -> None:
    """The texts of the language model, and the tables of the classifiers."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = reviews(imdb, "train")
    texts = [text for text, _ in rows]
    train = words_of(texts, words)
    valid = words_of(texts[len(train) :] or texts, VALID_WORDS)
    for name, part in (("pretrain", train), ("pretrain-valid", valid)):
        (folder / f"{name}.txt").write_text("\n".join(part) + "\n", "utf-8")
    for count in labels:
        write_table(folder / f"train-{count}.tsv", rows[:count])
    write_table(folder / "test.tsv", reviews(imdb, "test")[:TEST_REVIEWS])


def epochs(count: int) -> int:
    """Of a classifier with so many labels: fewer where there are more."""
    return 20 if count < 1000 else 6 if count < 5000 else 5


def main(imdb: str, out: str, words: str = WORDS, *labels: str) -> None:
    """Train all of them and print a table."""
    folder, counts = Path(out), [int(one) for one in labels or LABELS]
    os.environ["ULMFIT"] = str(folder / "data")
    if not (folder / "data" / "test.tsv").exists():
        write_data(Path(imdb), folder / "data", int(words), counts)
    pretrained = trained("pretrain", folder / "pretrained")
    starts = {  # name -> a folder, and its own options
        "scratch": (
            from_scratch(folder / "scratch", pretrained),
            ["training.gradual_unfreezing_interval=0"],
        ),
        "language model": (pretrained, []),
    }
    print("labels  " + "  ".join(f"{name:>14}" for name in starts))
    for count in counts:
        data = [f"data.train={folder}/data/train-{count}.tsv", f"data.test={folder}/data/test.tsv"]
        found = []
        for name, (start, own) in starts.items():
            options = [*data, f"training.epochs={epochs(count)}", *OPTIONS, *own]
            run = trained("classify", folder / f"{name}-{count}", start, *options)
            found.append(f"{accuracy(run):14.1%}")
        print(f"{count:6,}  " + "  ".join(found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
