"""Readers of line files: rows, errors with their line, headers."""

from __future__ import annotations

import bz2
import csv
import gzip
import hashlib
import io
import json
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


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"one\ntwo\n", ["one", "two"]),
        (b"one\ntwo", ["one", "two"]),
        (b"one\r\ntwo\r\n", ["one", "two"]),
        (b"\xef\xbb\xbfone\ntwo\n", ["one", "two"]),
        (b"one\n\ntwo\n\n", ["one", "", "two", ""]),
        (b"\n", [""]),
        (ODD.encode() + b"\nnext", [ODD, "next"]),
        ("Ça va\u202f!\n".encode(), ["Ça va\u202f!"]),
    ],
)
def test_only_newlines_end_a_line(tmp_path, data, expected):
    path = write(tmp_path / "x.txt", data)
    assert list(lines(path)) == expected
    assert tuples(path) == [(line,) for line in expected]


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


# --- faults of files ---------------------------------------------------------------------------


def test_a_byte_that_is_not_utf8_is_located(tmp_path):
    path = write(tmp_path / "x.txt", b"one\ntwo\nth\xe9ree\n")
    message = r"x\.txt:3: byte 0xE9 at position 3 of the line is not UTF-8"
    with pytest.raises(DataError, match=message) as caught:
        list(lines(path))
    assert (caught.value.path, caught.value.line) == (str(path), 3)


@pytest.mark.parametrize(
    ("data", "hint"),
    [
        ("text".encode("utf-16"), "UTF-16"),
        (gzip.compress(b"text", mtime=0), "ending .gz"),
        (lzma.compress(b"text"), "ending .xz"),
    ],
)
def test_binary_formats_are_recognized_in_the_error(tmp_path, data, hint):
    with pytest.raises(DataError, match=hint):
        list(lines(write(tmp_path / "x.txt", data)))


def test_a_missing_file_offers_the_nearest_name(tmp_path):
    write(tmp_path / "train.en", "a\n")
    with pytest.raises(DataError, match=r"train\.fr: does not exist\. Did you mean 'train\.en'"):
        list(lines(tmp_path / "train.fr"))
    with pytest.raises(DataError, match=r"does not exist\. .* holds: train\.en\."):
        list(lines(tmp_path / "nowhere" / "train.en"))
    with pytest.raises(DataError, match="does not exist"):
        hash_of(tmp_path / "nothing")


def test_an_empty_file_raises_an_error(tmp_path):
    for name, fields in (("x.txt", ()), ("x.tsv", (0,)), ("x.jsonl", ("a",)), ("x.csv", ("a",))):
        with pytest.raises(DataError, match="is empty"):
            tuples(write(tmp_path / name, b""), fields)
    with pytest.raises(DataError, match="is empty: it has not one row"):
        tuples(write(tmp_path / "header.csv", b"a,b\n"), ("a",))


# --- parallel files ----------------------------------------------------------------------------


def test_parallel_files_pair_their_lines(tmp_path):
    de, en = write(tmp_path / "t.de", "eins\n\nzwei\n"), tmp_path / "t.en.gz"
    en.write_bytes(gzip.compress(b"one\n\ntwo"))
    rows = read_parallel(de=de, en=en)
    assert [*rows] == [
        {"de": "eins", "en": "one"},
        {"de": "", "en": ""},
        {"de": "zwei", "en": "two"},
    ]
    assert list(rows.texts()) == ["eins", "one", "", "", "zwei", "two"]
    assert rows.file_of("en") == str(en)


@pytest.mark.parametrize(("left", "right"), [(3, 5), (5, 3), (1, 2)])
def test_unequal_parallel_files_name_both_counts(tmp_path, left, right):
    de, en = write(tmp_path / "t.de", "x\n" * left), write(tmp_path / "t.en", "x\n" * right)
    with pytest.raises(DataError, match=rf"t\.de has {left} lines and \S*t\.en has {right} lines"):
        list(read_parallel(de=de, en=en))


# --- tables ------------------------------------------------------------------------------------


