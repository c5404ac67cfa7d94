"""The fields that are read from a tokenizer's files keep their types, defaults and bounds."""

from option_values import changed


def test_no_field_changes_unseen():
    assert not changed("text"), "if that is wanted: python tests/option_values.py"
