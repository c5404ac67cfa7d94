"""What `regard.checkpoints` computes is what it computed before: tests/results/checkpoints.json."""

import pytest
from stored_results import check, stored


@pytest.mark.parametrize("section", stored("checkpoints"))
def test_statements_give_what_they_gave_before(section):
    check("checkpoints", section)
