"""The options of `regard.checkpoints` keep their types, defaults and bounds."""

from option_values import changed


def test_no_option_changes_unseen():
    assert not changed("checkpoints"), "if that is wanted: python tests/option_values.py"
