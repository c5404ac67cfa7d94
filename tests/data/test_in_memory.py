"""Rows of lists, data frames and Arrow tables are read as those of files."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from row_tuples import tuples

from regard.data.in_memory import rows, text_rows, write_copy
from regard.data.readers import open_table, read_labelled
from regard.errors import ConfigError, DataError
from regard.sharded.parts import UnfitValue, table_of

pandas = pytest.importorskip("pandas")
polars = pytest.importorskip("polars")

TEXTS, LABELS = ["a cat", "Grüße, 世界", 'quo"ted\nline'], ["yes", "no", "yes"]
COLUMNS = {"text": TEXTS, "label": LABELS}
RECORDS = [{"text": text, "label": label} for text, label in zip(TEXTS, LABELS, strict=True)]


def kinds():
    yield "pandas", pandas.DataFrame(COLUMNS)
    yield "pandas, another index", pandas.DataFrame(COLUMNS, index=[7, 3, 3])
    frame = pandas.DataFrame(COLUMNS)
    yield "pandas, categories", frame.assign(label=frame.label.astype("category"))
    yield "polars", polars.DataFrame(COLUMNS)
    yield "columns", COLUMNS
    yield "mappings", RECORDS
    yield "generator", (row for row in RECORDS)
    yield "named tuples", list(frame.itertuples(False, "Row"))


@pytest.mark.parametrize(
    ("kind", "data"), list(kinds()), ids=lambda one: one if type(one) is str else ""
)
def test_every_kind_gives_the_same_rows(kind, data):
    found = (row._asdict() if hasattr(row, "_asdict") else row for row in rows(data))
    assert [dict(row) for row in found] == RECORDS


@pytest.mark.parametrize(
    ("kind", "data"), list(kinds()), ids=lambda one: one if type(one) is str else ""
)
def test_rows_written_as_jsonl_are_read_back_in_order_with_equal_values(kind, data, tmp_path):
    assert write_copy(data, tmp_path / "rows.jsonl", ("text", "label")) == 3
    assert [*open_table(tmp_path / "rows.jsonl", ("text", "label"))] == RECORDS


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


@pytest.mark.parametrize(
    ("labels", "written"),
    [
        ([1, 2, 1], [1, 2, 1]),
        ([True, False, True], [True, False, True]),
        (np.array([0.5, 1.5, 2.0], dtype="f4"), [0.5, 1.5, 2.0]),
        ([["a"], ["a", "b"], []], [["a"], ["a", "b"], []]),
        ([np.array([1, 2]), np.array([3]), np.array([], int)], [[1, 2], [3], []]),
    ],
)
def test_values_are_written_as_json_has_them(labels, written, tmp_path):
    frame = pandas.DataFrame({"text": TEXTS, "label": pandas.Series(list(labels))})
    write_copy(frame, tmp_path / "rows.jsonl")
    lines = (tmp_path / "rows.jsonl").read_text().splitlines()
    assert [json.loads(line)["label"] for line in lines] == written


@pytest.mark.parametrize("missing", [None, float("nan"), pandas.NA, pandas.NaT])
def test_a_missing_value_is_none_and_located_where_it_must_be_text(missing, tmp_path):
    frame = pandas.DataFrame({"text": ["a", "b"], "label": ["x", missing], "other": [missing, 1]})
    write_copy(frame, tmp_path / "rows.jsonl", ("text", "label"))
    for source in (frame, tmp_path / "rows.jsonl"):
        reader = open_table(source, ("text", "label"))
        assert [*reader] == [{"text": "a", "label": "x"}, {"text": "b", "label": None}]
        with pytest.raises(DataError, match=r":2: field 'label' must be text, but is missing"):
            [*reader.texts()]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (5, "must be a table or a list of rows, but is 5"),
        ([], "is empty: it has not one row"),
        ([3], ":1: must be a tuple or a mapping, but is a int"),
        ([{"text": b"raw"}], ":1: has a bytes in column 'text'"),
        ({"text": [1], 1: [1], "1": [1]}, "has several columns with the name '1'"),
        (b"raw", "must be a table or a list of rows, but is b'raw'"),
        (np.array(3), "is empty"),
        ([("a", "\ud800")], ":1: has half of a surrogate pair"),
        ([("a", float("inf"))], ":1: has a float in column '1': inf"),
        ([("a", np.longdouble(1))], "has a longdouble in column '1'"),
    ],
)
def test_data_that_are_no_rows_raise_an_error_that_says_so(data, said, tmp_path):
    with pytest.raises(DataError, match=said):
        write_copy(data, tmp_path / "rows.jsonl")


def test_lists_of_class_labels_are_lists_of_their_names():
    datasets = pytest.importorskip("datasets")
    tags = datasets.Sequence(datasets.ClassLabel(names=["O", "B-A"]))
    features = datasets.Features({"words": datasets.Sequence(datasets.Value("string")), "t": tags})
    data = datasets.Dataset.from_dict({"words": [["a", "b"]], "t": [[1, 0]]}, features=features)
    assert list(rows(data)) == [{"words": ["a", "b"], "t": ["B-A", "O"]}]


def test_rows_in_memory_are_read_as_the_file_that_is_written_of_them(tmp_path):
    values = [True, np.bool_(False), np.int8(3), 1.0, np.float32(0.5), torch.tensor(2), "x", {"b"}]
    data = [("a", value) for value in values]
    write_copy(data, tmp_path / "rows.jsonl", ("0", "1"))
    assert tuples(tmp_path / "rows.jsonl") == tuples(data, (0, 1)) == tuples(data)
    with pytest.raises(DataError, match="field '1' must be text, but is missing"):
        [*open_table([("a", float("nan"))]).texts()]


def test_texts_of_a_table_leave_out_the_target():
    assert text_rows(pandas.DataFrame(COLUMNS)) == TEXTS
    pairs = polars.DataFrame({"premise": ["a"], "hypothesis": ["b"], "label": [1], "id": [3]})
    assert text_rows(pairs) == [("a", "b")]
    with pytest.raises(ConfigError, match="the columns one, two, and their names do not say"):
        text_rows(pandas.DataFrame({"one": ["a"], "two": ["b"]}))


def test_texts_are_written_as_lines(tmp_path):
    write_copy(["one", {"text": "two"}, ("three\n",)], tmp_path / "text.txt")
    assert (tmp_path / "text.txt").read_text() == "one\ntwo\nthree\n"
    write_copy(pandas.Series(["one", "two"]), tmp_path / "text.txt")
    assert (tmp_path / "text.txt").read_text() == "one\ntwo\n"
    with pytest.raises(DataError, match=":1: must be a text, but is"):
        write_copy([{"a": "x", "b": "y"}], tmp_path / "text.txt")


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


def test_a_label_that_is_a_number_is_a_text(tmp_path):
    path = tmp_path / "a.jsonl"
    lines = [{"text": "one", "n": 1}, {"text": "two", "n": 2}]
    path.write_text("\n".join(map(json.dumps, lines)))
    assert read_labelled(path, "n", 9)[1] == ["1", "2"]


def test_files_without_texts_or_labels_raise_an_error_that_names_them(tmp_path):
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    blank = tmp_path / "blank.txt"
    blank.write_text("\n \n")
    table = write(tmp_path / "a.tsv", ROWS)
    two = tmp_path / "two.csv"
    two.write_text("question,answer,other\na,b,c\n")
    for path, labels, most, said in (
        (empty, None, 9, "is empty"),
        (blank, None, 9, "every row is blank"),
        (blank, "kind", 9, "which has no columns"),
        (table, "sort", 9, "no field 'sort'"),
        (two, None, 9, "do not say which is a text"),
        (table, "kind", 2, "has 3 texts; at most 2"),
        (tmp_path / "nothing.txt", None, 9, "does not exist"),
    ):
        with pytest.raises(DataError, match=said) as raised:
            read_labelled(path, labels, most)
        assert path.name in str(raised.value)
