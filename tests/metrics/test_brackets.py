"""Bracket scores: equal to EVALB's, compiled from its source or as it printed them once.

`evalb.json` holds random trees with the numbers that EVALB printed for them with COLLINS.prm. To
compare with the program itself, on new trees: EVALB=/folder/with/evalb.c pytest tests/metrics
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from regard.errors import RegardError
from regard.metrics import BracketF1
from regard.text.trees import read_trees

HERE = Path(__file__).parent
LABELS = ["S", "NP", "NP-SBJ", "VP", "ADVP", "PRT", "ADVP-TMP=1", "TOP", "PP", "X|Y"]
TAGS = ["NN", "VB", ",", ".", ":", "``", "''", "-NONE-", "-LRB-", "RB", "$"]
SUMMARY = (
    "Number of sentence", "Number of Error sentence", "Number of Skip  sentence",
    "Number of Valid sentence", "Bracketing Recall", "Bracketing Precision",
    "Bracketing FMeasure", "Complete match", "Average crossing", "Tagging accuracy",
)  # fmt: skip


def random_tree(draw: random.Random, words: list[str], tags: list[str]) -> str:
    """Brackets over these words, with unary chains."""

    def grow(start: int, stop: int, depth: int) -> str:
        if stop - start == 1 and (depth > 4 or draw.random() < 0.6):
            return f"({tags[start]} {words[start]})"
        label = draw.choice(LABELS)
        if depth < 5 and draw.random() < 0.2:
            return f"({label} {grow(start, stop, depth + 1)})"
        count = draw.randint(1, min(3, stop - start))
        cuts = [start, *sorted(draw.sample(range(start + 1, stop), count - 1)), stop]
        inner = [grow(*cut, depth + 1) for cut in zip(cuts, cuts[1:], strict=False)]
        return f"({label} {' '.join(inner)})"

    return f"(TOP (S {grow(0, len(words), 0)}))" if draw.random() < 0.5 else (
        f"(S {grow(0, len(words), 0)})"
    )  # fmt: skip


def random_pairs(seed: int, count: int) -> list[tuple[str, str]]:
    """Gold and predicted trees, some of which differ in their words or lack a tree."""
    draw = random.Random(seed)
    pairs = []
    for _ in range(count):
        words = [draw.choice("abcd") for _ in range(draw.randint(1, 9))]
        tags = [draw.choice(TAGS) for _ in words]
        gold = random_tree(draw, words, tags)
        words, tags = words.copy(), tags.copy()
        change, at = draw.random(), draw.randrange(len(words))
        if change < 0.1:
            words[at] = "other"
        elif change < 0.3:
            tags[at] = draw.choice(TAGS)
        predicted = gold if change > 0.9 else random_tree(draw, words, tags)
        pairs.append((gold, predicted))
    return pairs


def evalb(folder: Path, tmp: Path, pairs: list[tuple[str, str]]) -> dict[str, list]:
    """What the program prints: a row for each sentence, and the summary of all."""
    compiler = shutil.which("cc") or pytest.skip("there is no C compiler")
    binary = tmp / "evalb"
    subprocess.run([compiler, "-O1", "-w", "-o", binary, folder / "evalb.c"], check=True)
    for name, column in (("gold", 0), ("predicted", 1)):
        (tmp / name).write_text("".join(pair[column] + "\n" for pair in pairs))
    command = [
        binary,
        "-p",
        folder / "COLLINS.prm",
        "-e",
        "100000",
        tmp / "gold",
        tmp / "predicted",
    ]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    lines = [line.split() for line in printed.split("=== Summary")[0].splitlines()]
    rows = [list(map(float, line)) for line in lines if len(line) == 12 and line[0].isdigit()]
    whole = printed.split("-- All --")[1].split("-- len")[0]
    found = dict(line.split("=") for line in whole.splitlines() if "=" in line)
    named = {name.strip(): float(value) for name, value in found.items()}
    return {"rows": rows, "summary": [named[name] for name in SUMMARY]}


def assert_equal_scores(pairs: list[tuple[str, str]], expected: dict[str, list]) -> None:
    """Sentence by sentence, and all together."""
    together = BracketF1()
    for (gold, predicted), row in zip(pairs, expected["rows"], strict=True):
        trees = read_trees(predicted), read_trees(gold)
        together.add(*trees)
        alone = BracketF1()
        alone.add(*trees)
        score = alone.result()
        counts = score.counts
        found = [
            1 if score.errors else 2 if score.skipped else 0,
            round(100 * score.recall, 2), round(100 * score.precision, 2),
            counts.matched, counts.gold, counts.predicted, counts.crossing,
            counts.words, counts.correct_tags,
        ]  # fmt: skip
        assert found == pytest.approx([*row[2:11]], abs=0.0051), (gold, predicted)
    score = together.result()
    counts = score.counts
    found = [
        len(pairs), score.errors, score.skipped, counts.sentences,
        100 * score.recall, 100 * score.precision, 100 * score.value, 100 * score.exact_match,
        counts.crossing / counts.sentences, 100 * counts.correct_tags / counts.words,
    ]  # fmt: skip
    assert found == pytest.approx(expected["summary"], abs=0.0051)


def test_scores_equal_those_that_evalb_printed():
    stored = json.loads((HERE / "evalb.json").read_text())
    assert_equal_scores(stored["pairs"], stored["printed"])


def test_scores_equal_those_of_the_program(tmp_path):
    folder = Path(os.environ.get("EVALB", "/nowhere"))
    if not (folder / "evalb.c").exists():
        pytest.skip("the source of EVALB is not on this machine (set EVALB to its folder)")
    for seed in range(3):
        pairs = random_pairs(seed, 400)
        assert_equal_scores(pairs, evalb(folder, tmp_path, pairs))


def test_no_trees_and_unequal_numbers_of_trees_raise_an_error():
    tree = read_trees("(S (NN a))")
    with pytest.raises(RegardError, match="nothing was added"):
        BracketF1().result()
    with pytest.raises(RegardError, match="as many trees as gold trees"):
        BracketF1().add(tree, tree * 2)
