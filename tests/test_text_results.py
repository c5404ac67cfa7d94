"""What `regard.text` gives is what it gave before: tests/results/text.json."""

import sys
from pathlib import Path

from stored_results import check, each_section

sys.path.append(str(Path(__file__).with_name("text")))  # statements import its helpers


@each_section("text")
def test_statements_give_what_they_gave_before(section):
    check("text", section)
