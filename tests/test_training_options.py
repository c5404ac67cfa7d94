"""The options of `regard.training` keep their types, defaults and bounds."""

from option_values import changed


def test_no_option_changes_unseen():
    assert not changed("training"), "if that is wanted: python tests/option_values.py"
