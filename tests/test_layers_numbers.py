"""Layers compute what they computed before: gradients of models, and heads of encoders."""

from stored_numbers import compare, compare_program, each_case, each_program


@each_case
def test_gradients_and_heads_of_each_model_are_what_they_were_before(case):
    compare("layers", case)


@each_program("layers")
def test_programs_of_layers_give_what_they_gave_before(name):
    compare_program("layers", name)
