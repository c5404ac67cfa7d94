"""Faults of JSON files raise only errors that name file and field; JSON that is written has the
values of Python's own encoder.
"""

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.errors import CheckpointError, DataError, RegardError
from regard.schema import Fields, checked, data_error, parse_json, read_json, to_json, to_json_bytes


class Sizes(Fields):
    d_model: int
    dropout: float = 0.1
    names: list[str] | None = None
    inner: dict[str, int] = {}


def refused(tmp_path, content, schema=Sizes, **options):
    path = tmp_path / "config.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(RegardError) as error:
        read_json(path, schema, **options)
    assert str(path) in str(error.value)
    return str(error.value)


def test_valid_file_becomes_the_schema_and_keeps_further_fields(tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(b"\xef\xbb\xbf" + b'{"d_model": 8, "dropout": 0, "other": [1]}')
    found = read_json(path, Sizes)
    assert (found.d_model, found.dropout, found.other) == (8, 0.0, [1])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"d_model": "8"}', '`d_model` must be a whole number, but is "8"'),
        ('{"d_model": 8.0}', "`d_model` must be a whole number, but is 8.0"),
        ('{"d_model": true, "dropout": "x"}', "`dropout` must be"),
        ('{"d_model": 8, "names": ["a", 3]}', "`names.1` must be a string, but is 3"),
        ('{"d_model": 8, "inner": {"x": []}}', "`inner.x` must be a whole number, but is []"),
        ("{}", "`d_model` is missing"),
        ("[]", "must be"),
        (
            '{"d_model": 8, "dropout": NaN}',
            'is not JSON: expected value (column 27: \'{"d_model": 8, ',
        ),
        ('{"d_model": 8, "dropout": 1e999}', "`dropout` must be a finite number"),
        ('{"d_model": ' + "9" * 5000 + "}", "is not JSON: number out of range"),
        ('{"d_model": 8, "x": "\\ud800"}', "is not JSON: unexpected end of hex escape"),
        ('{"d_model": 8,\n"heads"}', ":2: is not JSON"),
        ("[" * 100_000, "recursion limit exceeded"),
        (b'{"d_model": 8,\n "x": "\xff"}', ":2: byte 0xff is not UTF-8"),
    ],
)
def test_invalid_json_raises_an_error_that_names_the_problem(tmp_path, content, said):
    assert said in refused(tmp_path, content)


def test_read_json_opens_only_regular_files(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    for name in ("pipe.json", ""):
        with pytest.raises(CheckpointError, match="must be a file"):
            read_json(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "absent.json")
    (tmp_path / "link.json").symlink_to(tmp_path / "there.json")
    (tmp_path / "there.json").write_text("{}")
    assert read_json(tmp_path / "link.json") == {}


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None, max_examples=300)
@given(st.dictionaries(st.sampled_from(["d_model", "dropout", "names", "inner", "x"]), values))
def test_any_value_is_read_or_raises_an_error_of_the_library(drawn):
    try:
        value = parse_json(json.dumps(drawn), "config.json")
        found = checked(value, Sizes, "config.json")
    except RegardError as error:
        assert "config.json" in str(error)
    else:
        assert type(found.d_model) is int


def test_data_errors_have_the_line_of_the_file(tmp_path):
    path = tmp_path / "vocab.json"
    for content, line, problem in (
        ('{"a": 0,\n "b" 1}', 2, "is not JSON"),
        ("[1]", None, "must be an object"),
    ):
        path.write_text(content)
        with pytest.raises(DataError, match=problem) as error:
            read_json(path, error=data_error(path))
        assert (error.value.path, error.value.line) == (str(path), line)
        assert str(error.value).count(str(path)) == 1


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
