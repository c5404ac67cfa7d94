"""What `regard.metrics` gives is what it gave before: tests/results/metrics.json."""

from stored_results import check, each_section


@each_section("metrics")
def test_statements_give_what_they_gave_before(section):
    check("metrics", section)
