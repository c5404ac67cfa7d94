"""What `regard.metrics` computes is what it computed before: tests/results/metrics.json."""

import pytest
from stored_results import check, stored


@pytest.mark.parametrize("section", stored("metrics"))
def test_statements_give_what_they_gave_before(section):
    check("metrics", section)
