"""What `regard.text` computes is what it computed before: tests/results/text.json."""

import pytest
from stored_results import check, stored


@pytest.mark.parametrize("section", stored("text"))
def test_statements_give_what_they_gave_before(section):
    check("text", section)
