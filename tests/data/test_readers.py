"""Readers of line files: rows, archives, headers."""

from __future__ import annotations

import bz2
import csv
import gzip
import hashlib
import io
import lzma
import tracemalloc
import zipfile
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from row_tuples import tuples

from regard.data import hash_of, open_table, read_conll, read_parallel
from regard.data.files import lines
from regard.errors import ConfigError, DataError
from regard.experiments.recipe_options import (
    checked_recipe,
    recipe_from_keywords,
    schema_of,
    with_options_in_sections,
)
from regard.experiments.runs import plan
from regard.recipe import parse
from regard.tasks.text_to_text import pairs_of

ODD = "a\x0cb\u2028c\rd\x85e\x1cf\x00g"  # str.splitlines would cut at each of these


def write(path, data):
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


# --- lines -------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["a\nb\n", "a\nb", "a \n\n b\r\n\r\n", "\n\nx", ODD + "\n\n"])
def test_verbatim_rows_joined_are_the_file(tmp_path, text):
    rows = open_table(write(tmp_path / "x.txt", text), format="text")
    assert "".join(rows.texts()) == text
    for before, after in zip(list(rows.texts()), list(rows.texts())[1:], strict=False):
        assert after[0] in "\r\n" and not before[-1].isspace()


def test_compressed_files_and_members_read_alike(tmp_path):
    text = b"eins\nzwei\n"
    for ending, module in ((".gz", gzip), (".bz2", bz2), (".xz", lzma)):
        path = write(tmp_path / f"x.txt{ending}", module.compress(text))
        assert list(lines(path)) == ["eins", "zwei"]
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("in/de.tsv", "eins\tone\n")
    assert list(lines(tmp_path / "x.zip")) == ["eins\tone"]
    with zipfile.ZipFile(tmp_path / "x.zip", "a") as archive:
        archive.writestr("about.txt", "x")
    assert tuples(f"{tmp_path}/x.zip!in/de.tsv", (1, 0)) == [("one", "eins")]
    with pytest.raises(DataError, match=r"x\.zip: holds 2 files; say which one\..*x\.zip!in/de"):
        list(lines(tmp_path / "x.zip"))
    with pytest.raises(DataError, match=r"has no member 'in/fr.tsv'\. Did you mean 'in/de.tsv'"):
        list(lines(f"{tmp_path}/x.zip!in/fr.tsv"))


def test_a_large_file_is_never_in_memory_as_a_whole(tmp_path):
    path = tmp_path / "x.tsv.gz"
    path.write_bytes(gzip.compress(b"a line of text\tits translation\n" * 60_000))  # 1.9 MB
    tracemalloc.start()
    assert sum(1 for _ in open_table(path, (1,))) == 60_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 500_000


def test_hashes_are_those_of_sha256sum(tmp_path):
    path = write(tmp_path / "x.txt", b"abc")
    assert hash_of(path) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("x", "abc")
    assert hash_of(f"{tmp_path}/x.zip!x") == hash_of(path)
    whole = hashlib.sha256((tmp_path / "x.zip").read_bytes()).hexdigest()
    assert hash_of(tmp_path / "x.zip") == whole


# --- tables ------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet"])
def test_a_column_whose_name_occurs_twice_is_not_guessed(tmp_path, ending):
    path = tmp_path / f"x.{ending}"
    if ending == "parquet":
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        columns = [pyarrow.array([one]) for one in ("a", "b", "1")]
        parquet.write_table(pyarrow.Table.from_arrays(columns, ["text", "text", "label"]), path)
    else:
        comma = "," if ending == "csv" else "\t"
        write(path, f"text{comma}text{comma}label\na{comma}b{comma}1\n")
        unnamed = write(tmp_path / f"y.{ending}", f"a{comma}{comma}\n1{comma}2{comma}3\n")
        assert tuples(unnamed, ("a",)) == [("1",)]
    with pytest.raises(DataError, match=rf"x\.{ending}: has more than one column 'text'"):
        tuples(path, ("text", "label"))


FIELDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@given(st.lists(st.tuples(FIELDS, FIELDS), min_size=1, max_size=5))
def test_csv_gives_back_what_python_wrote(tmp_path_factory, table):
    path = tmp_path_factory.mktemp("csv") / "x.csv"
    with open(path, "w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, quoting=csv.QUOTE_ALL)
        writer.writerows([("a", "b"), *table])
    assert tuples(path, ("a", "b")) == table


# --- records -----------------------------------------------------------------------------------


def test_parquet_reads_nested_columns(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = [{"id": i, "t": {"de": f"d{i}", "en": f"e{i}"}, "a.b": "x"} for i in range(3000)]
    path = tmp_path / "x.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    read_back = tuples(path, ("t.en", "t.de", "id", "a.b"))
    assert read_back == [(f"e{i}", f"d{i}", i, "x") for i in range(3000)]
    with pytest.raises(DataError, match=r"has no field 'tt'. It has: id, t, a.b"):
        tuples(path, ("tt.en",))
    with pytest.raises(DataError, match=r"has no field 't.fr'"):
        tuples(path, ("t.fr",))
    with pytest.raises(DataError, match=r"cannot be read as Parquet"):
        tuples(write(tmp_path / "y.parquet", b"no parquet"), ("a",))


# --- anything one can loop over ----------------------------------------------------------------


def test_tatoeba_is_read_from_its_archive(shared):
    rows = open_table(f"{shared('tatoeba_fra_eng/fra-eng.zip')}!fra.txt", (0, 1), format="tsv")
    pairs = list(rows)
    assert len(pairs) == 142_787 and [*pairs[1].values()] == ["Run!", "Cours\u202f!"]


def test_multi30k_is_read_as_published(shared):
    folder = shared("multi30k/data/task1/raw")
    pairs = read_parallel(en=folder / "train.en.gz", de=folder / "train.de.gz")
    assert sum(1 for _ in pairs) == 29_000


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
def test_a_csv_file_has_a_header_and_of_a_tsv_file_it_must_be_said(
    tmp_path, task, header, rows, columns, ending
):
    file = table(tmp_path, header, rows, ending.removesuffix(".gz"))
    if ending.endswith(".gz"):
        file = file.rename(tmp_path / f"rows.{ending}")
        file.write_bytes(gzip.compress(file.read_bytes()))
    more = {"separator": ";"} if task.startswith("multi") else {}
    for choice in ({}, {"columns": [header[n] for n in columns]}, {"header": True}):
        if not choice and "tsv" in ending:
            with pytest.raises(
                DataError, match=":1: may hold the names of the columns: .*header = "
            ):
                planned(task, file, columns=columns, **more)
            continue
        made = planned(task, file, **{"columns": columns, **more, **choice})
        assert len(made.parts.train.targets) == len(rows)
        assert task == "regression" or {*made.labels} == {row[columns[-1]] for row in rows}


@pytest.mark.parametrize("ending", ["csv", "tsv"])
def test_without_columns_the_names_in_the_header_are_used(tmp_path, ending):
    more = {"header": True} if ending == "tsv" else {}
    rows = [("1", "yes", "it is wet", "it rains"), ("2", "no", "it is dry", "it rains")] * 4
    file = table(tmp_path, ("id", "Label", "sentence2", "sentence1"), rows, ending)
    made = planned("classification", file, group="id", valid=0.5, **more)
    assert {*made.labels} == {"no", "yes"}


def test_a_header_of_other_names_lists_them(tmp_path):
    file = table(tmp_path, ("Sentence", "Kind"), ROWS, "csv")
    with pytest.raises(
        ConfigError, match=r"columns are Sentence, Kind,.* columns = \[text column, l"
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


def test_the_header_of_a_file_to_evaluate_is_an_error_with_what_to_do(tmp_path):
    file = table(tmp_path, ("text", "label"), ROWS, "tsv")
    task = planned("classification", file, header=True)
    with pytest.raises(DataError, match="rows.tsv:1: may hold the names of the columns: text, l"):
        task.evaluate(task.rows_to_evaluate([file], (0, 1)))
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
    planned("translation", file, model, header=True, **parts)
    with pytest.raises(DataError, match="rows.tsv:1: may hold the names of the columns: German, E"):
        planned("translation", file, model, **parts)
    assert len([*pairs_of([str(file)], (0, 1), partial(open_table, header=True))]) == 8
    first = next(iter(pairs_of([str(file)], (0, 1), partial(open_table, header=False))))
    assert first == {"source": "German", "target": "English"}
