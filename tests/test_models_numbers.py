"""Models compute what they computed before: initial weights, states and logits."""

from stored_numbers import compare, compare_program, each_case, each_program, sizes, stored


def test_published_sizes_are_what_they_were_before():
    assert sizes() == stored()["sizes"]


@each_case
def test_each_model_computes_what_it_computed_before(case):
    compare("models", case)


@each_program("models")
def test_programs_of_models_give_what_they_gave_before(name):
    compare_program("models", name)
