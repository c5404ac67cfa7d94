"""A first line that names the columns is no example; one that is an example stays usable."""

from __future__ import annotations

import csv
import gzip
import io
from functools import partial

import pytest

from regard.data import read, read_conll
from regard.data.header_rows import without_header
from regard.errors import ConfigError, DataError
from regard.experiments.keywords import recipe_from_keywords, with_options_in_sections
from regard.experiments.recipe_options import checked_recipe, schema_of
from regard.experiments.runs import plan
from regard.recipe import parse
from regard.tasks.text_to_text import pairs_of

TINY = {"name": "kim-cnn", "d_words": 4, "filters": [[1, 4]]}
ROWS = [("a good film", "good"), ("a bad film", "bad")] * 4
PAIRS = [("it rains", "it is wet", "yes"), ("it rains", "it is dry", "no")] * 4
NUMBERS = [("a good film", "4.5"), ("a bad film", "1")] * 4


def table(path, header, rows, ending):
    text = io.StringIO()
    delimiter = "\t" if "tsv" in ending else ","
    csv.writer(text, delimiter=delimiter, lineterminator="\n").writerows([header, *rows])
    file = path / f"rows.{ending}"
    file.write_text(text.getvalue())
    return file


def planned(task, file, model=TINY, **data):
    """The task of a recipe, which has read the data of a file."""
    options = {
        "task": task, "model": model, "data": {"train": str(file), **data}, "max_steps": 1,
        "tokenizer": {"kind": "words", "vocab_size": 40},
    }  # fmt: skip
    raw = recipe_from_keywords(None, options)
    return plan(checked_recipe(with_options_in_sections(raw, schema_of(raw)))).task


@pytest.mark.parametrize(
    ("task", "header", "rows", "columns", "ending"),
    [
        ("classification", ("text", "label"), ROWS, [0, 1], "tsv"),
        ("classification", ("Label", "Text"), [row[::-1] for row in ROWS], [1, 0], "csv"),
        ("classification", ("sentence1", "sentence2", "gold-label"), PAIRS, [0, 1, 2], "tsv.gz"),
        ("regression", ("sentence", "score"), NUMBERS, [0, 1], "tsv"),
        ("multi-label-classification", ("tweet", "labels"), ROWS, [0, 1], "csv"),
    ],
)
def test_a_first_line_of_usual_names_is_a_header(tmp_path, task, header, rows, columns, ending):
    file = table(tmp_path, header, rows, ending.removesuffix(".gz"))
    if ending.endswith(".gz"):
        file = file.rename(tmp_path / f"rows.{ending}")
        file.write_bytes(gzip.compress(file.read_bytes()))
    more = {"separator": ";"} if task.startswith("multi") else {}
    for choice in ({}, {"columns": [header[n] for n in columns]}, {"header": True}):
        made = planned(task, file, **{"columns": columns, **more, **choice})
        assert len(made.parts.train.targets) == len(rows)
        assert task == "regression" or {*made.labels} == {row[columns[-1]] for row in rows}


@pytest.mark.parametrize("ending", ["csv", "tsv"])
def test_without_columns_the_names_in_the_header_are_used(tmp_path, ending):
    rows = [("1", "yes", "it is wet", "it rains"), ("2", "no", "it is dry", "it rains")] * 4
    file = table(tmp_path, ("id", "Label", "sentence2", "sentence1"), rows, ending)
    made = planned("classification", file, group="id", valid=0.5)
    assert {*made.labels} == {"no", "yes"}


def test_a_header_of_other_names_lists_them(tmp_path):
    file = table(tmp_path, ("Sentence", "Kind"), ROWS, "csv")
    with pytest.raises(
        ConfigError, match=r"the columns Sentence, Kind.* columns = \[text column, l"
    ):
        planned("classification", file)
    assert "Kind" in planned("classification", file, header=False).labels
    recipe = f'task = "classification"\nmodel.name = "bilstm"\ndata.train = "{file}"'
    found = checked_recipe(parse(recipe, ["columns=Sentence,Kind"])).data
    assert found.columns == ("Sentence", "Kind")


def test_texts_that_are_read_as_labels_are_a_warning(tmp_path):
    rows = [(f"film {n}", "good") for n in range(20)] + [("film", "bad")] * 10
    file = table(tmp_path, ("note", "mood"), rows, "csv")
    with pytest.warns(UserWarning, match="^20 of 30 examples have a label that no other has: are"):
        planned("classification", file, columns=["mood", "note"])


def test_an_example_that_looks_like_a_header_is_usable(tmp_path):
    words = [("text", "label"), ("question", "title"), ("label", "noun"), ("see", "verb")] * 2
    file = table(tmp_path, words[0], words[1:], "tsv")
    assert {*planned("classification", file, header=False).labels} == {
        "label",
        "title",
        "noun",
        "verb",
    }


def test_the_header_of_a_file_to_evaluate_is_an_error_with_what_to_do(tmp_path):
    file = table(tmp_path, ("text", "label"), ROWS, "tsv")
    task = planned("classification", file, header=True)
    with pytest.raises(DataError, match="rows.tsv:1: has the label 'label'"):
        task.evaluate(task.rows_to_evaluate([file], ()))
    (score,) = task.evaluate(task.rows_to_evaluate([file], ("text", "label"))).named
    assert score.count == len(ROWS)


# ----------------------------------------------------------------------------------- other tasks


def test_a_file_of_tags_has_a_header_if_the_recipe_says_so(tmp_path):
    path = tmp_path / "x.conll"
    path.write_text("Token\tPOS\tNER_tag\nEU\tNNP\tB-ORG\nvotes\tVBZ\tO\n\nYes\tUH\tO\n")
    found = read_conll(path, header=True)
    assert [words for words, _ in found] == [("EU", "votes"), ("Yes",)]
    ((words, tags), _) = read_conll(path, header=False)
    assert (words[0], tags[0]) == ("Token", "NER_tag")
    assert {*planned("tagging", path, header=True).labels} == {"B-ORG", "O"}


def test_the_header_of_pairs_to_translate(tmp_path):
    file = table(tmp_path, ("German", "English"), [("eins", "one"), ("zwei", "two")] * 4, "tsv")
    model = {"name": "lstm-seq2seq", "d_model": 4, "layers": 1}
    parts = {"train": [str(file)], "valid": [str(file)]}
    planned("translation", file, model, **parts)
    assert len([*without_header(pairs_of([str(file)], (0, 1)))]) == 8
    assert len([*pairs_of([str(file)], (0, 1), partial(read, header=True))]) == 8
    assert [*pairs_of([str(file)], (0, 1), partial(read, header=False))][0] == ("German", "English")
