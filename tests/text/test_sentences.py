"""Sentences and words of a text, with their places."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import RegardError
from regard.text.sentences import sentence_starts
from regard.text.word_spans import WordSpans, word_spans


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


def test_words_of_a_list_and_of_a_splitter_have_their_places():
    given = WordSpans.of(["a", "", "bcd", "e"])
    assert given.text == "a  bcd e" and given.words == ("a", "", "bcd", "e")
    assert WordSpans.of("Don't go.").words == ("Do", "n't", "go", ".")
    for spans in ([], [(0, 5)], [(0, 1), (1, 5)], [(1, 2), (4, 5)]):
        assert WordSpans.of("a bcd", lambda _, spans=spans: spans).spans == spans
    disordered = [[(0, 6)], [(-1, 2)], [(1, 1)], [(0, 2), (1, 3)], [(2, 1)]]
    for spans in (*disordered, [(0, 1.0)], ["a", "bcd"], [0, 1], [(0, 1, 2)], 3):
        with pytest.raises(RegardError, match="`splitter` must give .* within the text of 5 char"):
            WordSpans.of("a bcd", lambda _, spans=spans: spans)


@given(st.text())
def test_words_contain_all_but_white_space(text):
    words = word_spans(text)
    assert "".join(text[start:stop] for start, stop in words) == "".join(text.split())
    assert all(start < stop for start, stop in words)
