"""Models compute what they computed before: initial weights, states and logits."""

import json

from stored_numbers import FILE, compare, each_case, sizes


def test_published_sizes_are_what_they_were_before():
    assert sizes() == json.loads(FILE.read_text())["sizes"]


@each_case
def test_each_model_computes_what_it_computed_before(case):
    compare("models", case)
