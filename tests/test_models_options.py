"""The options of `regard.models` keep their types, defaults and bounds."""

from option_values import changed


def test_no_option_changes_unseen():
    assert not changed("models"), "if that is wanted: python tests/option_values.py"
