"""What `regard.checkpoints` gives is what it gave before: tests/results/checkpoints.json."""

from stored_results import check, each_section


@each_section("checkpoints")
def test_statements_give_what_they_gave_before(section):
    check("checkpoints", section)
