"""The unigram language model against sums over all segmentations."""

from __future__ import annotations

from itertools import combinations, pairwise
from math import exp, fsum, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard import text
from regard.errors import ConfigError
from regard.text import explain
from regard.text.unigram import UnigramModel

SCORES = {"a": -2.0, "b": -2.5, "c": -4.0, "ab": -2.2, "bc": -3.0, "abc": -5.5, "ca": -3.7}


def segmentations(word, model):
    """Every cut of a word into subwords of the vocabulary, with its log-probability."""
    for count in range(len(word)):
        for cuts in combinations(range(1, len(word)), count):
            parts = [word[a:b] for a, b in pairwise((0, *cuts, len(word)))]
            scores = [
                model.scores.get(part, model.unknown if len(part) == 1 else None) for part in parts
            ]
            if None not in scores:
                yield parts, fsum(scores)


@given(word=st.text("abcx", min_size=1, max_size=9))
def test_path_and_likelihood_equal_those_of_all_segmentations(word):
    model = UnigramModel(SCORES)
    found = list(segmentations(word, model))
    best = model.best(word)
    assert "".join(edge.subword for edge in best) == word
    assert fsum(edge.score for edge in best) == pytest.approx(max(s for _, s in found), abs=1e-5)
    total = fsum(exp(score) for _, score in found)
    assert model.log_likelihood(word) == pytest.approx(log(total), abs=1e-9)


LINES = ["the older the finest lowest", "lower and older, 12.5 of the newest!"] * 30


def test_trained_tokenizers_are_the_same_each_time_and_keep_every_covered_character():
    one = text.train("unigram", LINES, 60, character_coverage=1.0)
    two = text.train("unigram", iter(LINES), 60, character_coverage=1.0)
    assert one.fingerprint() == two.fingerprint()
    assert one.vocab_size <= 60 and one.roles["unk"] == "<unk>"
    for line in LINES[:2]:
        assert one.decode(one.encode(line).ids) == line
    fewer = text.train("unigram", [*LINES, "z"], 60, character_coverage=0.98)
    assert fewer.unk_id in fewer.encode("z").ids


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_subword_length": 0}, "max_subword_length"),
        ({"character_coverage": 0}, "character_coverage"),
        ({"split": "gpt2"}, "split"),
        ({"special_tokens": ["<pad>"]}, "<unk>"),
    ],
)
def test_options_out_of_range_are_named(options, message):
    with pytest.raises(ConfigError, match=message):
        text.train("unigram", LINES, 60, **options)


def test_a_vocabulary_smaller_than_the_alphabet_is_an_error_with_the_least_size():
    with pytest.raises(ConfigError, match="`vocab_size` must be at least"):
        text.train("unigram", LINES, 10)


def test_texts_without_words_give_a_vocabulary_of_the_space():
    assert text.train("unigram", ["  "], 10).encode("a").ids == [
        text.train("unigram", ["  "], 10).id("▁"),
        3,
    ]


def test_the_lattice_of_a_word_shows_each_subword_and_the_best_path(tmp_path):
    from regard.visual import lattice

    tokenizer = text.train("unigram", LINES, 60, character_coverage=1.0)
    (word,) = explain.encoding(tokenizer, "older")
    assert word.tokens == tuple(tokenizer.encode("older").tokens)
    assert 0 < word.best_share <= 1
    shown = explain.render(word)
    assert shown.count("best") >= len(word.best) and f"{word.log_likelihood:.3f}" in shown
    table = lattice(word, "older")
    assert [row[0] for row in table.rows] == [edge.subword for edge in word.edges]
    assert sum(row[3] == "*" for row in table.rows) == len(word.best)
