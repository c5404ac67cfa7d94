"""Tasks give what they gave before for the calls of tests/calls/tasks.toml."""

import pytest
from call_tables import compare, sections


@pytest.mark.filterwarnings("ignore")
@sections("tasks", "")
def test_each_call_gives_what_it_gave_before(section, tmp_path):
    compare("tasks", section, tmp_path)
