"""Rows of files computed once by several workers: the same bytes whatever happens to them."""

from __future__ import annotations

import bz2
import csv
import errno
import gzip
import io
import json
import lzma
import os
import random
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import numpy as np
import pandas
import pytest
from tiny_folders import folder
from typer.testing import CliRunner

import regard
from regard.cli import app
from regard.errors import CheckpointError, ConfigError, DataError, RegardError
from regard.sharded import worker
from regard.sharded.driver import predict_files as compute
from regard.sharded.manifest import read_manifest
from regard.sharded.parts import iter_results

WORDS = "a dog runs after the red ball in park old cat sleeps on warm mat".split()
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> Path:
    return folder(tmp_path_factory.mktemp("encoder") / "model", "bert", "Model")


@pytest.fixture(scope="module")
def classifier(tmp_path_factory) -> Path:
    ending = "ForSequenceClassification"
    return folder(tmp_path_factory.mktemp("classifier") / "model", "bert", ending)


@pytest.fixture(scope="module")
def language_model(tmp_path_factory) -> Path:
    return folder(tmp_path_factory.mktemp("gpt2") / "model", "gpt2", "LMHeadModel")


def sentences(count: int, seed: int = 1) -> list[str]:
    drawn = random.Random(seed)
    return [" ".join(drawn.choices(WORDS, k=drawn.randint(1, 12))) for _ in range(count)]


def written(path: Path, rows: Iterable[str]) -> Path:
    path.write_text("".join(f"{row}\n" for row in rows))
    return path


def computed(method: str, model: Path, data: object, out: Path, **options: object):
    given = {"executor": "here", "rows_per_part": 10, "progress": False, **options}
    return compute(model, data, method, out=out, **given)  # type: ignore[arg-type]


embed, predict = partial(computed, "embed"), partial(computed, "predict")


def contents(out: Path) -> dict[str, bytes]:
    """All files that hold results."""
    files = [*sorted((out / "parts").iterdir()), out / "failed.jsonl"]
    return {file.name: file.read_bytes() for file in files}


# ---------------------------------------------------------------------- the same for all workers


def test_vectors_are_those_of_embed_whatever_the_number_of_workers(encoder, tmp_path):
    texts = ["", *sentences(150), "", "a cat"]
    source = written(tmp_path / "in.txt", texts)
    made = [embed(encoder, source, tmp_path / str(n), workers=n) for n in (1, 2, 3)]
    assert contents(tmp_path / "1") == contents(tmp_path / "2") == contents(tmp_path / "3")
    assert len(made[0].files) > 5 and len(made[0]) == 153
    known = regard.load(encoder).embed(texts)
    np.testing.assert_allclose(made[0].vectors(), known, atol=2e-6)
    assert sorted(os.listdir(tmp_path / "3")) == ["failed.jsonl", "manifest.json", "parts"]


def zipped(content: bytes) -> bytes:
    """A zip archive with one file."""
    with io.BytesIO() as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("content", content)
        return file.getvalue()


COMPRESSED = {
    "": bytes,
    ".zip": zipped,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}


@pytest.mark.parametrize(
    ("format", "ending"),
    [("txt", ""), ("jsonl", ""), ("csv", ""), ("tsv", ""), ("txt", ".zip"), ("jsonl", ".gz"),
     ("csv", ".bz2"), ("tsv", ".xz")],
)  # fmt: skip
def test_each_row_of_each_format_is_read_once_and_in_order(classifier, tmp_path, format, ending):
    texts = [f"{number} {text}" for number, text in enumerate(sentences(60))]
    if format == "csv":  # rows of several lines
        texts = [text.replace(" the ", ',\n"the"\n') for text in texts]
    frame = pandas.DataFrame({"text": texts, "number": range(60)})
    if format == "txt":
        content = "".join(f"{text}\n" for text in texts)
    elif format == "jsonl":
        content = frame.to_json(orient="records", lines=True).replace("\n", "\n\n", 3)
    else:
        quoting = csv.QUOTE_MINIMAL if format == "csv" else csv.QUOTE_NONE
        content = frame.to_csv(sep="," if format == "csv" else "\t", index=False, quoting=quoting)
    source = tmp_path / f"in.{format}{ending}"
    source.write_bytes(COMPRESSED[ending](content.encode()))
    found = predict(classifier, source, tmp_path / "out", workers=2)
    assert len(found.files) > 2
    rows = list(found)
    assert [row["text"] for row in rows] == texts
    if format != "txt":
        assert [int(row["number"]) for row in rows] == list(range(60))
    if not ending:
        assert [row["prediction"] for row in rows] == regard.load(classifier).predict(texts)


