"""Explanations of tokens agree with the encoder."""

from __future__ import annotations

from functools import cache

import pytest
from hard_texts import HARD, texts
from hypothesis import given, settings

from regard import text
from regard.text import explain


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
