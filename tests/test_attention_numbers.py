"""Attention computes what it computed before: weights that are captured, and states."""

from stored_numbers import compare, each_case


@each_case
def test_attention_weights_of_each_model_are_what_they_were_before(case):
    compare("attention", case)
