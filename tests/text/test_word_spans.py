"""Words of running text: the rule's own examples, and what must hold of any text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.text.word_spans import word_spans


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


@given(st.text())
def test_words_contain_all_but_white_space(text):
    words = word_spans(text)
    assert "".join(text[start:stop] for start, stop in words) == "".join(text.split())
    assert all(start < stop for start, stop in words)
