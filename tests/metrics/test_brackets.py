"""Bracket scores: equal to those that EVALB printed once.

`evalb.json` holds random trees with the numbers that EVALB printed for them with COLLINS.prm.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from regard.metrics import BracketF1
from regard.text.trees import read_trees

HERE = Path(__file__).parent


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
