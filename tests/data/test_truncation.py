"""Texts and pairs beyond the limit: the rules of `transformers` and of BERT's own programs."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer as Fast
from tokenizers import models, pre_tokenizers

from regard.data.encoder_inputs import TRUNCATIONS, InputFormat
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
