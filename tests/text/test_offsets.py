"""Offsets point at the characters that a token stands for."""

from __future__ import annotations

from functools import cache

import pytest
from hard_texts import HARD, texts
from hypothesis import HealthCheck, given, settings

from regard import text as text_
from regard.text.published import bytes_of_characters

PROPERTY = settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
LINES = [*HARD, "the quick brown fox jumps over the lazy dog", "naïve café naïve café"] * 3


@cache
def trained(kind, **options):
    return text_.train(kind, LINES, 1500, **options)


def assert_bytes_covered(tokenizer, text):
    """Each byte knows its character; a token covers the characters of its bytes."""
    owner = [i for i, char in enumerate(text) for _ in char.encode()]
    byte_of, at = bytes_of_characters(), 0
    encoding = tokenizer.encode(text)
    for piece, (start, end) in zip(encoding.tokens, encoding.offsets, strict=True):
        size = len(bytes(byte_of[char] for char in piece))
        assert (start, end) == (owner[at], owner[at + size - 1] + 1), (text, piece)
        at += size
    assert at == len(owner)  # nothing of the text is left over


def assert_tokens_at_offsets(tokenizer, text, prefix="", suffix=""):
    """Without normalization a token is the text at its offsets."""
    encoding = tokenizer.encode(text)
    for piece, (start, end) in zip(encoding.tokens, encoding.offsets, strict=True):
        if piece != "<unk>":
            assert piece.removesuffix(suffix).removeprefix(prefix) == text[start:end]
    ends = [end for _, end in encoding.offsets]
    assert all(start >= end for (start, _), end in zip(encoding.offsets[1:], ends))  # noqa: B905


@PROPERTY
@given(text=texts)
def test_byte_level_offsets_cover_the_text(text):
    assert_bytes_covered(trained("byte-bpe"), text)


@pytest.mark.parametrize("kind", ["bpe", "words", "characters"])
@PROPERTY
@given(text=texts)
def test_offsets_of_kinds_without_normalization_give_the_tokens(kind, text):
    if kind == "bpe":  # a literal </w> cannot be told from the mark
        assert_tokens_at_offsets(trained(kind), text.replace("</w>", ""), suffix="</w>")
    else:
        assert_tokens_at_offsets(trained(kind), text)