def test_tsv_keeps_quotes_and_odd_characters(tmp_path):
    path = write(tmp_path / "x.tsv", f'say "hi\t{ODD}\tcredit\r\n\nb\tc\td\n')
    assert tuples(path, (1, 0)) == [(ODD, 'say "hi'), ("c", "b")]
    assert [number for number, _ in open_table(path, (0,)).numbered()] == [1, 3]


def test_columns_are_chosen_by_name_or_by_number_under_a_header(tmp_path):
    path = write(tmp_path / "x.tsv", "id\tde\ten\n1\teins\tone\n")
    assert tuples(path, ("en", "de")) == [("one", "eins")]
    assert tuples(path, (2,), header=True) == [("one",)]
    assert tuples(path, (2,)) == [("en",), ("one",)]


def test_a_wrong_column_lists_the_columns(tmp_path):
    path = write(tmp_path / "x.csv", "id,german,english\n1,eins,one\n")
    message = r"has no field 'germn'. It has: id, german, english. Did you mean 'german'\?"
    with pytest.raises(DataError, match=message):
        tuples(path, ("germn",))
    with pytest.raises(DataError, match=r"x.csv:2: has no field 7. It has: id, german, english"):
        tuples(path, (7,))
    with pytest.raises(DataError, match=r"has no field '7'. It has: 0, 1, 2"):
        tuples(path, (7,), header=False)
    assert tuples(path) == [("1", "eins", "one")]
    with pytest.raises(DataError, match=r"has no field 'german'"):
        tuples(path, ("german",), header=False)
    with pytest.raises(DataError, match=r"plain text, which has no columns"):
        open_table(write(tmp_path / "x.txt", "a\tb\n"), (0, 1))
    with pytest.raises(ConfigError, match=r"`format` must be one of .*tsv.*, but is 'tvs'"):
        open_table(path, (0,), format="tvs")


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


def test_csv_rows_keep_quotes_and_newlines_and_have_line_numbers(tmp_path):
    path = write(tmp_path / "x.csv", '"two\nlines","say ""hi"""\r\nb,c\r\n\n"broken,d\n')
    rows = open_table(path, (0, 1), header=False).numbered()
    assert next(rows) == (1, {"0": "two\nlines", "1": 'say "hi"'})
    assert next(rows) == (3, {"0": "b", "1": "c"})
    with pytest.raises(DataError, match=r"x\.csv:5: the row that begins here is not CSV.*quote"):
        next(rows)


# --- records -----------------------------------------------------------------------------------


def test_jsonl_fields_nest_by_dots(tmp_path):
    record = {"translation": {"de": f"eins {ODD}", "en": "one"}, "a.b": "dotted", "n": 3}
    path = write(tmp_path / "x.jsonl", json.dumps(record, ensure_ascii=False) + "\n\n")
    fields = ("translation.de", "translation.en", "a.b", "n")
    assert tuples(path, fields) == [(f"eins {ODD}", "one", "dotted", 3)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"de": "x"', r"x\.jsonl:2: is not JSON"),
        ('["x"]', r"x\.jsonl:2: must be a JSON object, but is a list"),
        ('{"d": "x"}', r"x\.jsonl:2: has no field 'de'. It has: d. Did you mean 'd'"),
        ('{"de": null}', r"x\.jsonl:2: field 'de' must be text, but is missing \(null\)"),
        ('{"de": ["x"]}', r"x\.jsonl:2: field 'de' must be text, but is a list"),
        (r'{"de": "x\ud800"}', r"x\.jsonl:2: is not JSON: unexpected end of hex"),
    ],
)
def test_malformed_records_raise_located_errors(tmp_path, line, message):
    path = write(tmp_path / "x.jsonl", '{"de": "ok"}\n' + line + "\n")
    with pytest.raises(DataError, match=message):
        list(open_table(path, ("de",)).texts())


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


