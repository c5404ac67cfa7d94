"""The tables of the lectures, number by number, and explanations that agree with the encoder."""

from __future__ import annotations

from functools import cache

import pytest
from hard_texts import HARD, texts
from hypothesis import given, settings

from regard import text
from regard.text import explain

LECTURE_E = {"old": 7, "older": 3, "finest": 9, "lowest": 4}

# The tables of the lecture as printed there: token -> frequency, after each number of merges.
CHARACTERS = dict(zip("</w> o l d e r f i n s t w".split(), [23, 14, 14, 10, 16, 3, 9, 9, 9, 13, 13, 4]))  # noqa: B905, E501  # fmt: skip
TABLES = {
    0: CHARACTERS,
    1: CHARACTERS | {"e": 3, "s": 0, "es": 13},
    2: CHARACTERS | {"e": 3, "s": 0, "t": 0, "es": 0, "est": 13},
    3: CHARACTERS | {"</w>": 10, "e": 3, "s": 0, "t": 0, "es": 0, "est": 0, "est</w>": 13},
    5: CHARACTERS
    | {"</w>": 10, "o": 4, "l": 4, "d": 0, "e": 3, "s": 0, "t": 0}
    | {"es": 0, "est": 0, "est</w>": 13, "ol": 0, "old": 10},
}


@pytest.mark.parametrize("merges", TABLES)
def test_the_merge_tables_equal_those_of_the_lecture(merges):
    step = explain.training(LECTURE_E, 5).iterations[merges]
    assert {row.token: row.frequency for row in step.rows} == TABLES[merges]
    assert [row.token for row in step.rows] == list(TABLES[merges])  # in the printed order
    assert [row.number for row in step.rows] == list(range(1, len(step.rows) + 1))


def test_the_last_table_is_rendered_as_in_the_lecture():
    shown = explain.render(explain.training(LECTURE_E, 5)).split("\n\n")[5]
    for line in (
        "1       </w>     23 - 13 = 10",
        "2       o        14 - 10 = 4",
        "4       d        10 - 10 = 0",
        "5       e        16 - 13 = 3",
        "13      es       9 + 4 = 13 - 13 = 0",
        "16      ol       7 + 3 = 10 - 10 = 0",
        "17      old      7 + 3 = 10",
    ):
        assert line in shown


def test_frequencies_equal_a_recount_after_every_merge():
    for step in explain.training(LECTURE_E, 15).iterations:
        symbols = [(s, count) for word, count in step.words.items() for s in word.split()]
        for row in step.rows:
            assert row.frequency == sum(count for s, count in symbols if s == row.token)


@cache
def trained(kind):
    return text.train(kind, [*HARD, "low lower lowest", "wide wider widest"] * 2, 1200)


@pytest.mark.parametrize("kind", text.KINDS)
@settings(max_examples=60, deadline=None)
@given(line=texts)
def test_explained_tokens_equal_encoded_tokens(kind, line):
    tokenizer = trained(kind)
    words = explain.encoding(tokenizer, line)
    assert [p for word in words for p in word.tokens] == tokenizer.encode(line).tokens
    assert isinstance(explain.render(words), str)


def test_tokens_of_published_vocabularies_are_explained(shared):
    gpt2 = text.Tokenizer.load(shared("vocab/gpt2"))
    pieces = [piece for word in explain.encoding(gpt2, HARD[-1]) for piece in word.tokens]
    assert pieces == gpt2.encode(HARD[-1]).tokens
    (word,) = explain.encoding(gpt2, "unable")
    ranks = [step.rank for step in word.steps]
    assert ranks == sorted(ranks) and word.steps[-1].symbols == word.tokens
    bert = text.Tokenizer.load(shared("vocab/bert-base-uncased-vocab.txt"))
    (word,) = explain.encoding(bert, "Unaffable")
    # The published vocabulary has longer pieces than the un ##aff ##able of the lectures.
    assert word.tokens == ("una", "##ffa", "##ble")
    assert "una    unaffable unaffabl unaffab unaffa unaff unaf una" in explain.render(word)
