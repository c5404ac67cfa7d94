"""Tables in, the same tables with predictions out; no flag of a command is ignored."""

from __future__ import annotations

import csv
import gc
import hashlib
import json
import shutil
import tracemalloc
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

import every_task
import pandas
import pytest
from every_task import OF_ENCODER_DECODERS
from test_cli import done, refused, regard
from typer.main import get_command
from typer.testing import CliRunner

from regard import load
from regard.cli import app, predict
from regard.cli.options import Opening, ShardedWork, Sharding
from regard.data import files, readers
from regard.sharded import manifest, worker
from regard.tasks import task_class

ENDINGS = ("csv", "tsv", "jsonl", "parquet")
TEXTS = ["the old cat", "", "sat on a warm mat", 'in, "the"', "who"]
PAIRS = {"question-answering", "next-sentence"}
# They read no texts from columns, or predict nothing.
WITHOUT = {"multiple-choice", "embedding", "captioning"}


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
    example = task_class(every_task.task_of(name)).example_input
    return {"text": [text and f"{example} {text}".lstrip() for text in texts]}


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


def test_a_pair_is_two_columns_whose_texts_may_have_tabs_and_line_breaks(folders, tmp_path):
    ones, twos = ["the\tcat", "a\nmat", ""], ["old", "sun\t", "who"]
    source = table(tmp_path / "in.csv", premise=ones, hypothesis=twos)
    done("predict", folders["classification"], "--file", source, "--out", tmp_path / "out.csv")
    task = load(folders["classification"])
    wanted = task.predict(list(zip(ones, twos, strict=True)))
    assert [row["prediction"] for row in rows(tmp_path / "out.csv")] == wanted


def test_columns_may_be_numbers_of_a_table_without_a_header(folders, tmp_path):
    (tmp_path / "in.tsv").write_text("1\tthe cat\n2\tthe mat\n")
    call = ("predict", folders["classification"], "--file", tmp_path / "in.tsv", "--columns", "1")
    done(*call, "--out", tmp_path / "out.tsv")
    assert [row["1"] for row in rows(tmp_path / "out.tsv")] == ["the cat", "the mat"]


def test_fields_of_jsonl_keep_their_types_and_may_be_nested(folders, tmp_path):
    record = {"id": 7, "text": {"en": "the cat"}, "tags": ["a", 1.5, None]}
    (tmp_path / "in.jsonl").write_text(json.dumps(record) + '\n{"id": 8, "text": {"en": null}}\n')
    call = ("predict", folders["classification"], "--file", tmp_path / "in.jsonl")
    done(*call, "--columns", "text.en", "--out", tmp_path / "out.jsonl")
    first, second = rows(tmp_path / "out.jsonl")
    assert {name: first[name] for name in record} == record
    assert second["id"] == 8 and second["prediction"] is None and first["prediction"]


@pytest.mark.parametrize("ending", ENDINGS)
def test_memory_does_not_grow_with_the_rows(folders, tmp_path, monkeypatch, ending):
    """Peaks of Python's memory; the model is a stub, since one costs time. What is read and
    written at once is an eighth of the usual, and few rows are many blocks.
    """
    for module, name in ((files, "_BLOCK"), (manifest, "ROWS_PER_PART"), (worker, "FIRST_ROWS"),
                         (readers, "BATCH_ROWS"), (predict, "PARTS_AT_ONCE")):  # fmt: skip
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
        predict.predict_file(Sharding(), work, source, out)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(500)
    few, many = peak(1_000), peak(4_000)
    assert many < 1.2 * few


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
        (["--file", "missing.csv", "--out", "out.csv"], "missing.csv"),
        (["--file", "in.txt", "--columns", "a", "--out", "out.csv"], "has lines and no columns"),
        (["--file", "in.txt", "--delimiter", ";", "--out", "out.csv"], "A delimiter is for CSV"),
        (["--file", "in.csv", "--out", "out.csv"], "the columns a, b, c, and"),
        (["--file", "in.csv", "--out", "out.csv", "--json"], "--json has no effect with --file"),
        (["--file", "in.csv", "--out", "out.csv", "a text"], "TEXT has no effect"),
        (["--out", "out.csv", "a text"], "--out has no effect without"),
        (["--file", "odd.jsonl", "--columns", "a", "--out", "out.csv"], "odd.jsonl:1: field 'a'"),
    ],
)
def test_files_and_columns_that_do_not_fit_are_an_error_and_nothing_is_written(
    folders, tmp_path, monkeypatch, words, message
):
    monkeypatch.chdir(tmp_path)
    table(Path("in.csv"), a=["x"], b=["y"], c=["z"])
    Path("in.txt").write_text("x\n")
    Path("odd.jsonl").write_text('{"a": [1]}\n')
    assert message in refused("predict", folders["classification"], *words)
    assert not Path("out.csv").exists()


