"""How texts that are too long for an encoder are cut, and windows over them."""

from __future__ import annotations

import math

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Fast
from tokenizers import models, pre_tokenizers

from regard.data.encoder_inputs import (
    TRUNCATIONS,
    InputFormat,
    even_windows,
    word_windows,
)
from regard.text import train
from regard.text.templates import Template

SIZES = [(a, b, capacity) for a in range(1, 9) for b in range(1, 9) for capacity in range(2, a + b)]


def test_longest_first_gives_the_lengths_of_the_tokenizers_library():
    fast = Fast(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    fast.pre_tokenizer = pre_tokenizers.Whitespace()
    for first, second, capacity in SIZES:
        fast.enable_truncation(capacity, strategy="longest_first")
        ids = fast.encode("a " * first, "b " * second).ids
        wanted = (ids.count(0), ids.count(1))
        assert TRUNCATIONS["longest_first"](first, second, capacity) == wanted


def test_bert_gives_the_lengths_of_its_own_program():
    for first, second, capacity in SIZES:
        a, b = [0] * first, [0] * second
        while len(a) + len(b) > capacity:  # Devlin et al. 2019, create_pretraining_data.py
            (a if len(a) > len(b) else b).pop()
        assert TRUNCATIONS["bert"](first, second, capacity) == (len(a), len(b))


@pytest.mark.parametrize("side", ["left", "right"])
def test_tokens_are_dropped_on_the_side_that_the_tokenizer_names(side):
    tokenizer = train("characters", ["abcdefgh"], 20)
    tokenizer.sides["truncation_side"] = side
    around = Template.around((), (), ())
    inputs = InputFormat(tokenizer, around, 4, None)
    (one, pair) = inputs.encode([("abcdefgh",), ("abcde", "fgh")])
    kept = tokenizer.decode(inputs.truncate(one).ids)
    assert kept == {"left": "efgh", "right": "abcd"}[side]
    both = [tokenizer.decode(ids) for ids in inputs.truncate(pair).texts()]
    assert both == {"left": ["de", "gh"], "right": ["ab", "fg"]}[side]


@pytest.mark.parametrize("count", [0, 1, 5, 6, 7, 8, 9, 10, 11, 23, 40])
@pytest.mark.parametrize("overlap", [0, 1, 3])
def test_even_windows_are_those_of_the_tokenizers_library(count, overlap):
    fast = tokenizers.Tokenizer(tokenizers.models.WordLevel({"x": 0}, unk_token="x"))
    fast.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    fast.enable_truncation(6, stride=overlap)
    found = fast.encode("x " * count)
    theirs = [(one.offsets[0][0] // 2, one.offsets[-1][1] // 2 + 1) if one.ids else (0, 0)
              for one in [found, *found.overflowing]]  # fmt: skip
    assert even_windows(count, 6, overlap) == theirs


lengths = st.lists(st.integers(1, 9), max_size=40)


@given(lengths, st.integers(2, 12))
def test_every_word_is_labelled_once_by_the_window_with_most_context(lengths, room):
    overlap = room // 4
    windows = word_windows(lengths, room, overlap)
    answered = [word for window in windows for word in range(window.first, window.last)]
    assert answered == list(range(len(lengths)))
    sizes = [min(length, room) for length in lengths]
    for window in windows:
        assert window.start <= window.first < window.last <= window.stop
        assert sum(sizes[window.start : window.stop]) <= room
        assert window.stop == len(sizes) or sum(sizes[window.start : window.stop + 1]) > room
    for before, after in zip(windows, windows[1:], strict=False):
        assert sum(sizes[after.start : before.stop]) <= overlap

    def context(word, window):
        if not window.start <= word < window.stop:
            return -1
        left = sum(sizes[window.start : word]) if window.start else math.inf
        right = sum(sizes[word + 1 : window.stop]) if window.stop < len(sizes) else math.inf
        return min(left, right)

    for window in windows:
        for word in range(window.first, window.last):
            assert context(word, window) == max(context(word, other) for other in windows)
