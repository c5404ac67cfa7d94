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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The U.S. said: don't pay $1,000!", "The U.S. said : do n't pay $ 1,000 !"),
        ("Mr. J. O'Brien's 5-year plan B.", "Mr. J. O'Brien 's 5-year plan B ."),
        ("It’s (www.x.org), a.b@c-d.org!", "It ’s ( www.x.org ) , a.b@c-d.org !"),
        ("at 12:30, either/or 1/2 x:y", "at 12:30 , either / or 1/2 x : y"),
        ("x-ray... -x A&B e_mail's--n't", "x-ray ... - x A&B e_mail 's -- n't"),
        ("cafe\u0301 हिन्दी\u00a0東京は", "cafe\u0301 हिन्दी 東京は"),
        ("😀👍\u200d a\u200bb", "😀 👍\u200d a\u200bb"),
        ("👩\u200d💻❤\ufe0f🇩🇪🇫🇷👍🏽 x\u0301", "👩\u200d💻 ❤\ufe0f 🇩🇪 🇫🇷 👍🏽 x\u0301"),
        (" \t\n", ""),
    ],
)
def test_words_follow_the_documented_rule(text, words):
    assert [text[start:stop] for start, stop in word_spans(text)] == words.split(" ") * bool(words)


def test_words_of_a_list_and_of_a_splitter_have_their_places():
    given = WordSpans.of(["a", "", "bcd", "e"])
    assert given.text == "a  bcd e" and given.words == ("a", "", "bcd", "e")
    assert WordSpans.of("Don't go.").words == ("Do", "n't", "go", ".")
    for spans in ([], [(0, 5)], [(0, 1), (1, 5)], [(1, 2), (4, 5)]):
        assert WordSpans.of("a bcd", lambda _, spans=spans: spans).spans == spans
    for spans in ([(0, 6)], [(-1, 2)], [(1, 1)], [(0, 2), (1, 3)], [(2, 1)], [(0, 1.0)]):
        with pytest.raises(RegardError, match="`splitter` must give .* within the text of 5 char"):
            WordSpans.of("a bcd", lambda _, spans=spans: spans)


@given(st.text())
def test_words_contain_all_but_white_space(text):
    words = word_spans(text)
    assert "".join(text[start:stop] for start, stop in words) == "".join(text.split())
    assert all(start < stop for start, stop in words)
