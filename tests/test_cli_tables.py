"""`regard predict --file`: tables in, the same tables with predictions out."""

from __future__ import annotations

import csv
import gc
import json
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import every_task
import pandas
import pytest
from test_cli import done, refused, regard

from regard import load, save
from regard.cli import predict_file
from regard.cli.options import Opening
from regard.cli.sharding import ShardedWork
from regard.data import files
from regard.sharded import manifest, worker
from regard.sharded import rows as rows_module
from regard.tasks.infer_task import OF_ENCODER_DECODERS

ENDINGS = ("csv", "tsv", "jsonl", "parquet")
TEXTS = ["the old cat", "", "sat on a warm mat", 'in, "the"', "who"]
PAIRS = {"question-answering", "next-sentence", "sentence-order"}
# They read no texts from columns, or predict nothing.
WITHOUT = {"multiple-choice", "embedding", "captioning"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    return every_task.make(tmp_path_factory.mktemp("tasks"))


def table(path: Path, **columns: list[Any]) -> Path:
    """Written by pandas, which judges what is read."""
    frame = pandas.DataFrame(columns)
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    elif path.suffix == ".jsonl":
        frame.to_json(path, orient="records", lines=True, force_ascii=False)
    else:
        quoting = csv.QUOTE_NONE if path.suffix == ".tsv" else csv.QUOTE_MINIMAL
        frame.to_csv(path, sep="\t" if path.suffix == ".tsv" else ",", index=False, quoting=quoting)
    return path


def rows(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        return pandas.read_parquet(path).to_dict("records")
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    quoting = csv.QUOTE_NONE if path.suffix == ".tsv" else csv.QUOTE_MINIMAL
    separator = "\t" if path.suffix == ".tsv" else ","
    frame = pandas.read_csv(path, sep=separator, dtype=str, keep_default_na=False, quoting=quoting)
    return frame.to_dict("records")


def columns_of(name: str, texts: list[str]) -> dict[str, list[str]]:
    """The columns of texts that a task reads, and lines with the same texts."""
    if name in ("fill-mask", "masked-language-modeling"):
        return {"text": [text and f"[MASK] {text}" for text in texts]}
    if every_task.task_of(name) in PAIRS:
        return {"one": texts, "two": [text and "the cat was sleeping" for text in texts]}
    return {"text": texts}


@pytest.mark.parametrize(
    "name", sorted(one for one in every_task.MAKERS if every_task.task_of(one) not in WITHOUT)
)
def test_a_table_has_the_predictions_of_its_lines(folders, tmp_path, name):
    columns = columns_of(name, TEXTS)
    decoding = ["--max-tokens", 4] if name.startswith(("language", *OF_ENCODER_DECODERS)) else []
    lines = ["\t".join(row).strip() for row in zip(*columns.values(), strict=True)]
    said = done("predict", folders[name], "--json", *decoding, stdin="\n".join(lines) + "\n")
    wanted = [json.loads(line) for line in said.splitlines()]
    source = table(tmp_path / "in.csv", number=list(range(5)), **columns)
    out, names = tmp_path / "out.jsonl", ",".join(columns)
    done("predict", folders[name], "--file", source, "--columns", names, "--out", out, *decoding)
    found = rows(out)
    assert [int(row["number"]) for row in found] == list(range(5))
    assert all([row[c] for row in found] == texts for c, texts in columns.items())
    assert [one["prediction"] for one in found][1] is None
    for row, one in zip(found, wanted, strict=True):
        if not one["source"]:
            continue
        assert row["prediction"] == one.get("value", one["text"])  # a number has all its digits
        if "probabilities" in one and isinstance(one["probabilities"], dict):
            scores = {k: row[f"probabilities.{k}"] for k in one["probabilities"]}
            assert scores == pytest.approx(one["probabilities"])
        if "hypotheses" in one:
            assert row["score"] == pytest.approx(one["hypotheses"][0]["score"])


@pytest.mark.parametrize(
    "read, written", [*zip(ENDINGS, ENDINGS[::-1], strict=True), ("csv", "tsv")]
)
def test_every_format_is_read_and_written(folders, tmp_path, read, written):
    data = {"id": list("abcde"), "text": TEXTS, "label": ["yes"] * 5}
    source, out = table(tmp_path / f"in.{read}", **data), tmp_path / f"out.{written}"
    done("predict", folders["classification"], "--file", source, "--out", out)
    found = rows(out)
    answers = done("predict", folders["classification"], stdin="\n".join(TEXTS) + "\n")
    predicted = ["" if pandas.isna(row["prediction"]) else row["prediction"] for row in found]
    assert predicted == answers.splitlines()
    assert list(found[0]) == [*data, "prediction", *(f"probabilities.{x}" for x in LABELS)]
    assert {name: [row[name] for row in found] for name in data} == data


LABELS = ("no", "perhaps", "yes")


@pytest.mark.parametrize(
    ("read", "written"),
    [("csv", "csv"), ("jsonl", "jsonl"), ("parquet", "csv"), ("tsv", "parquet")],
)
def test_workers_write_the_table_that_one_process_writes(
    folders, tmp_path, monkeypatch, read, written
):
    day = pandas.Timestamp("2020-01-01")
    given = table(tmp_path / f"in.{read}", text=[*TEXTS, "a cat"] * 4, day=[day] * 24)
    out, parts = tmp_path / f"workers.{written}", tmp_path / f"workers.{written}.parts"
    words = ["predict", folders["classification"], "--file", given, "--out"]
    done(*words, tmp_path / f"one.{written}")
    said = regard(*words, out, "--workers", 2, "--executor", "here", "--rows-per-part", 10)
    assert "24 rows of" in said.stderr and not parts.exists()
    one, several = rows(tmp_path / f"one.{written}"), rows(out)
    assert [list(row) for row in several if row["prediction"]] == [
        list(row) for row in one if row["prediction"]
    ]
    for mine, theirs in zip(several, one, strict=True):
        for name, value in theirs.items():
            if name.startswith("probabilities") and value not in ("", None):
                assert float(mine[name]) == pytest.approx(float(value), abs=1e-5, nan_ok=True)
            else:
                assert (mine.get(name) or None) == (value or None) or value != value


def test_an_empty_text_has_no_number_in_parquet(folders, tmp_path, monkeypatch):
    given, out = table(tmp_path / "in.csv", text=["", "a cat", "who"], n=[1, 2, 3]), tmp_path / "o"
    done("predict", folders["regression"], given, "--columns", "text", "--workers", 1,
         "--executor", "here", "--format", "parquet", "--out", out)  # fmt: skip
    (part,) = (out / "parts").iterdir()
    assert pandas.read_parquet(part)["prediction"].isna().tolist() == [True, False, False]
    assert (out / "failed.jsonl").read_text() == ""


def test_rows_without_a_prediction_are_listed_beside_the_table_of_workers(
    folders, tmp_path, monkeypatch
):
    given, out = table(tmp_path / "in.csv", text=["cat " * 999, "a cat"]), tmp_path / "out.csv"
    words = ["predict", folders["classification"], "--file", given, "--out", out]
    with_workers = [*words, "--workers", 1, "--executor", "here"]
    assert "in.csv:2" in refused(*with_workers, "--strict") and not out.exists()
    assert "1 rows have none" in regard(*with_workers).stderr
    first, second = rows(out)
    assert first["prediction"] == "" and second["prediction"]
    failed = json.loads((tmp_path / "out.csv.failed.jsonl").read_text())
    assert failed["line"] == 2 and "tokens" in failed["reason"]
    assert "--format has no effect" in refused(*with_workers, "--force", "--format", "txt")
    empty = table(tmp_path / "empty.csv", text=[])
    assert "it has not one row" in refused(*words[:3], empty, *with_workers[4:], "--force")


def test_a_pair_is_two_columns_whose_texts_may_have_tabs_and_line_breaks(folders, tmp_path):
    ones, twos = ["the\tcat", "a\nmat", ""], ["old", "sun\t", "who"]
    source = table(tmp_path / "in.csv", premise=ones, hypothesis=twos)
    done("predict", folders["classification"], "--file", source, "--out", tmp_path / "out.csv")
    task = load(folders["classification"])
    wanted = task.predict(list(zip(ones, twos, strict=True)))
    assert [row["prediction"] for row in rows(tmp_path / "out.csv")] == wanted


def test_a_second_column_is_an_error_for_a_classifier_of_single_texts(folders, tmp_path):
    task = load(folders["classification"])
    task.pairs = False
    save(task, tmp_path / "model")
    source = table(tmp_path / "in.csv", Sentence=["a cat"], Kind=["x"])
    call = ("predict", tmp_path / "model", "--file", source, "--out", tmp_path / "out.csv")
    assert "reads single texts" in refused(*call, "--columns", "Sentence,Kind")
    done(*call, "--columns", "Sentence")


def test_columns_may_be_numbers_of_a_table_without_a_header(folders, tmp_path):
    (tmp_path / "in.tsv").write_text("1\tthe cat\n2\tthe mat\n")
    call = ("predict", folders["classification"], "--file", tmp_path / "in.tsv", "--columns", "1")
    done(*call, "--out", tmp_path / "out.tsv")
    assert [row["1"] for row in rows(tmp_path / "out.tsv")] == ["the cat", "the mat"]


def test_a_table_may_have_another_delimiter(folders, tmp_path):
    (tmp_path / "in.csv").write_text("text;more\nthe cat, old;1\n")
    out = tmp_path / "out.csv"
    words = ("predict", folders["classification"], "--file", tmp_path / "in.csv", "--out", out)
    done(*words, "--delimiter", ";")
    (row,) = rows(out)
    assert (row["text"], row["more"]) == ("the cat, old", "1") and row["prediction"]


def test_fields_of_jsonl_keep_their_types_and_may_be_nested(folders, tmp_path):
    record = {"id": 7, "text": {"en": "the cat"}, "tags": ["a", 1.5, None]}
    (tmp_path / "in.jsonl").write_text(json.dumps(record) + '\n{"id": 8, "text": {"en": null}}\n')
    call = ("predict", folders["classification"], "--file", tmp_path / "in.jsonl")
    done(*call, "--columns", "text.en", "--out", tmp_path / "out.jsonl")
    first, second = rows(tmp_path / "out.jsonl")
    assert {name: first[name] for name in record} == record
    assert second["id"] == 8 and second["prediction"] is None and first["prediction"]


def test_rows_are_read_in_parts_of_constant_size(folders, tmp_path, monkeypatch):
    monkeypatch.setattr(manifest, "ROWS_PER_PART", 2)
    texts = ["", "", "", "the cat", "mat"]  # the names of the predictions come late
    source = table(tmp_path / "in.jsonl", text=texts)
    done("predict", folders["classification"], "--file", source, "--out", tmp_path / "out.csv")
    found = rows(tmp_path / "out.csv")
    assert [row["text"] for row in found] == texts
    assert [bool(row["prediction"]) for row in found] == [False, False, False, True, True]
    source = table(tmp_path / "in.jsonl", text=[""] * 5)
    words = ("predict", folders["classification"], "--file", source, "--out", tmp_path / "out.csv")
    assert "is there already" in refused(*words)
    done(*words, "--force")
    assert rows(tmp_path / "out.csv") == [{"text": "", "prediction": ""}] * 5


@pytest.mark.parametrize("ending", ENDINGS)
def test_memory_does_not_grow_with_the_rows(folders, tmp_path, monkeypatch, ending):
    """Peaks of Python's memory; the model is a stub, since one costs time. What is read and
    written at once is an eighth of the usual, and few rows are many blocks.
    """
    for module, name in ((files, "_BLOCK"), (manifest, "ROWS_PER_PART"), (worker, "FIRST_ROWS"),
                         (rows_module, "BATCH_ROWS"), (predict_file, "PARTS_AT_ONCE")):  # fmt: skip
        monkeypatch.setattr(module, name, getattr(module, name) // 8)

    class Stub:
        counts = Counter()

        def compute(self, chunk):
            result = {"prediction": "yes", "probabilities.yes": 0.75}
            return [dict(result) if text[0] else {} for text in chunk.texts], {}

    monkeypatch.setattr(worker, "open_computer", lambda task: Stub())
    model = folders["classification"]

    def peak(count: int) -> int:
        more = [f"{number} {'x' * 400}" for number in range(count)]  # a file of many blocks
        source = table(tmp_path / f"in.{ending}", text=["cat"] * count, more=more)
        gc.collect()
        tracemalloc.start()
        out = tmp_path / f"out.{ending}"
        work = ShardedWork(model, "predict", "error", Opening(), {}, "text")
        predict_file.predict_file(None, work, source, out)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(500)
    few, many = peak(1_000), peak(4_000)
    assert many < 1.2 * few


def test_a_parquet_file_has_few_row_groups(folders, tmp_path, monkeypatch):
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(manifest, "ROWS_PER_PART", 2)
    source = table(tmp_path / "in.csv", text=["the cat"] * 9)
    call = ("predict", folders["classification"], "--file", source, "--out", tmp_path / "o.parquet")
    done(*call)
    assert parquet.ParquetFile(tmp_path / "o.parquet").num_row_groups == 1
    monkeypatch.setattr(predict_file, "PARTS_AT_ONCE", 1)
    done(*call, "--force")
    assert parquet.ParquetFile(tmp_path / "o.parquet").num_row_groups == 5
    assert [row["text"] for row in rows(tmp_path / "o.parquet")] == ["the cat"] * 9


def test_a_row_without_a_prediction_is_named_by_its_line_and_nothing_is_written(folders, tmp_path):
    source = table(tmp_path / "in.csv", text=["a\nmat", "the cat", "cat " * 50])
    out = tmp_path / "out.csv"
    out.write_text("before")
    call = ("predict", folders["classification"], "--file", source, "--out", out, "--force")
    assert f"{source}:5: has 52 tokens" in refused(*call)
    assert out.read_text() == "before" and {*tmp_path.iterdir()} == {source, out}
    assert "1 of 3 texts were cut" in regard(*call, "--too-long", "truncate").stderr
    assert len(rows(out)) == 3


@pytest.mark.parametrize(
    "words, message",
    [
        (["--file", "in.csv"], "--out answers.csv"),
        (
            ["--file", "in.csv", "--out", "out.xlsx"],
            "ending is one of .csv, .tsv",
        ),
        (["--file", "in.csv", "--out", "in.csv"], "the file that is read"),
        (["--file", "missing.csv", "--out", "out.csv"], "missing.csv"),
        (["--file", "in.txt", "--columns", "a", "--out", "out.csv"], "has lines and no columns"),
        (["--file", "in.txt", "--delimiter", ";", "--out", "out.csv"], "A delimiter is for CSV"),
        (["--file", "in.csv", "--out", "out.csv"], "the columns a, b, c, and"),
        (["--file", "in.csv", "--columns", "x", "--out", "out.csv"], "It has: a, b, c."),
        (["--file", "in.csv", "--columns", "a,b,c", "--out", "out.csv"], "Name 2."),
        (["--file", "in.csv", "--out", "out.csv", "--json"], "--json has no effect with --file"),
        (["--file", "in.csv", "--out", "out.csv", "a text"], "TEXT has no effect"),
        (["--out", "out.csv", "a text"], "--out has no effect without"),
        (["--file", "used.csv", "--columns", "a", "--out", "out.csv"], "'prediction'"),
        (["--file", "twice.csv", "--columns", "a", "--out", "out.csv"], "more than one column"),
        (["--file", "empty.csv", "--columns", "a", "--out", "out.csv"], "is empty"),
        (["--file", "ragged.csv", "--columns", "a", "--out", "out.csv"], "ragged.csv:2: has 1"),
        (["--file", "odd.jsonl", "--columns", "a", "--out", "out.csv"], "odd.jsonl:1: field 'a'"),
    ],
)
def test_files_and_columns_that_do_not_fit_are_an_error_and_nothing_is_written(
    folders, tmp_path, monkeypatch, words, message
):
    monkeypatch.chdir(tmp_path)
    table(Path("in.csv"), a=["x"], b=["y"], c=["z"])
    table(Path("used.csv"), a=["x"], prediction=["y"])
    for name, content in {
        "in.txt": "x\n",
        "twice.csv": "a,a\n1,2\n",
        "empty.csv": "a,b\n",
        "ragged.csv": "a,b\n1\n",
        "odd.jsonl": '{"a": [1]}\n',
    }.items():
        Path(name).write_text(content)
    assert message in refused("predict", folders["classification"], *words)
    assert not Path("out.csv").exists()


def test_a_text_that_is_the_name_of_a_file_gives_a_hint(folders, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table(Path("in.csv"), text=["the cat"])
    run = regard("predict", folders["classification"], "in.csv")
    assert run.exit_code == 0 and "Did you mean --file in.csv?" in run.stderr
    Path("in.txt").write_text("the cat\n")
    assert "Did you mean < in.txt" in regard("predict", folders["classification"], "in.txt").stderr
    assert "Did you" not in regard("predict", folders["classification"], "x" * 300).stderr
