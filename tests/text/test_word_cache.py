"""Texts encoded by words that were seen before have the ids that the library gives them."""

from __future__ import annotations

import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
import tokenizers
from hard_texts import HARD, SPECIAL_TEXTS, texts
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import normalizers, pre_tokenizers

from regard import text
from regard.errors import RegardError
from regard.text import Tokenizer, long_texts, word_cache
from regard.text.word_cache import WordCache, word_pattern

LINES = [
    "the cat sat on 12 mats, isn't it? <3",
    "une élève naïve mange 3 crêpes",
    "low lower new 1st σίγμα 日本",
    "a  b   c \xa0 d  \xa0e \n\n f\n  g é\xa0  h",  # subwords of white space
] * 4
SPACES = "\t\n\v\f\r\x1c\x1f\x85\xa0\u1680\u180e\u2003\u2028\u200b\u202f\u3000 "
PARTS = ["a", "Z", "é", "Σ", "5", "٣", "-", "'", "'s", "’", "don't", "\u0301", "\u0338", "<", "中"]
TOKENS = {
    "plain": [],
    "special": [tokenizers.AddedToken("<s>", special=True, normalized=False)],
    "lstrip": [tokenizers.AddedToken("mask", lstrip=True, normalized=False)],
    "rstrip": [tokenizers.AddedToken("mask", rstrip=True, normalized=False)],
    "single_word": [tokenizers.AddedToken("cat", single_word=True, normalized=False)],
    "with a space": [tokenizers.AddedToken("a Z", normalized=False)],
}


def variant(kind, tokens=(), **parts):
    """A trained tokenizer with other steps before the model, as published ones have them."""
    found = tokenizers.Tokenizer.from_str(text.train(kind, LINES, 600).to_str())
    found.post_processor = None
    for name, part in parts.items():
        setattr(found, name, part)
    found.add_tokens(list(tokens))
    return found


def bert(**options):
    return variant("wordpiece", normalizer=normalizers.BertNormalizer(**options))


FAST = {
    "uncased": bert(lowercase=True),
    "cased": bert(lowercase=False),
    "uncased with accents": bert(lowercase=True, strip_accents=False),
    "cased without accents": bert(lowercase=False, strip_accents=True),
    "control characters": bert(clean_text=False, handle_chinese_chars=False),
    "not normalized": variant("wordpiece"),
    "words": variant("words", pre_tokenizer=pre_tokenizers.BertPreTokenizer()),
    **{f"bytes, {name}": variant("byte-bpe", tokens) for name, tokens in TOKENS.items()},
    **{
        f"bert, {name}": variant("wordpiece", tokens, normalizer=normalizers.BertNormalizer())
        for name, tokens in TOKENS.items()
    },
}
drawn = st.lists(
    st.one_of(texts, st.lists(st.sampled_from([*PARTS, *SPACES, "mask", "<s>"])).map("".join)),
    max_size=6,
)


@pytest.fixture(autouse=True)
def on_any_machine(monkeypatch):
    monkeypatch.setattr(word_cache, "MOST_CPUS", 10**6)


def encoded(fast, given):
    return [fast.encode(line, add_special_tokens=False).ids for line in given]


@pytest.mark.parametrize("name", FAST)
def test_hard_texts_have_the_ids_of_the_library(name):
    fast = FAST[name]
    given = [*HARD, *SPECIAL_TEXTS, *LINES, " ".join([*LINES, *HARD]), "a mask Z cats a Z <s> it's"]
    cache = WordCache.of(fast)
    expected = encoded(fast, given)
    assert cache.encode_many(given) == expected
    assert cache.encode_many(given) == expected  # all words are kept now
    assert {"the", " the"} & cache.kept.keys()


