"""Rows of DataFrames, datasets and lists: all kinds give the same rows; bad values are located."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from regard.data import read
from regard.data.in_memory import rows, text_rows, write_jsonl, write_lines
from regard.errors import ConfigError, DataError

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
    assert write_jsonl(data, tmp_path / "rows.jsonl", ("text", "label")) == 3
    found = list(read(tmp_path / "rows.jsonl", ("text", "label")))
    assert found == list(zip(TEXTS, LABELS, strict=True))


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
        ([True, False, True], ["True", "False", "True"]),
        (np.array([0.5, 1.5, 2.0], dtype="f4"), [0.5, 1.5, 2.0]),
        ([["a"], ["a", "b"], []], [["a"], ["a", "b"], []]),
        ([np.array([1, 2]), np.array([3]), np.array([], int)], [[1, 2], [3], []]),
    ],
)
def test_values_are_written_as_json_has_them(labels, written, tmp_path):
    frame = pandas.DataFrame({"text": TEXTS, "label": pandas.Series(list(labels))})
    write_jsonl(frame, tmp_path / "rows.jsonl")
    lines = (tmp_path / "rows.jsonl").read_text().splitlines()
    assert [json.loads(line)["label"] for line in lines] == written


@pytest.mark.parametrize("missing", [None, float("nan"), pandas.NA, pandas.NaT])
def test_a_missing_value_of_a_chosen_column_is_located(missing, tmp_path):
    frame = pandas.DataFrame({"text": ["a", "b"], "label": ["x", missing], "other": [missing, 1]})
    with pytest.raises(DataError, match=r"<DataFrame>:2: has no value in column 'label'"):
        write_jsonl(frame, tmp_path / "rows.jsonl", ("text", "label"))
    assert not (tmp_path / "rows.jsonl").exists()
    assert write_jsonl(frame[:1], tmp_path / "rows.jsonl", ("text", "label")) == 1


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (5, "must be a table or a list of rows, but is 5"),
        ([], "is empty: it has not one row"),
        (["a text"], ":1: must be a mapping or a sequence of fields, but is 'a text'"),
        ([{"text": b"raw"}], ":1: has a bytes in column 'text'"),
        ({"text": ["a"], "label": []}, "has columns of different lengths"),
        ({"text": "a", "label": "b"}, "must have a list of values as column 'text', but has 'a'"),
        ({"text": [1], 1: [1], "1": [1]}, "has several columns with the name '1'"),
        ({("a", 1)}, "must be a table or a list of rows"),
        (b"raw", "must be a table or a list of rows, but is b'raw'"),
        (np.array(3), "is empty"),
        ([("a", "\ud800")], ":1: has half of a surrogate pair"),
        ([("a", float("inf"))], ":1: has a float in column '1': inf"),
        ([("a", np.longdouble(1))], "has a longdouble in column '1'"),
    ],
)
def test_data_that_are_no_rows_raise_an_error_that_says_so(data, said, tmp_path):
    with pytest.raises(DataError, match=said):
        write_jsonl(data, tmp_path / "rows.jsonl")


def test_lists_of_class_labels_are_lists_of_their_names():
    datasets = pytest.importorskip("datasets")
    tags = datasets.Sequence(datasets.ClassLabel(names=["O", "B-A"]))
    features = datasets.Features({"words": datasets.Sequence(datasets.Value("string")), "t": tags})
    data = datasets.Dataset.from_dict({"words": [["a", "b"]], "t": [[1, 0]]}, features=features)
    assert list(rows(data)) == [{"words": ["a", "b"], "t": ["B-A", "O"]}]


def test_columns_whose_names_do_not_say_which_is_meant_raise_an_error():
    frame = pandas.DataFrame(COLUMNS)
    with pytest.raises(DataError, match="has several columns with the name 'text'. Rename"):
        rows(pandas.concat([frame, frame[["text"]]], axis=1))


def test_rows_in_memory_are_read_as_the_file_that_is_written_of_them(tmp_path):
    values = [True, np.bool_(False), np.int8(3), 1.0, np.float32(0.5), torch.tensor(2), "x"]
    data = [("a", value) for value in values]
    write_jsonl(data, tmp_path / "rows.jsonl", (0, 1))
    assert list(read(tmp_path / "rows.jsonl", ("0", "1"))) == list(read(data))
    with pytest.raises(DataError, match="field 1 must be text, but is missing"):
        list(read([("a", float("nan"))]))


def test_texts_of_a_table_leave_out_the_target():
    assert text_rows(pandas.DataFrame(COLUMNS)) == TEXTS
    pairs = polars.DataFrame({"premise": ["a"], "hypothesis": ["b"], "label": [1], "id": [3]})
    assert text_rows(pairs) == [("a", "b")]
    with pytest.raises(ConfigError, match="the columns one, two, and their names do not say"):
        text_rows(pandas.DataFrame({"one": ["a"], "two": ["b"]}))


def test_texts_are_written_as_lines(tmp_path):
    write_lines(["one", {"text": "two"}, ("three\n",)], tmp_path / "text.txt")
    assert (tmp_path / "text.txt").read_text() == "one\ntwo\nthree\n"
    write_lines(pandas.Series(["one", "two"]), tmp_path / "text.txt")
    assert (tmp_path / "text.txt").read_text() == "one\ntwo\n"
    with pytest.raises(DataError, match=":1: must be a text, but is"):
        write_lines([{"a": "x", "b": "y"}], tmp_path / "text.txt")
