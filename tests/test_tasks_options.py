"""The options of `regard.tasks` keep their types, defaults and bounds."""

from option_values import changed


def test_no_option_changes_unseen():
    assert not changed("tasks"), "if that is wanted: python tests/option_values.py"