@pytest.mark.parametrize("name", FAST)
@settings(max_examples=60, deadline=None)
@given(given=drawn)
def test_drawn_texts_have_the_ids_of_the_library(name, given):
    fast = FAST[name]
    expected = encoded(fast, given)
    assert WordCache.of(fast).encode_many(given) == expected
    # Every character as a word first: they are kept when the texts come.
    cache = WordCache.of(fast)
    cache.encode_many(list("".join(given)))
    assert cache.encode_many(given) == expected


@pytest.mark.parametrize("name", ["bytes, plain", "uncased", "cased", "not normalized", "words"])
def test_all_short_texts_have_the_ids_of_the_library(name):
    for signs in (" \n\xa0aé's", " \u2028\x85\va<", "\x1c\t\u3000é中\u0301"):
        cache = WordCache.of(FAST[name])
        short = ["".join(drawn) for drawn in product(signs, repeat=5)]
        cache.encode_many(sorted({line[:length] for line in short for length in range(4)}))
        assert cache.encode_many(short) == encoded(FAST[name], short)


def test_words_with_a_no_break_space_are_kept_where_they_are_independent():
    line = "a\xa0b c"
    kept = {}
    for name in ("uncased", "bytes, plain"):
        cache = WordCache.of(FAST[name])
        cache.encode_many([line])
        kept[name] = cache.kept.keys()
    assert kept == {"uncased": {"a\xa0b", "c"}, "bytes, plain": {" c"}}


@pytest.mark.parametrize("slice", [1, 60, 1 << 20])
@pytest.mark.parametrize(
    "limits", [{"MAX_WORDS": 5}, {"WARM_UP_WORDS": 0}, {"MAX_WORD_LENGTH": 2}, {}]
)
def test_words_beyond_the_limits_have_the_ids_of_the_library(limits, slice, monkeypatch):
    for name, limit in {**limits, "SLICE": slice}.items():
        monkeypatch.setattr(word_cache, name, limit)
    for name in ("uncased", "bytes, plain"):
        cache = WordCache.of(FAST[name])
        for line in [*LINES, *HARD] * 3:
            assert cache.encode_many([line, line]) == encoded(FAST[name], [line, line])
            assert len(cache.kept) <= word_cache.MAX_WORDS
        given = [*LINES, *HARD]
        assert cache.encode_many(given) == encoded(FAST[name], given)
        assert len(cache.kept) <= word_cache.MAX_WORDS


def test_the_words_of_a_text_stay_when_the_others_leave(monkeypatch):
    monkeypatch.setattr(word_cache, "MAX_WORDS", 5)
    cache = WordCache.of(FAST["uncased"])
    cache.encode_many(["a b c d e f g"])
    assert len(cache.kept) == 5
    stay = sorted(cache.kept)[:2]
    cache.encode_many([" ".join([*stay, "new"])])
    assert cache.kept.keys() == {*stay, "new"}


def test_texts_of_new_words_are_left_to_the_library_after_the_first_slice(monkeypatch):
    monkeypatch.setattr(word_cache, "SLICE", 1000)
    monkeypatch.setattr(word_cache, "WARM_UP_WORDS", 100)
    cache = WordCache.of(FAST["uncased"])
    many = [f"w{number}" for number in range(5000)]
    assert cache.encode_many(many) == encoded(FAST["uncased"], many)
    assert 100 < len(cache.kept) < 400