def test_a_text_may_begin_with_a_space_and_a_quote(tmp_path):
    rows = [(' "Well," he said\n', "a"), (' "b"', ' "'), ("x", ' ""c"')]
    with (tmp_path / "x.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    assert tuples(tmp_path / "x.csv", ("text", "label")) == rows


# Rows that are not what the file seems to say, by one rule for all tables.
@pytest.mark.parametrize(
    ("name", "text", "options", "message"),
    [
        ("x.tsv", "a\tb\nI like\tit\tb\n", {}, "x.tsv:2: has 3 fields, but line 1 has 2"),
        ("x.tsv", "a\tb\n\na\n", {}, "x.tsv:3: has 1 fields, but line 1 has 2"),
        ("x.csv", 'a,b\n"x, y",b\nx, y,b\n', {}, "x.csv:3: has 3 fields, but line 1 has 2"),
        ("x.csv", "a;b\n1;2\n", {}, "x.csv:2: may have .*: has no field 1. It has: a;b"),
        ("x.csv", "a;b\n1,2;3\n", {}, "x.csv:2: may have .* --delimiter ';'.*: has 2 fields"),
        ("x.csv", "a\tb\n1,2\t3\n", {}, r"--delimiter \$'\\t'\): has 2 fields"),
        ("x.csv", 'a,b\n"a";"b"\n', {}, "x.csv:2: .* is not CSV: .* `delimiter`"),
        ("x.csv", 'a,b\n"a", "b"\n', {}, "x.csv:2: .* a space stands before a quote"),
        ("x.tsv", "a\tb\rc\td\r", {}, "x.tsv:1: lines end in carriage returns alone"),
        ("x.csv", "a;b\n1;2;3\n", {"delimiter": ";"}, "x.csv:2: has 3 fields, but line 1 has 2"),
    ],
)
def test_rows_that_are_uneven_or_read_by_the_wrong_signs_are_errors(
    tmp_path, name, text, options, message
):
    path = write(tmp_path / name, text.encode())
    with pytest.raises(DataError, match=message):
        tuples(path, (0, 1), **options)


def test_a_delimiter_and_a_reader_of_records_as_data(tmp_path):
    path = write(tmp_path / "x.csv", b'Type;Example\nc#;"hi;\n""why"""\n')
    table = open_table(path, delimiter=";")
    assert tuples(table) == [("c#", 'hi;\n"why"')]
    assert tuples(path, (1,), delimiter=";", header=True) == [('hi;\n"why"',)]
    for wrong in ({"format": "tsv", "delimiter": ";"}, {"delimiter": ";;"}):
        with pytest.raises(ConfigError, match="`delimiter` must be a character of CSV"):
            open_table(path, (0,), **wrong)


# --- anything one can loop over ----------------------------------------------------------------


def test_iterables_of_strings_tuples_and_mappings_give_rows():
    assert tuples(["a", "b"]) == [("a",), ("b",)]
    assert tuples([("a", "b"), ["c", "d"]]) == [("a", "b"), ("c", "d")]
    assert tuples([("a", "b")], (1,)) == [("b",)]
    assert tuples([{"t": {"de": "a"}}], ("t.de",)) == [("a",)]


def test_a_second_pass_over_a_generator_raises_an_error():
    rows = open_table(text for text in ("a", "b"))
    assert list(rows) == [{"text": "a"}, {"text": "b"}]
    with pytest.raises(DataError, match="can be read only once"):
        list(rows)


@pytest.mark.parametrize(
    ("item", "fields", "message"),
    [
        (3, (), "<list>:1: must be a tuple or a mapping, but is a int"),
        (b"x", (), "but is a bytes"),
        ("x", ("de",), "has no field 'de'. It has: text"),
        (("x", None), (), "field '1' must be text, but is missing"),
        (("x",), (1,), "has no field 1. It has: 0"),
        ({"a": "x"}, ("b",), "has no field 'b'. It has: a"),
    ],
)
def test_malformed_items_raise_numbered_errors(item, fields, message):
    with pytest.raises(DataError, match=message):
        list(open_table([item], fields).texts())


def test_tatoeba_is_read_from_its_archive(shared):
    rows = open_table(f"{shared('tatoeba_fra_eng/fra-eng.zip')}!fra.txt", (0, 1), format="tsv")
    pairs = list(rows)
    assert len(pairs) == 142_787 and [*pairs[1].values()] == ["Run!", "Cours\u202f!"]


def test_multi30k_is_read_as_published(shared):
    folder = shared("multi30k/data/task1/raw")
    assert (
        sum(1 for _ in read_parallel(en=folder / "train.en.gz", de=folder / "train.de.gz"))
        == 29_000
    )


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
