"""Rows of lists, data frames and Arrow tables are read as those of files."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import pytest

from regard.data.in_memory import rows
from regard.data.readers import read_labelled
from regard.errors import DataError
from regard.sharded.parts import UnfitValue, table_of

TEXTS, LABELS = ["a cat", "Grüße, 世界", 'quo"ted\nline'], ["yes", "no", "yes"]
RECORDS = [{"text": text, "label": label} for text, label in zip(TEXTS, LABELS, strict=True)]


def test_a_dataset_gives_the_names_of_class_labels():
    datasets = pytest.importorskip("datasets")
    features = {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])}
    data = datasets.Dataset.from_dict(
        {"text": TEXTS, "label": [1, 0, 1]}, features=datasets.Features(features)
    )
    for same in (data, data.with_format("torch"), data.to_iterable_dataset()):
        assert [dict(row) for row in rows(same)] == RECORDS
    with pytest.raises(DataError, match="must be a table"):
        rows(datasets.DatasetDict({"train": data}))


def test_lists_of_class_labels_are_lists_of_their_names():
    datasets = pytest.importorskip("datasets")
    tags = datasets.Sequence(datasets.ClassLabel(names=["O", "B-A"]))
    features = datasets.Features({"words": datasets.Sequence(datasets.Value("string")), "t": tags})
    data = datasets.Dataset.from_dict({"words": [["a", "b"]], "t": [[1, 0]]}, features=features)
    assert list(rows(data)) == [{"words": ["a", "b"], "t": ["B-A", "O"]}]


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


ROWS = [("a cat", "animal"), ("<script>alert(1)</script>", "<b>"), ("a car", "thing")]


def write(path, rows):
    if path.suffix == ".jsonl":
        lines = [json.dumps({"text": text, "kind": label}) for text, label in rows]
    elif path.suffix in (".tsv", ".csv"):
        mark = {".tsv": "\t", ".csv": ","}[path.suffix]
        lines = [mark.join(row) for row in [("text", "kind"), *rows]]
    else:
        lines = [text for text, _ in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.tsv", "a.csv", "a.txt"])
def test_each_format_gives_the_same_texts(tmp_path, name):
    path = write(tmp_path / name, [*ROWS, ("  ", "blank")])
    texts, labels = map(list, zip(*ROWS, strict=True))
    if name != "a.txt":
        assert read_labelled(path, "kind", 3) == (texts, labels)
    else:
        assert read_labelled(path, None, 3) == (texts, [])
