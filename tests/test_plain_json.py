"""JSON for the command line and for the server have the values of Python's own encoder."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from regard.schema import to_json, to_json_bytes

NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**70), 2**70)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXTS, inner, max_size=5),
    max_leaves=30,
)


@given(VALUES)
def test_every_value_is_read_back_as_it_was(value):
    assert _same(json.loads(to_json(value)), value)
    assert _same(json.loads(to_json_bytes(value)), value)


def test_nan_is_null_and_a_path_is_text():
    value = {"a": [math.nan, 1.0, -math.inf], "path": Path("a/é"), "pair": (1, "b")}
    wanted = {"a": [None, 1.0, None], "path": "a/é", "pair": [1, "b"]}
    assert json.loads(to_json(value)) == json.loads(to_json_bytes(value)) == wanted
    assert to_json_bytes({"a": 0.5, "b": "é"}) == '{"a":0.5,"b":"é"}'.encode()


def _same(one: Any, other: Any) -> bool:
    """Equal, with the sign of zeros, and whole numbers and others told apart."""
    return repr(one) == repr(other)