def test_parquet_goes_in_and_out_with_its_types(classifier, encoder, tmp_path):
    frame = pandas.DataFrame({"text": sentences(50), "number": range(50)})
    frame["day"] = pandas.Timestamp("2020-01-01") + pandas.to_timedelta(frame["number"], "D")
    frame.to_parquet(tmp_path / "in.parquet", row_group_size=7)
    found = predict(classifier, tmp_path / "in.parquet", tmp_path / "out", format="parquet")
    assert len(found.files) > 3
    whole = pandas.read_parquet(tmp_path / "out/parts")
    pandas.testing.assert_frame_equal(whole[["text", "number", "day"]], frame)
    assert list(whole["prediction"]) == regard.load(classifier).predict(frame["text"].tolist())
    vectors = embed(encoder, tmp_path / "in.parquet", tmp_path / "vectors", format="parquet")
    known = regard.load(encoder).embed(frame["text"].tolist())
    np.testing.assert_allclose(vectors.vectors(), known, atol=2e-6)
    np.testing.assert_array_equal(vectors.vectors(), np.stack([row["vector"] for row in vectors]))


def test_a_language_model_continues_prompts_and_texts_are_lines(language_model, tmp_path):
    prompts = sentences(20)
    options = {"max_tokens": 3, "temperature": 1.0, "seed": 4}
    source = written(tmp_path / "in.txt", prompts)
    given = dict(format="txt", rows_per_part=5, workers=2, **options)
    found = computed("generate", language_model, source, tmp_path / "out", **given)
    model = regard.load(language_model)
    known = model.spelled(prompts, model.hypotheses(prompts, **options))
    assert list(found) == [" ".join(one[0].splitlines()) for one in known]


def test_several_files_give_the_vectors_of_one_process(encoder, tmp_path):
    texts = sentences(30)
    known = regard.load(encoder).embed(texts)
    halves = [written(tmp_path / "a.txt", texts[:9]), written(tmp_path / "b.txt", texts[9:])]
    found = embed(encoder, halves, tmp_path / "files")
    np.testing.assert_allclose(found.vectors(), known, atol=2e-6)
    with pytest.raises(ConfigError, match="one format.*a.txt.*lines.*c.csv.*csv"):
        embed(encoder, [halves[0], written(tmp_path / "c.csv", ["text"])], tmp_path / "other")


# -------------------------------------------------------------------------------- rows that fail


def test_rows_that_fail_are_listed_and_the_others_are_computed(classifier, tmp_path):
    good = sentences(20)
    lines = [json.dumps({"text": text}) for text in good]
    lines[3] = '{"text": "a dog"'  # not JSON
    lines[5] = json.dumps({"text": "dog " * 200})  # too long
    lines[7] = json.dumps({"texts": "a dog"})
    lines[9] = json.dumps({"text": "a\0dog"})
    source = tmp_path / "in.jsonl"
    source.write_bytes("\n".join(lines).encode() + b'\n{"text": "\xff"}\n')
    found = predict(classifier, source, tmp_path / "out", workers=2)
    failed = list(found.failed())
    assert [row["line"] for row in failed] == [4, 6, 8, 21]
    reasons = ["is not JSON", "has 202 tokens, but this model", "no field 'text'", "is not UTF-8"]
    assert all(r in row["reason"] for r, row in zip(reasons, failed, strict=True))
    rows, known = list(found), regard.load(classifier).predict(good)
    assert len(rows) == 21
    for number, row in enumerate(rows):
        if number + 1 in (4, 6, 8, 21):
            assert row["prediction"] is None
        elif number != 9:
            assert (row["text"], row["prediction"]) == (good[number], known[number])
    assert rows[9]["text"] == "a\0dog" and rows[9]["prediction"] is not None
    with pytest.raises(RegardError, match=r"in.jsonl:4: is not JSON"):
        predict(classifier, source, tmp_path / "strict", strict=True)
    truncated = predict(classifier, source, tmp_path / "cut", too_long="truncate")
    assert [row["line"] for row in truncated.failed()] == [4, 8, 21]