TEXT = "the old cat sat"
# Values of flags that differ from the defaults; others have one by their type.
VALUES = dict(
    word.split("=", 1)
    for word in (
        "--beams=3 --temperature=3.0 --top-p=0.5 --max-tokens=2 --stop=a --min-tokens=9 --layers=0 "
        "--no-repeat-ngram=1 --samples=2 --n-best=2 --seed=5 --top-k=3 --length-penalty=3 "
        "--max-length-a=0.1 --max-length-b=1 --combine=sum --pooling=max --granularity=word "
        "--kind=cross --quantize=int8 --precision=bfloat16 --token=old --cell=1:1 --mask-heads=1:1 "
        "--task=tree --model-type=elmo --device=cpu --too-long=truncate --answer=a --choices=a=b "
        "--template={text} --shard=1/2 --executor=slurm --format=txt --columns=text --delimiter=; "
        "--source-language=en --target-language=de"
    ).split()
)
# Flags that may change nothing: where a computation runs and how fast it is, what becomes of texts
# that are longer than those here, have subwords, or end early, and a layer of a model with one.
UNSEEN = {"--device", "--too-long"}
UNSEEN |= {"--tokens", "--min-tokens", "--layer"}
UNSEEN |= {"--no-normalize"}  # of a folder that does not normalize
COMMANDS = {
    "predict": ("classification", ["MODEL", TEXT, "--json"]),
    "translate": ("translation", ["MODEL", TEXT, "--json"]),
    "tag": ("tagging", ["MODEL", TEXT, "--json"]),
    "generate": ("language-modeling-gpt2", ["MODEL", TEXT, "--json"]),
    "embed": ("embedding", ["MODEL", TEXT, "--json"]),
    "search": ("embedding", ["MODEL", TEXT, "a cat", "the sun", "mat", "who", "--json"]),
    "look": ("classification", ["MODEL", TEXT, "--json"]),
    "evaluate": ("language-modeling-gpt2", ["MODEL", "--data", "DATA", "--json"]),
}


def flags_of(words: list[str], values: dict[str, str]) -> dict[str, list[str]]:
    """The words of each flag of a command, by its name, but for those that are given.

    words: the command, and what is given.
    """
    flags, command = {}, get_command(app)
    while words[0] in getattr(command, "commands", ()):
        command, words = command.commands[words[0]], words[1:]
    for option in command.params:
        names = option.secondary_opts or option.opts
        for name in names if option.param_type_name == "option" else ():
            if not name.startswith("--") or name in words:
                continue
            number = {int: 1, float: 0.5}.get(option.type_descriptor.annotation, "x")
            flags[name] = [name] if option.is_flag else [name, str(values.get(name, number))]
    return flags


