"""The unigram language model against sums over all segmentations, and against SentencePiece."""

from __future__ import annotations

from itertools import combinations, pairwise
from math import exp, fsum, log
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard import text
from regard.errors import ConfigError
from regard.text import explain
from regard.text.unigram import UnigramModel, model_of
from regard.text.unigram_training import Lattices, _digamma, learn, script

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
    counts: dict[str, float] = {}
    for parts, score in found:
        for part in parts:
            counts[part] = counts.get(part, 0.0) + exp(score) / total
    assert model.expected_counts(word) == pytest.approx(counts, abs=1e-9)


def test_many_lattices_at_once_equal_one_after_the_other():
    draw, subwords = Random(3), sorted(SCORES)
    words = ["".join(draw.choice("abc") for _ in range(draw.randint(1, 12))) for _ in range(40)]
    times = np.array([draw.randint(1, 9) for _ in words], dtype=float)
    scores, model = np.array([SCORES[s] for s in subwords]), UnigramModel(SCORES)
    lattices = Lattices.of(words, subwords)
    expected, best = dict.fromkeys(subwords, 0.0), dict.fromkeys(subwords, 0.0)
    for word, count in zip(words, times.tolist(), strict=True):
        for subword, share in model.expected_counts(word).items():
            expected[subword] += share * count
        for edge in model.best(word):
            best[edge.subword] += count
    assert lattices.expected_counts(scores, times) == pytest.approx(list(expected.values()))
    assert lattices.best_counts(scores, times) == pytest.approx(list(best.values()))
    kept = np.array([name not in ("ab", "ca") for name in subwords])
    fewer = lattices.with_subwords(kept)
    again = Lattices.of(words, fewer.subwords)
    assert fewer.expected_counts(scores[kept], times) == pytest.approx(
        again.expected_counts(scores[kept], times)
    )


def test_digamma_equals_that_of_scipy():
    from scipy.special import digamma

    x = np.concatenate([np.geomspace(1e-3, 1e9, 200), np.arange(1.0, 20)])
    assert _digamma(x) == pytest.approx(digamma(x), rel=1e-9, abs=1e-9)


def test_training_fits_the_probabilities_that_made_the_words():
    """Words drawn from four subwords: training finds the four again."""
    draw, parts = Random(0), {"xyz": 0.4, "uv": 0.3, "qrst": 0.2, "w": 0.1}
    words: dict[str, int] = {}
    for _ in range(20_000):
        count = 1 + int(-np.log(draw.random()) * 2)
        word = "".join(draw.choices(list(parts), list(parts.values()), k=count))
        words[word] = words.get(word, 0) + 1
    scores = learn(words, size=14)
    top = sorted(scores, key=scores.__getitem__, reverse=True)[:4]
    assert set(top) == set(parts)
    for name, probability in parts.items():
        assert exp(scores[name]) == pytest.approx(probability, abs=0.02)


LINES = ["the older the finest lowest", "lower and older, 12.5 of the newest!"] * 30


def test_trained_tokenizers_are_the_same_each_time_and_keep_every_covered_character():
    one = text.train("unigram", LINES, 60, character_coverage=1.0)
    two = text.train("unigram", iter(LINES), 60, character_coverage=1.0)
    assert one.fingerprint() == two.fingerprint()
    assert one.vocab_size <= 60 and one.roles["unk"] == "<unk>"
    for line in LINES[:2]:
        assert one.decode(one.encode(line).ids) == line
    fewer = text.train("unigram", LINES, 60, character_coverage=0.9)
    assert fewer.unk_id in fewer.encode("12.5").ids


def test_subwords_do_not_mix_scripts_unless_asked_to():
    lines = ["abc1 abc1 abc1 日本x 日本x 日本x カナ漢 カナ漢 a,b a,b a,b"] * 20
    for name in text.train("unigram", lines, 60).vocab():
        if not name.startswith("<"):
            assert len({script(char) for char in name if char != "▁"}) <= 1, name
    mixed = text.train("unigram", lines, 60, split_by_unicode_script=False).vocab()
    assert "▁abc1" in mixed


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


def test_held_out_likelihood_is_not_below_that_of_sentencepiece(shared, tmp_path):
    spm = pytest.importorskip("sentencepiece")
    lines = shared("tiny_shakespeare/input.txt").read_text("utf-8").split("\n")
    lines = [line for line in lines if line.strip()]
    Random(0).shuffle(lines)
    held_out, lines = lines[:500], lines[500:12_000]
    (tmp_path / "text").write_text("\n".join(lines), encoding="utf-8")
    spm.SentencePieceTrainer.train(
        input=str(tmp_path / "text"),
        model_prefix=str(tmp_path / "their"),
        vocab_size=2000,
        minloglevel=2,
    )
    theirs = model_of(text.Tokenizer.load(tmp_path / "their.model").to_json())
    ours = model_of(text.train("unigram", lines, 2000, ["<unk>", "<s>", "</s>"]).to_json())

    def likelihood(model):
        words = (f"▁{word}" for line in held_out for word in line.split())
        return fsum(map(model.log_likelihood, words))

    assert likelihood(ours) > likelihood(theirs) * 1.005


def test_the_lattice_of_a_word_shows_each_subword_and_the_best_path(tmp_path):
    from regard.visual import Lattice

    tokenizer = text.train("unigram", LINES, 60, character_coverage=1.0)
    (word,) = explain.encoding(tokenizer, "older")
    assert word.tokens == tuple(tokenizer.encode("older").tokens)
    assert 0 < word.best_share <= 1
    shown = explain.render(word)
    assert shown.count("best") >= len(word.best) and f"{word.log_likelihood:.3f}" in shown
    picture = Lattice(word, "older")
    svg = picture.svg()
    assert all(f"{edge.subword}: p = " in svg for edge in word.edges)
    assert "older" in picture.text()
