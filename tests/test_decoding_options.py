"""The options of `regard.decoding` keep their types, defaults and bounds."""

from option_values import changed


def test_no_option_changes_unseen():
    assert not changed("decoding"), "if that is wanted: python tests/option_values.py"
