"""Parts of GLUE have the published numbers of rows."""

from __future__ import annotations

import pytest
from row_tuples import tuples

from regard.data import read_glue


@pytest.mark.parametrize(
    ("task", "part", "count"),
    [
        ("mrpc", "train", 4076),
        ("stsb", "test", 1379),
        ("rte", "dev", 277),
        ("cola", "dev", 1043),
        ("sst2", "test", 1821),
    ],
)
def test_parts_have_the_published_numbers_of_rows(shared, task, part, count):
    rows = tuples(read_glue(task, shared("glue"), part))
    assert len(rows) == count
    fields = 2 if task in ("cola", "sst2") else 3
    assert all(len(row) == fields and all(row) for row in rows)
