"""Layers compute what they computed before: gradients of models, and heads of encoders."""

from stored_numbers import compare, each_case


@each_case
def test_gradients_and_heads_of_each_model_are_what_they_were_before(case):
    compare("layers", case)
