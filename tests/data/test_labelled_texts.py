"""Texts with labels, read from lines and from tables."""

from __future__ import annotations

import json

import pytest

from regard.data.labelled_texts import LabelledTexts, read_labelled
from regard.errors import DataError

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
    texts, labels = zip(*ROWS, strict=True)
    if name != "a.txt":
        assert read_labelled(path, "kind") == LabelledTexts(texts, labels)
        assert read_labelled(path, "kind", most=3).texts == texts
    else:
        assert read_labelled(path) == LabelledTexts(texts)


def test_a_label_that_is_a_number_is_a_text(tmp_path):
    path = tmp_path / "a.jsonl"
    lines = [{"text": "one", "n": 1}, {"text": "two", "n": 2}]
    path.write_text("\n".join(map(json.dumps, lines)))
    assert read_labelled(path, "n").labels == ("1", "2")


def test_files_without_texts_or_labels_raise_an_error_that_names_them(tmp_path):
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    blank = tmp_path / "blank.txt"
    blank.write_text("\n \n")
    table = write(tmp_path / "a.tsv", ROWS)
    two = tmp_path / "two.csv"
    two.write_text("question,answer,other\na,b,c\n")
    for path, labels, most, said in (
        (empty, None, None, "is empty"),
        (blank, None, None, "every row is blank"),
        (blank, "kind", None, "no column 'kind'"),
        (table, "sort", None, "no field 'sort'"),
        (two, None, None, "do not say which is a text"),
        (table, "kind", 2, "has 3 texts; at most 2"),
        (tmp_path / "nothing.txt", None, None, "does not exist"),
    ):
        with pytest.raises(DataError, match=said) as raised:
            read_labelled(path, labels, most)
        assert path.name in str(raised.value)
