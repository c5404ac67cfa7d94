"""The same rows in files, in memory and over HTTP give equal batches."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_folders import folder

from regard.data.in_memory import Items, write_copy
from regard.data.readers import open_table, reading_memory
from regard.tasks.classification import TextClassifier, TextRegressor
from regard.tasks.folders import load
from regard.tasks.inputs import named_columns
from regard.tasks.multi_label import MultiLabelClassifier, MultiLabelData
from regard.tasks.text_tasks import TextsData, encoded_rows

pandas = pytest.importorskip("pandas")
polars = pytest.importorskip("polars")
pyarrow = pytest.importorskip("pyarrow")
datasets = pytest.importorskip("datasets")

LABELS = ["a", "b", "1"]
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
NUMBERS = st.floats(-1e6, 1e6, allow_nan=False) | st.integers(-(2**40), 2**40).map(float)
LISTS = st.lists(st.sampled_from(LABELS), unique=True, max_size=3)


def kinds(path, rows: list[dict[str, Any]]):
    """The rows as each kind of table; (name, source)."""
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    frame, table = pandas.DataFrame(columns), pyarrow.table(columns)
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL)
    cells = [[json.dumps(v) if isinstance(v, list) else v for v in row.values()] for row in rows]
    writer.writerows([list(columns), *cells])
    (path / "x.csv").write_bytes(text.getvalue().encode())
    (path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pyarrow.parquet.write_table(table, path / "x.parquet")
    yield from ((name, path / f"x.{name}") for name in ("jsonl", "csv", "parquet"))
    yield "rows", rows
    yield "tuples", [tuple(row.values()) for row in rows]
    yield "columns", columns
    yield "generator", (row for row in rows)
    yield "pandas", frame
    yield "pandas, another index", frame.set_index(frame.index[::-1] // 2)
    yield "named tuples", list(frame.itertuples(False, "Row"))
    yield "polars", polars.DataFrame(columns)
    yield "datasets", datasets.Dataset.from_dict(columns)
    yield "arrow", table
    if not isinstance(rows[0]["label"], list):
        yield "categories", frame.assign(label=frame["label"].astype("category"))
    write_copy(frame, path / "copy.jsonl", tuple(columns))
    yield "copy", path / "copy.jsonl"


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    path = folder(tmp_path_factory.mktemp("start") / "bert", "bert", "ForSequenceClassification")
    loaded: Any = load(path, task="classification")
    module, tokenizer = loaded.module.with_new_head("classes", 3), loaded.tokenizer
    one = TextClassifier(module, tokenizer, labels=LABELS)
    several = MultiLabelClassifier(module, tokenizer, labels=LABELS)
    return {
        "text": (one, TextsData),
        "number": (TextRegressor(module, tokenizer), TextsData),
        "list": (several, MultiLabelData),
    }


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
@pytest.mark.parametrize("kind", ["text", "number", "list"])
def test_rows_of_every_kind_are_equal_batches(kind, tasks, tmp_path_factory, data):
    task, section = tasks[kind]
    labels = {"text": st.sampled_from(LABELS), "number": NUMBERS, "list": LISTS}[kind]
    texts = st.tuples(TEXTS, TEXTS, labels)
    drawn = data.draw(st.lists(texts, min_size=1, max_size=6), label="rows")
    rows = [dict(zip(("one", "two", "label"), row, strict=True)) for row in drawn]
    rows.append({"one": "a dog", "two": "a ball", "label": rows[0]["label"]})
    options = section(train="rows", columns=("one", "two", "label"))
    path = tmp_path_factory.mktemp("rows")
    wanted = None
    for name, source in kinds(path, rows):
        columns = (0, 1, 2) if name == "tuples" else options.columns
        part = encoded_rows(task, open_table(source, named_columns(columns)), options)
        found = [
            part.targets.tolist(),
            part.inputs.ids.ids.tolist(),
            part.inputs.ids.offsets.tolist(),
            part.inputs.segments.ids.tolist(),
        ]
        wanted = wanted or found
        assert found == wanted, name


@pytest.mark.parametrize("missing", [None, float("nan"), pandas.NA])
def test_a_missing_value_is_none_in_every_kind(missing, tmp_path):
    rows = [{"text": "a dog", "label": "a"}, {"text": "a ball", "label": None}]
    for name, source in kinds(tmp_path, rows):
        if name in ("pandas", "rows"):
            source = pandas.DataFrame({"text": ["a dog", "a ball"], "label": ["a", missing]})
        reader = open_table(
            source, {"text": 0, "label": 1} if name == "tuples" else ("text", "label")
        )
        assert name == "csv" or [*reader] == rows, name
        assert [*reader.texts()] == ["a dog", "a", "a ball", ""]  # as in CSV


@pytest.mark.parametrize("kind", ["text", "number", "list"])
def test_a_row_without_a_text_is_left_out_in_every_kind(kind, tasks, tmp_path):
    task, section = tasks[kind]
    label = {"text": "a", "number": 1.5, "list": ["a"]}[kind]
    rows = [{"text": text, "label": label} for text in ("a dog", None, " ")]
    for name, source in kinds(tmp_path, rows):
        columns = named_columns((0, 1) if name == "tuples" else ("text", "label"))
        report = encoded_rows(task, open_table(source, columns), section(train="rows")).report
        assert (report.read, report.kept) == (3, 1), name
        assert report.events["empty, example left out"]["count"] == 2, name


def test_a_copy_in_a_file_is_not_read_where_its_rows_are_in_memory(tmp_path):
    rows = [{"text": "a", "label": [1, 2.5, None]}, {"text": "é", "label": []}]
    write_copy(rows, tmp_path / "copy.jsonl")
    copied = [*open_table(tmp_path / "copy.jsonl")]
    (tmp_path / "copy.jsonl").write_text("no JSON")
    with reading_memory({str(tmp_path / "copy.jsonl"): Items(rows, "train=<list>")}):
        reader = open_table(tmp_path / "copy.jsonl")
        assert [*reader] == copied == rows and reader.name == "train=<list>"