@pytest.mark.parametrize("command", COMMANDS)
def test_each_flag_changes_the_result_or_is_an_error(folders, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(f"{TEXT}\n" * 9)
    name, words = COMMANDS[command]
    named = {"MODEL": str(folders[name]), "DATA": "text.txt"}
    base = [command, *(named.get(word, word) for word in words)]

    def gives(*more: str) -> tuple[int, str]:
        run = CliRunner().invoke(app, [*base, *more])
        assert run.exit_code in (0, 2), (more, run.output)
        return run.exit_code, run.stdout

    flags, plain = flags_of(base, VALUES), gives()
    assert plain[0] == 0 and len(flags) > 3
    alone = {flag: gives(*flags[flag]) for flag in flags}
    ignored = {flag for flag, given in alone.items() if given == plain}
    assert ignored <= UNSEEN
    working = [flag for flag, given in alone.items() if given[0] == 0 and flag not in UNSEEN]
    for one, other in [*combinations(working, 2)][:30]:
        both = gives(*flags[one], *flags[other])
        assert both[0] or both != plain, (one, other)


# ------------------------------------------------------------- commands that write, or serve

# The words of each command, and the values of its flags.
WRITING = {
    "train": ("small.toml", "--out=made --device=cpu --devices=2"),
    "serve": (
        "model",
        "--host=::1 --port=1 --api-key-file=key --max-queued-tokens=5 --timeout=3 --quantize=int8 "
        "--prefix-cache=0 --texts=texts.csv --labels=label --index=index --device=cpu --task=tree "
        "--model-type=elmo",
    ),
    "export": ("model --to ctranslate2", "--out=made --quantize=int8"),
    "tokenizer train": (
        "texts.csv --columns text --out made --vocab-size 50",
        "--kind=characters --unicode-form=nfkc",
    ),
    "tokenizer encode": ("model Acat", ""),
    "tokenizer explain": ("model Acat", "--words=ab:7 --merges=1 --kind=bpe"),
}
# What changes nothing, as the reference says: a dry run writes nothing, and has no progress; a
# computer without a GPU computes on its CPU; nothing is there that would be replaced.
SAYS = {"--dry-run": {"--out", "--quiet"}}
NOTHING_TO_DO = {"train": {"--device"}, "export": {"--force"}, "tokenizer train": {"--force"}}
FILES = {
    "small.toml": """
task = "translation"
data = {train = ["texts.csv"], valid = ["texts.csv"], columns = ["text", "label"]}
tokenizer = {kind = "characters"}
model = {name = "transformer", size = "tiny", d_model = 16}
training = {max_steps = 1}
""",
    "texts.csv": "text,label\n" + "The old ﬁsh sat,A\na cat ran oﬀ,B\n" * 8,
    "key": "secret",
    "index/index.json": "{}",
}


@pytest.mark.parametrize("command", WRITING)
def test_each_flag_of_a_command_that_writes_changes_what_is_written(
    folders, tmp_path, monkeypatch, command
):
    given, values = WRITING[command]
    base = [*command.split(), *given.split()]
    opened = lambda *args, **options: (*map(str, args), options)  # noqa: E731
    monkeypatch.setattr("regard.cli.console.load_task", opened)
    monkeypatch.setattr("regard.cli.serve.load_index", opened)
    monkeypatch.setattr("regard.serving.server.run", served)

    def gives(*more: str) -> tuple[int, str, bool, list[str]]:
        """The exit code, what is printed, and the files that are there, weights with digests."""
        where = tmp_path / f"{len([*tmp_path.iterdir()])}"
        shutil.copytree(folders["language-modeling-gpt2"], where / "model")
        for name, text in FILES.items():
            (where / name).parent.mkdir(exist_ok=True)
            (where / name).write_text(text)
        monkeypatch.chdir(where)
        run = CliRunner().invoke(app, [*base, *more])
        assert run.exit_code in (0, 2), (more, run.output)
        files = [path for path in sorted(where.rglob("*")) if path.is_file()]
        exact = (".safetensors", "tokenizer.json", "model.bin")
        written = [
            f"{path.relative_to(where)} "
            + (hashlib.md5(path.read_bytes()).hexdigest() if path.name.endswith(exact) else "")
            for path in files
        ]
        return run.exit_code, run.stdout, bool(run.stderr), written

    flags, plain = flags_of(base, dict(word.split("=", 1) for word in values.split())), gives()
    assert plain[0] == 0
    alone = {flag: gives(*flags[flag]) for flag in flags}
    ignored = {flag for flag in flags if alone[flag] == plain}
    assert ignored == NOTHING_TO_DO.get(command, set())
    working = [flag for flag in flags if alone[flag][0] == 0 and flag not in ignored]
    for one, other in combinations(working, 2):
        if other in SAYS.get(one, ()) or one in SAYS.get(other, ()):
            continue
        both = gives(*flags[one], *flags[other])
        assert both[0] or both not in (alone[one], alone[other]), (one, other)


def served(folders, load, options, say, sources, key):
    """What a server is started with."""
    print(options, key, {name: load(folder) for name, folder in folders.items()})
    print(sources and vars(sources.maps))
