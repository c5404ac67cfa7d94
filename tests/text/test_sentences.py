"""Sentences and paragraphs: where they start, and that they tile the text."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.text.sentences import sentence_starts


def cut(text):
    starts = [start for start, _ in sentence_starts(text)]
    return [text[a:b] for a, b in zip(starts, [*starts[1:], len(text)], strict=True)]


@pytest.mark.parametrize(
    "sentences",
    [
        ["It rains.", " She smiled!", " Why?", " Because…", " So"],
        ["Dr. Smith met J. K. Rowling.", " She smiled."],
        ["Made in the U.S. Army bases.", " He likes the U.S.", " They do not."],
        ["See Fig. 3 and No. 5 on p. 7.", " No.", " That is wrong."],
        ["We met at 5 p.m. on Monday.", " He left at 6 p.m.", " We stayed."],
        ["Apple Inc. has money, e.g. Euros, i.e. 3.5 billion.", " The end"],
        ['"Stop!" he said.', ' "Why?"', " (Really.)", " Yes."],
        ["“Is it?”", " Perhaps."],
        ["Wait... what?", " Oh..."],
        ["你好。", "世界！", "“再见。”", "好"],
        ["Ça va ?", " Été. et hiver."],
        ["no end"],
        ["", ""][:1],
        ["  "],
    ],
)
def test_a_text_is_cut_where_sentences_end(sentences):
    assert cut("".join(sentences)) == sentences


def test_a_stop_at_the_start_of_a_line_does_not_belong_to_the_word_before_it():
    assert sentence_starts("Mr\n. It rains") == [(0, True), (2, True), (4, False)]
    assert sentence_starts("Mr\nMr. It") == [(0, True), (2, True)]


def test_a_paragraph_is_a_line_that_is_not_blank():
    text = "\n\nOne. Two.\n \n\nThree\nFour.\n\n"
    assert cut(text) == ["\n\nOne.", " Two.", "\n \n\nThree", "\nFour.\n\n"]
    assert [paragraph for _, paragraph in sentence_starts(text)] == [True, False, True, True]


@given(st.text("ab.A !?\n\t\"')。…1", max_size=60))
def test_sentences_tile_any_text_and_none_is_blank(text):
    parts = cut(text)
    assert "".join(parts) == text
    assert all(part.strip() for part in parts) or len(parts) == 1


@pytest.mark.parametrize("part", [".", " ", "!?", '."', "\n", "a. ", "。", "(", ". a"])
def test_the_time_grows_with_the_length_alone(part):
    starts = [start for start, _ in sentence_starts(part * 200_000)]  # quadratic: minutes
    assert starts[0] == 0 and all(one < next for one, next in pairwise(starts))