STARTED = """
import os
from tokenizers import Tokenizer, models

before = len(os.listdir("/proc/self/task"))
Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).encode_batch(["a"] * 100)
print(len(os.listdir("/proc/self/task")) - before)
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads in /proc")
@pytest.mark.parametrize(
    ("value", "threads"),
    [
        *product(["", "off", "False", "F", "no", "N", "0", "true", "1", " no", None], ["3"]),
        *product(["false", "true", None], ["1", "+3", "05"]),
    ],
)
def test_the_threads_are_those_of_the_library(value, threads, monkeypatch):
    for name, setting in [("TOKENIZERS_PARALLELISM", value), ("RAYON_NUM_THREADS", threads)]:
        monkeypatch.delenv(name, raising=False)
        if setting is not None:
            monkeypatch.setenv(name, setting)
    started = subprocess.run([sys.executable, "-c", STARTED], capture_output=True, check=True)
    assert word_cache._library_threads() == max(int(started.stdout), 1)


@pytest.mark.parametrize("threads", ["", "0", "-1", "x", "1.5", " 3", "3_0", "٣"])
def test_an_invalid_number_of_threads_is_ignored(threads, monkeypatch):
    monkeypatch.delenv("RAYON_NUM_THREADS", raising=False)
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    plain = word_cache._library_threads()
    monkeypatch.setenv("RAYON_NUM_THREADS", threads)
    assert word_cache._library_threads() == plain


def test_words_that_depend_on_others_have_no_pattern():
    composed = variant("wordpiece", normalizer=normalizers.NFC())
    line = "<\u0338 a"
    pieces = encoded(composed, ["<", "\u0338", "a"])
    assert encoded(composed, [line]) != [sum(pieces, [])]
    dropout = variant("byte-bpe")
    dropout.model.dropout = 0.5
    normalized = variant(
        "wordpiece", [tokenizers.AddedToken("Cat")], normalizer=normalizers.BertNormalizer()
    )
    prefix = variant("byte-bpe", pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True))
    whole = variant("byte-bpe", pre_tokenizer=pre_tokenizers.ByteLevel(use_regex=False))
    lowered = variant("byte-bpe", normalizer=normalizers.NFKC())
    for fast in (composed, dropout, normalized, prefix, whole, lowered, variant("words")):
        assert word_pattern(fast) is None and WordCache.of(fast) is None
    assert Tokenizer(variant("unigram"), "unigram", {})._word_cache is None


def test_the_library_is_asked_on_many_cpus(monkeypatch):
    monkeypatch.setattr(word_cache, "MOST_CPUS", 0)
    assert WordCache.of(FAST["cased"]) is None


@pytest.mark.parametrize("kind", ["wordpiece", "byte-bpe", "words", "unigram", "bpe"])
def test_a_tokenizer_encodes_many_texts_as_one_by_one(kind, monkeypatch):
    tokenizer = text.train(kind, LINES, 300)
    many = [*LINES, *HARD] * (word_cache.MIN_CHARACTERS // len("".join([*LINES, *HARD])) + 1)
    expected = [tokenizer.encode(line).ids for line in many]
    assert tokenizer.encode_many(many) == expected
    used = tokenizer._word_cache
    assert (used is not None) == (kind in ("wordpiece", "byte-bpe"))
    assert used is None or len(used.kept) > 20


@pytest.mark.parametrize("kind", ["wordpiece", "byte-bpe"])
def test_a_long_text_among_others_is_encoded_by_its_words(kind, monkeypatch):
    monkeypatch.setattr(long_texts, "LONG", 100)
    monkeypatch.setattr(long_texts, "PART", 50)
    tokenizer = text.train(kind, LINES, 300)
    many = [*LINES * 100, " ".join([*LINES, *HARD])]
    assert tokenizer.encode_many(many) == [tokenizer.encode(line).ids for line in many]
    assert len(tokenizer._word_cache.kept) > 20


@pytest.mark.parametrize("wrong", ["a \ud800 b", "x\udfff"])
def test_half_a_surrogate_pair_is_the_same_error(wrong):
    tokenizer = text.train("wordpiece", LINES, 300)
    with pytest.raises(RegardError) as plain:
        tokenizer.encode_many(["a", wrong])
    many = ["the cat sat " * word_cache.MIN_CHARACTERS, wrong]
    with pytest.raises(RegardError) as found:
        tokenizer.encode_many(many)
    assert str(found.value) == str(plain.value)
    assert tokenizer.encode_many(many[:1]) == [tokenizer.encode(many[0]).ids]
