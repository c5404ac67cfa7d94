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
        brackets = score.report.scores.micro
        found = [
            1 if score.errors else 2 if score.skipped else 0,
            round(100 * score.recall, 2), round(100 * score.precision, 2),
            round(score.recall * brackets.targets), brackets.targets, brackets.predicted,
        ]  # fmt: skip
        assert found == pytest.approx([*row[2:8]], abs=0.0051), (gold, predicted)
    score = together.result()
    found = [
        len(pairs), score.errors, score.skipped, score.count,
        100 * score.recall, 100 * score.precision, 100 * score.value, 100 * score.exact_match,
    ]  # fmt: skip
    assert found == pytest.approx(expected["summary"][:8], abs=0.0051)


def test_scores_equal_those_that_evalb_printed():
    stored = json.loads((HERE / "evalb.json").read_text())
    assert_equal_scores(stored["pairs"], stored["printed"])
