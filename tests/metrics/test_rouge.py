"""ROUGE against `rouge-score`, and its longest common subsequence against the recursion."""

from __future__ import annotations

import random
from functools import cache

import pytest

from regard.errors import RegardError
from regard.metrics import ROUGE
from regard.metrics.text import KINDS, longest_common

# hypothesis, reference, and the F1 of ROUGE-1, ROUGE-2 and ROUGE-L that rouge-score 0.1.2 gives
PUBLISHED = [
    ("The cat sat.", "the CAT sat on a mat", 0.666667, 0.571429, 0.666667),
    ("", "a", 0.000000, 0.000000, 0.000000),
    ("a b", "", 0.000000, 0.000000, 0.000000),
    ("é é", "é", 0.000000, 0.000000, 0.000000),
    ("a", "a", 1.000000, 0.000000, 1.000000),
    ("Re: FY-2002 budget, don't!", "FY 2002 budget", 0.666667, 0.571429, 0.666667),
    ("42 cat sun,", "42 the the été on on The Mat", 0.181818, 0.000000, 0.181818),
    ("It's a", "sun, don't It's sat été 42 on the été", 0.285714, 0.166667, 0.285714),
    ("cat été mat sat a x-ray sun,", "42", 0.000000, 0.000000, 0.000000),
    ("", "x-ray a sun, The don't The a", 0.000000, 0.000000, 0.000000),
    ("a été 42", "a été cat 42 42", 0.750000, 0.333333, 0.750000),
    ("a été on a mat mat", "the mat sat Mat été 42 don't", 0.428571, 0.000000, 0.285714),
    (
        "The sun, on x-ray été It's don't a",
        "sun, sun, sun, The cat on",
        0.352941,
        0.000000,
        0.235294,
    ),
]


@pytest.mark.parametrize("number", range(3))
def test_scores_are_those_of_rouge_score(number):
    whole = ROUGE(KINDS[number])
    for hypothesis, reference, *wanted in PUBLISHED:
        one = ROUGE(KINDS[number])
        for metric in (one, whole):
            metric.add([hypothesis], [reference])
        assert one.result().value == pytest.approx(100 * wanted[number], abs=1e-3)
    mean = sum(row[2 + number] for row in PUBLISHED) / len(PUBLISHED)
    found = whole.result()
    assert found.value == pytest.approx(100 * mean, abs=1e-3)
    assert found.name == ("ROUGE-1", "ROUGE-2", "ROUGE-L")[number]


def test_the_longest_common_subsequence_is_that_of_the_recursion():
    def recursive(first: str, second: str) -> int:
        @cache
        def of(i: int, j: int) -> int:
            if not i or not j:
                return 0
            same = first[i - 1] == second[j - 1]
            return of(i - 1, j - 1) + 1 if same else max(of(i - 1, j), of(i, j - 1))

        return of(len(first), len(second))

    draw = random.Random(1)
    for _ in range(300):
        first, second = ("".join(draw.choices("abcd", k=draw.randint(0, 12))) for _ in range(2))
        assert longest_common(first, second) == recursive(first, second)


def test_wrong_input_is_an_error():
    with pytest.raises(RegardError, match="rouge1, rouge2, rougeL"):
        ROUGE("rouge3")
    with pytest.raises(RegardError, match="ROUGE of nothing"):
        ROUGE().result()


def test_texts_without_a_word_that_counts_are_a_warning():
    with pytest.warns(UserWarning, match="words of a-z and 0-9 alone.*has none"):
        ROUGE().add(["แมวนั่ง"], ["แมวนั่ง"])