def test_a_vector_that_is_missing_is_nan_and_text_without_prediction_an_empty_line(
    encoder, classifier, tmp_path
):
    source = written(tmp_path / "in.txt", ["a cat", "dog " * 200, "a\0dog"])
    vectors = embed(encoder, source, tmp_path / "vectors").vectors()
    assert np.isnan(vectors).all(1).tolist() == [False, True, False]
    lines = list(predict(classifier, source, tmp_path / "lines", format="txt"))
    assert lines[1] == "" and lines[0] and lines[2]


@pytest.mark.parametrize(
    ("verb", "text"), [("embed", "dog " * 500), ("predict", "\\ud800"), ("generate", "")]
)
def test_a_shard_without_a_single_result_does_not_end_the_others(
    encoder, classifier, language_model, tmp_path, verb, text
):
    """Rows that are too long or no text, and of embed none is empty: an empty text has a vector."""
    model = {"embed": encoder, "predict": classifier, "generate": language_model}[verb]
    lines = [f'{{"text": "{one}"}}' for one in (text, text, "a cat")]
    source = written(tmp_path / "in.jsonl", lines)
    options = {"max_tokens": 2} if verb == "generate" else {}
    found = computed(verb, model, source, tmp_path / "out", rows_per_part=1, **options)
    if verb == "embed":
        there = np.isfinite(found.vectors()).all(1).tolist()
        assert there == [text == "", text == "", True]
    else:
        assert [bool(row["prediction"]) for row in found] == [False, False, True]
    assert len(list(found.failed())) == (0 if text == "" else 2)


def test_an_empty_file_has_no_parts_and_does_not_end_the_others(encoder, tmp_path):
    empty = written(tmp_path / "empty.txt", [])
    found = embed(encoder, empty, tmp_path / "out")
    assert (
        len(found) == 0
        and list(found) == []
        and contents(tmp_path / "out") == {"failed.jsonl": b""}
    )
    full = written(tmp_path / "full.txt", ["a cat"])
    assert len(embed(encoder, [empty, full], tmp_path / "both")) == 1
    header = written(tmp_path / "header.csv", ["text,number"])
    assert len(embed(encoder, header, tmp_path / "header")) == 0


def test_a_file_that_cannot_be_decompressed_to_its_end_is_an_error_before_all(encoder, tmp_path):
    source = tmp_path / "in.txt.gz"
    source.write_bytes(gzip.compress("".join(f"{one}\n" for one in sentences(2000)).encode())[:900])
    with pytest.raises(DataError, match="in.txt.gz: cannot be decompressed"):
        embed(encoder, source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# -------------------------------------------------------------------------- starting again


def test_a_second_start_does_what_is_missing_alone(encoder, tmp_path):
    source = written(tmp_path / "in.txt", ["dog " * 200, *sentences(90)])
    found = embed(encoder, source, tmp_path / "out")
    before = contents(tmp_path / "out")
    times = {file: file.stat().st_mtime_ns for file in found.files}
    found.files[2].unlink()
    (tmp_path / "out/failed.jsonl").unlink()
    with pytest.raises(CheckpointError, match="1 of .* parts are missing"):
        iter_results(tmp_path / "out")
    embed(encoder, source, tmp_path / "out", workers=3)
    assert contents(tmp_path / "out") == before
    changed = [file for file in found.files if file.stat().st_mtime_ns != times[file]]
    assert changed == [found.files[2]]
    moved = source.rename(tmp_path / "moved.txt")
    embed(encoder, moved, tmp_path / "out")
    assert read_manifest(tmp_path / "out").files[0].path == str(moved)


def test_another_input_model_or_option_is_named(encoder, classifier, tmp_path, monkeypatch):
    source = written(tmp_path / "in.txt", sentences(20))
    embed(encoder, source, tmp_path / "out")
    refused: list[tuple[str, Path, dict[str, object]]] = [
        ("`layers` was not given, and is 0 now", encoder, {"layers": 0}),
        ("`model` was .*, and is .* now", classifier, {}),
        ("`threads` was 1, and is 2 now", encoder, {"threads": 2}),
    ]
    for match, model, options in refused:
        with pytest.raises(ConfigError, match=match):
            embed(model, source, tmp_path / "out", **options)
    other = written(tmp_path / "other.txt", sentences(20, seed=2))
    with pytest.raises(ConfigError, match="`content of file 1` was 'sha256 .*', and is 'sha256"):
        embed(encoder, other, tmp_path / "out")
    with pytest.raises(ConfigError, match="`content of file 2` was not given, and is"):
        embed(encoder, [source, other], tmp_path / "out")
    written(source, [*sentences(20), "one more"])
    with pytest.raises(ConfigError, match="`content of file 1` was"):
        embed(encoder, source, tmp_path / "out")
    with pytest.raises(ConfigError, match="was not written by this command"):
        embed(encoder, source, encoder)


def test_a_full_disk_loses_nothing_that_is_done(encoder, tmp_path, monkeypatch):
    source, count = written(tmp_path / "in.txt", sentences(90)), 0
    real = worker.sync

    def full_after_two(path: Path) -> None:
        nonlocal count
        count += 1
        if count > 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path)

    with monkeypatch.context() as full:
        full.setattr(worker, "sync", full_after_two)
        with pytest.raises(RegardError, match="No space left on device"):
            embed(encoder, source, tmp_path / "out")
    assert len(list((tmp_path / "out/parts").iterdir())) == 2
    embed(encoder, source, tmp_path / "out")
    embed(encoder, source, tmp_path / "fresh")
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


