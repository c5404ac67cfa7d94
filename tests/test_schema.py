"""Faults of JSON files raise only errors that name file and field."""

import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.errors import CheckpointError, DataError, RegardError
from regard.schema import Fields, checked, data_error, parse_json, read_json


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
        ('{"d_model": 8, "d_model": 9}', "'d_model' occurs twice"),
        ('{"d_model": 8, "dropout": NaN}', "`dropout`: NaN is not a finite number"),
        ('{"d_model": 8, "dropout": 1e999}', "1e999 is not a finite number"),
        ('{"d_model": 99999999999999999999}', "does not fit into 64 bits"),
        ('{"d_model": ' + "9" * 5000 + "}", "does not fit into 64 bits"),
        ('{"d_model": 8, "x": "\\ud800"}', "half of a surrogate pair"),
        ('{"d_model": 8,\n"heads"}', ":2: is not JSON"),
        ("[" * 100_000, "nested too deeply"),
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
        ('{"a": 0,\n "a": 1}', None, "'a' occurs twice"),
        ("[1]", None, "must be a section"),
    ):
        path.write_text(content)
        with pytest.raises(DataError, match=problem) as error:
            read_json(path, error=data_error(path))
        assert (error.value.path, error.value.line) == (str(path), line)
        assert str(error.value).count(str(path)) == 1


def test_any_size_allows_integers_beyond_64_bits(tmp_path):
    path = tmp_path / "tokenizer_config.json"
    path.write_text(f'{{"model_max_length": {10**30}}}')
    assert read_json(path, any_size=True)["model_max_length"] == 10**30
    with pytest.raises(CheckpointError, match="does not fit into 64 bits"):
        read_json(path)
    path.write_text(f'{{"model_max_length": {"9" * 5000}}}')
    with pytest.raises(CheckpointError, match="has too many digits"):
        read_json(path, any_size=True)
