"""Attention computes what it computed before: weights that are captured, and states."""

from stored_numbers import compare, compare_program, each_case, each_program


@each_case
def test_attention_weights_of_each_model_are_what_they_were_before(case):
    compare("attention", case)


@each_program("attention")
def test_programs_of_attention_give_what_they_gave_before(name):
    compare_program("attention", name)
