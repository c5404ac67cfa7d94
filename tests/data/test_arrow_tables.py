"""Rows in Arrow tables come out as they went in, or raise an error."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from regard.data.arrow_tables import UnfitValue, table_of

pyarrow = pytest.importorskip("pyarrow")

VALUES: list[Any] = [
    *(1, 0, 2**40, -1.0, 1.5, 1e30, True, False, "", "a", None, [1], [1.5], [True], ["a"], []),
    *({"x": 1}, {"x": 1.5}, {"x": True}, {"x": 1, "y": 2}, {"y": [1]}, {"y": [1.5]}, [{"x": 1}]),
    *([{"x": 1.5}], [[1]], [[1.5]], {}),
]


def same(one: Any, other: Any) -> bool:
    """As Python has it, but True is not 1, and a field that is missing is None."""
    if isinstance(one, dict) and isinstance(other, dict):
        return all(same(one.get(name), other.get(name)) for name in {*one, *other})
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def test_a_value_beside_one_of_another_type_is_as_it_was_or_an_error():
    refused = 0
    for first, second in product(VALUES, VALUES):
        schema = pyarrow.schema([("n", pyarrow.array([first]).type)])
        records = [{"n": first}, {"n": second}]
        try:
            found = table_of(records, schema).to_pylist()
        except UnfitValue as error:
            assert str(error).count("than in the first rows") == 1
            refused += 1
        else:
            assert all(map(same, found, records)), (records, found)
    assert refused > 200


def test_a_field_without_a_column_is_an_error_that_names_it():
    schema = pyarrow.schema([("n", pyarrow.int64())])
    assert table_of([{"n": 1}, {}], schema).to_pylist() == [{"n": 1}, {"n": None}]
    with pytest.raises(UnfitValue, match="a field 'm', which the first rows do not have"):
        table_of([{"n": 1, "m": 2}], schema)
