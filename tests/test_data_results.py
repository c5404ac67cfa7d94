"""Functions of regard/data give what they gave before for the calls of tests/calls/data.toml."""

import pytest
from call_tables import compare, sections


@pytest.mark.filterwarnings("ignore")
@sections("data", ".")
def test_each_call_gives_what_it_gave_before(section, tmp_path):
    compare("data", section, tmp_path)