@pytest.mark.parametrize("name", ["in.csv", "in.tsv.gz", "in.parquet"])
def test_a_column_that_a_table_lacks_is_named_before_anything_is_written(
    classifier, tmp_path, name
):
    frame = pandas.DataFrame({"label": ["x"], "body": ["a cat"]})
    if name.endswith("parquet"):
        frame.to_parquet(tmp_path / name)
    else:
        frame.to_csv(tmp_path / name, index=False, sep="\t" if "tsv" in name else ",")
    with pytest.raises(DataError, match=r"has no field 'text'. It has: label, body"):
        predict(classifier, tmp_path / name, tmp_path / "out", columns="text")
    assert not (tmp_path / "out").exists()
    (row,) = predict(classifier, tmp_path / name, tmp_path / "out", columns="body")
    assert row["label"] == "x" and row["prediction"] is not None


def test_values_that_a_parquet_column_cannot_hold_are_named(encoder, tmp_path):
    mixed = written(tmp_path / "mixed.jsonl", ['{"text": "a", "n": 1}', '{"text": "b", "n": "x"}'])
    with pytest.raises(RegardError, match=r"mixed.jsonl: field 'n' has values that one column"):
        embed(encoder, mixed, tmp_path / "mixed", format="parquet")


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        ({"n": "x"}, "another type than in the first rows"),
        ({"n": 1.5}, "another type than in the first rows: 1.5 is no int64"),
        ({"n": 1, "language": "en"}, "has a field 'language', which the first rows do not have"),
    ],
)
def test_a_row_that_parquet_columns_cannot_hold_is_an_error(classifier, tmp_path, field, reason):
    """pyarrow would drop the field, or write 1 for 1.5, without a word."""
    records = [{"text": text, "n": number} for number, text in enumerate(sentences(1030))]
    records[-1] = {"text": "a cat", **field}
    source = written(tmp_path / "in.jsonl", map(json.dumps, records))
    with pytest.raises(RegardError, match=reason):
        predict(classifier, source, tmp_path / "out", format="parquet", rows_per_part=1024)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_a_prediction_replaces_a_column_of_its_name(classifier, tmp_path, kind, format):
    texts = sentences(12)
    table = pandas.DataFrame({"text": texts, "prediction": range(12)})
    if kind == "parquet":
        table.to_parquet(tmp_path / "in.parquet")
    else:
        table.to_json(tmp_path / "in.jsonl", orient="records", lines=True)
    made = predict(classifier, tmp_path / f"in.{kind}", tmp_path / "out", format=format)
    assert [row["prediction"] for row in made] == regard.load(classifier).predict(texts)


# ------------------------------------------------------------------------------ processes


