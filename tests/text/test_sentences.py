"""Sentences and words of a text, with their places."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.text.sentences import sentence_starts
from regard.text.word_spans import word_spans


def cut(text):
    starts = [start for start, _ in sentence_starts(text)]
    return [text[a:b] for a, b in zip(starts, [*starts[1:], len(text)], strict=True)]


@given(st.text("ab.A !?\n\t\"')。…1", max_size=60))
def test_sentences_tile_any_text_and_none_is_blank(text):
    parts = cut(text)
    assert "".join(parts) == text
    assert all(part.strip() for part in parts) or len(parts) == 1


@pytest.mark.parametrize("part", [".", " ", "!?", '."', "\n", "a. ", "。", "(", ". a"])
def test_the_time_grows_with_the_length_alone(part):
    starts = [start for start, _ in sentence_starts(part * 200_000)]  # quadratic: minutes
    assert starts[0] == 0 and all(one < next for one, next in pairwise(starts))


@given(st.text())
def test_words_contain_all_but_white_space(text):
    words = word_spans(text)
    assert "".join(text[start:stop] for start, stop in words) == "".join(text.split())
    assert all(start < stop for start, stop in words)
