"""Long texts are encoded in parts, to the ids of the whole text."""

from __future__ import annotations

from functools import cache

import pytest
import tokenizers
from hard_texts import HARD, texts
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import normalizers, pre_tokenizers

from regard import text
from regard.text import long_texts

LINES = [
    "the cat sat on 12 mats, isn't it",
    "une élève naïve mange 3 crêpes",
    "low lower new 1st",
] * 4
DIVIDED = {"bpe", "byte-bpe", "wordpiece", "wordpiece-likelihood", "words", "unigram"}


@cache
def trained(kind):
    return text.train(kind, LINES, 300)


def variant(kind, **parts):
    """A trained tokenizer with other steps before the model, as published ones have them."""
    found = tokenizers.Tokenizer.from_str(trained(kind).to_str())
    found.post_processor = None
    for name, part in parts.items():
        setattr(found, name, part)
    return found


BYTES = pre_tokenizers.ByteLevel
VARIANTS = {
    "roberta": variant("byte-bpe", pre_tokenizer=BYTES(add_prefix_space=True)),
    "bert-uncased": variant("wordpiece", normalizer=normalizers.BertNormalizer(lowercase=True)),
    "nfkc": variant("wordpiece", normalizer=normalizers.NFKC()),
}


def batch(fast):
    """What encodes texts with a tokenizer of the library."""
    return lambda given: [row.ids for row in fast.encode_batch(given, add_special_tokens=False)]


@pytest.fixture(autouse=True)
def short_parts(monkeypatch):
    monkeypatch.setattr(long_texts, "LONG", 5)
    monkeypatch.setattr(long_texts, "PART", 3)
    monkeypatch.setattr(long_texts, "AT_ONCE", 20)


@pytest.mark.parametrize("kind", text.KINDS)
def test_texts_in_parts_have_the_ids_of_the_whole_text(kind):
    tokenizer = trained(kind)
    assert tokenizer._divided == (kind in DIVIDED)
    given = [*HARD, " ".join([*LINES, *HARD, *LINES]), "", *LINES]
    assert tokenizer.encode_many(given) == [tokenizer.encode(line).ids for line in given]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(["a", "1st", "the cat", " mats", "it 's"]), texts)))
def test_drawn_texts_in_parts_have_the_ids_of_the_whole_text(drawn):
    line = " ".join(drawn)
    assert "".join(long_texts.parts(line)) == line
    fast = [trained(kind)._fast for kind in DIVIDED]
    for one in [*fast, *VARIANTS.values()]:
        whole = one.encode(line, add_special_tokens=False).ids
        assert long_texts.encode_in_parts(batch(one), [line, "", line]) == [whole, [], whole]


SPLITS = [
    pre_tokenizers.WhitespaceSplit(),
    pre_tokenizers.BertPreTokenizer(),
    pre_tokenizers.Whitespace(),
]
NEXT = [
    *(pre_tokenizers.Metaspace(prepend_scheme=scheme) for scheme in ("first", "always", "never")),
    *(BYTES(add_prefix_space=prefix, use_regex=False) for prefix in (True, False)),
    pre_tokenizers.Digits(individual_digits=True),
]
NORMALIZERS = [
    None,
    normalizers.BertNormalizer(),
    normalizers.NFKC(),
    normalizers.Sequence([normalizers.NFKC(), normalizers.StripAccents()]),
]
ADDED = ["New\tYork", "cat\u3000sat", "mat\u00a8s", "1st", "ca"]


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(SPLITS),
    st.sampled_from(NEXT),
    st.sampled_from(NORMALIZERS),
    st.sampled_from(ADDED),
    st.tuples(st.booleans(), st.booleans(), st.booleans(), st.booleans()),
)
def test_whatever_is_divided_has_the_ids_of_the_whole_text(split, then, normalizer, added, flags):
    names = ("lstrip", "rstrip", "single_word", "normalized")
    fast = variant("unigram", pre_tokenizer=pre_tokenizers.Sequence([split, then]))
    fast.normalizer = normalizer
    fast.add_tokens([tokenizers.AddedToken(added, **dict(zip(names, flags, strict=True)))])
    # The same with what the normalizers make of it: a space.
    spaced = [added.replace(space, " ") for space in "\t\u3000\u00a8"]
    line = " ".join(["the", added, "1st", *spaced, "cat", "sat", "mat", "s", "New", "York"])
    if long_texts.can_be_divided(fast):
        whole = fast.encode(line, add_special_tokens=False).ids
        assert long_texts.encode_in_parts(batch(fast), [line]) == [whole]


def test_tokenizers_that_look_across_spaces_are_not_divided():
    assert all(map(long_texts.can_be_divided, VARIANTS.values()))
    metaspace = pre_tokenizers.Metaspace(split=False)
    assert not long_texts.can_be_divided(variant("unigram", pre_tokenizer=metaspace))
    assert not long_texts.can_be_divided(variant("byte-bpe", pre_tokenizer=BYTES(use_regex=False)))
    assert not long_texts.can_be_divided(
        variant("wordpiece", normalizer=normalizers.Replace("a b", "c"))
    )
    with_space = variant("wordpiece")
    with_space.add_tokens(["New York"])
    assert not long_texts.can_be_divided(with_space)
    takes_spaces = variant("byte-bpe")
    takes_spaces.add_tokens([tokenizers.AddedToken("MASK", rstrip=True)])
    line = "the MASK sat on MASK 12 mats"
    whole = takes_spaces.encode(line, add_special_tokens=False).ids
    assert long_texts.encode_in_parts(batch(takes_spaces), [line]) != [whole]
    assert not long_texts.can_be_divided(takes_spaces)