def start(model: Path, source: Path, out: Path, workers: int, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "regard", "embed", str(model), str(source), "--out", str(out)]
    return subprocess.Popen(
        [*command, *more, "--workers", str(workers), "--rows-per-part", "50"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    children = Path(f"/proc/{process.pid}/task").glob("*/children")
    return [int(number) for file in children for number in file.read_text().split()]


@pytest.mark.slow("regard/sharded", "regard/executors")
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes in /proc")
def test_a_killed_worker_starts_again_and_an_interrupted_run_continues(encoder, tmp_path):
    source = written(tmp_path / "in.txt", sentences(1500))
    embed(encoder, source, tmp_path / "calm", rows_per_part=50)
    out, driver = tmp_path / "out", start(encoder, source, tmp_path / "out", workers=1)
    until(lambda: len(list(out.glob("parts/part-*"))) >= 2)
    os.kill(workers_of(driver)[0], signal.SIGKILL)
    before = len(list(out.glob("parts/part-*")))
    until(lambda: len(list(out.glob("parts/part-*"))) > before)
    driver.send_signal(signal.SIGINT)
    said = driver.communicate(timeout=60)[1]
    assert driver.returncode == 130
    assert "its process was killed by SIGKILL; it is started again" in said
    assert "parts are done" in said and "The same command continues" in said
    embed(encoder, source, out, rows_per_part=50)
    assert contents(out) == contents(tmp_path / "calm")


@pytest.mark.slow("regard/sharded", "regard/executors")
def test_the_jobs_of_an_array_write_a_share_each(encoder, tmp_path):
    source = written(tmp_path / "in.txt", sentences(300))
    embed(encoder, source, tmp_path / "whole", rows_per_part=50)
    first, second = (
        start(encoder, source, tmp_path / "out", 1, "--shard", f"{share}/2") for share in (1, 2)
    )
    for process in (first, second):
        assert process.communicate(timeout=60) and process.returncode == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_the_command_line_writes_parts_and_names_what_is_missing(encoder, tmp_path):
    def call(*words: object):
        return CliRunner().invoke(app, list(map(str, words)))

    source, out = written(tmp_path / "in.txt", sentences(5)), tmp_path / "out"
    given = ("embed", encoder, source, "--workers", 1, "--executor", "here")
    done = call(*given, "--out", out, "--json", "--layers", "0")
    assert done.exit_code == 0, done.stderr
    numbers = {"parts": 1, "missing": 0, "rows": 5, "failed": 0, "truncated": 0, "unfinished": 0}
    assert json.loads(done.stdout) == {"out": str(out), **numbers}
    known = regard.load(encoder).embed(sentences(5), layers=0)
    np.testing.assert_allclose(iter_results(out).vectors(), known, atol=2e-6)
    wrong = [
        ((*given,), "--workers reads files and writes a folder of parts"),
        (("embed", encoder, "--workers", 1, "--out", out), "--workers reads files"),
        (("embed", encoder, "a", "--strict"), "--strict has no effect without --workers N"),
        ((*given, "--out", out, "--granularity", "word"), "--granularity word is for lines"),
        ((*given, "--out", out, "--shard", "0/2"), "`shard` must be I/N, I <= N, not 0/2"),
        ((*given, "--out", out, "--shard", "2"), "`--shard` must be of the form 1/8"),
        ((*given, "--out", out, "--executor", "clouds"), "There is no executor 'clouds'"),
        (("tag", encoder, source, "--workers", 1, "--executor", "here", "--out", tmp_path / "t"),
         "which does not support tag. Use: regard"),
        (("translate", encoder, "a cat"), "which does not support translate. Use: regard"),
    ]  # fmt: skip
    for words, said in wrong:
        refused = call(*words)
        assert (refused.exit_code, said in refused.stderr) == (2, True), refused.stderr


LONG = "dog " * 200


@pytest.mark.parametrize(("rows", "code"), [(("a cat", LONG), 0), ((LONG, LONG), 2), ((), 0)])
def test_the_exit_code_tells_that_no_row_has_a_result(classifier, tmp_path, rows, code):
    source, out = written(tmp_path / "in.txt", rows), tmp_path / "out"
    sharding = ("--workers", "1", "--executor", "here")
    words = ("embed", classifier, source, "--out", out, *sharding)
    done = CliRunner().invoke(app, list(map(str, words)))
    assert done.exit_code == code, done.stderr
    told = f"error: No row has a result. The reasons are in {out / 'failed.jsonl'}.\n"
    assert done.stderr.endswith(told) is (code == 2) and out.exists()
    assert not code or len((out / "failed.jsonl").read_text().splitlines()) == len(rows)
