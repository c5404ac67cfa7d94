"""The options keep their types, defaults and bounds, by the folder of their code."""

import pytest
from option_values import PARTS, changed


@pytest.mark.parametrize("part", PARTS)
def test_no_option_changes_unseen(part):
    assert not changed(part), "if that is wanted: python tests/option_values.py"
