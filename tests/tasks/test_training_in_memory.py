"""`regard.train` with keywords and with data in memory: every task, exact resume, errors."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch
from row_tuples import tuples
from tiny_folders import folder
from tiny_runs import LABELS, TEXTS, Stop

import regard
from regard.errors import ConfigError, DataError
from regard.experiments.runs import read_recipe, train_recipe
from regard.recipe import read

pandas = pytest.importorskip("pandas")

FRAME = pandas.DataFrame({"text": TEXTS, "label": LABELS})
QUICK = dict(epochs=1, learning_rate=1e-2, schedule={"name": "constant"}, progress=False)


@pytest.fixture
def start(tmp_path, monkeypatch) -> str:
    monkeypatch.chdir(tmp_path)
    return str(folder(tmp_path / "start", "bert", "Model"))


def train(**options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return regard.train(**(QUICK | options))


def test_a_run_has_its_folder_scores_curves_and_model(start):
    run = train(task="classification", model=start, train=FRAME, valid=0.25)
    where = run.folder
    assert where == Path("runs/classification") and run.scores is run.result.scores
    assert {"accuracy", "loss"} <= {*run.scores}
    assert "<svg" in run._repr_html_() and "accuracy" in run._repr_html_()
    assert {*run.model.predict(FRAME)} <= {"yes", "no"}
    right = sum(a == b for a, b in zip(run.predict(TEXTS), LABELS, strict=True))
    assert run.evaluate(FRAME).named[0].value == pytest.approx(right / len(TEXTS))
    assert (where / "data/train.jsonl").is_file() and (where / "report.html").is_file()
    accuracy = f"valid accuracy {run.scores['accuracy']:.4g}"
    assert repr(run).startswith(f"Run({str(run.folder)!r}: ") and accuracy in repr(run)
    assert run.result.weights in repr(run)
    data = read_recipe(where / "recipe.toml").data
    trained, validated = (tuples(data.records(part)) for part in ("train", "valid"))
    assert len(validated) == 6
    assert sorted([*trained, *validated]) == sorted(zip(TEXTS, LABELS, strict=True))


def test_a_run_is_scored_on_the_columns_that_its_training_was_told(start):
    table = FRAME.rename(columns={"text": "review", "label": "stars"}).assign(number=range(24))
    options = dict(task="classification", model=start, columns=["review", "stars"])
    run = train(train=table, valid=table, **options)
    expected = run.model.evaluate(list(zip(TEXTS, LABELS, strict=True))).named
    table.to_csv("table.csv", index=False)
    FRAME.to_csv("named.csv", index=False)
    FRAME.to_csv("plain.tsv", sep="\t", index=False, header=False)
    assert regard.evaluate(run, "table.csv", columns=["review", "stars"]).named == expected
    assert regard.evaluate(run.model, "named.csv").named == expected
    assert regard.evaluate(run.folder, "plain.tsv").named == expected
    assert regard.evaluate(str(run.folder), table).named == expected
    records, turned = table.to_dict("records"), table[["stars", "review"]]
    for rows in ("plain.tsv", "table.csv", table, records, turned, FRAME):
        assert run.evaluate(rows).named == regard.evaluate(run, rows).named == expected
    missing, blank = (table.assign(review=[*TEXTS[:2], text, *TEXTS[3:]]) for text in (None, ""))
    assert run.evaluate(missing).named == run.evaluate(blank).named


def test_rows_of_every_kind_and_their_file_train_the_same_model(start):
    FRAME.to_json("rows.jsonl", orient="records", lines=True)
    pairs, columns = list(zip(TEXTS, LABELS, strict=True)), ["text", "label"]
    kinds = [FRAME, iter(pairs), (row for row in FRAME.to_dict("records")), {**FRAME}, pairs]
    runs = [train(task="classification", model=start, train=one, valid=0.25) for one in kinds]
    given = dict(train="rows.jsonl", columns=columns, valid=0.25)
    runs.append(train(task="classification", model=start, **given))
    assert all(run.scores == runs[0].scores for run in runs)
    found = [run.model.predict(TEXTS, return_proba=True) for run in (runs[0], runs[-1])]
    assert found[0] == found[1]


@pytest.mark.parametrize("group", ["author", 2])
def test_a_group_is_either_training_or_validation_data(start, group):
    frame = FRAME.assign(author=[number % 5 for number in range(len(FRAME))])
    data = frame if group == "author" else list(frame.itertuples(False, None))
    run = train(task="classification", model=start, train=data, valid=0.3, group=group)
    lines = (run.folder / "data/train.jsonl").read_text().splitlines()
    assert all(len(json.loads(line)) == 3 for line in lines)
    assert read_recipe(run.folder / "recipe.toml").data.group == str(group)


def test_a_run_that_has_moved_resumes_with_the_data_in_its_folder(start):
    options = dict(task="classification", model=start, train=FRAME, valid=0.25, batch_size=4)
    with pytest.raises(KeyboardInterrupt):
        train(**options, out="before", callbacks=[Stop(1)])
    Path("before").rename("after")
    found = regard.resume("after", progress=False).result
    assert found.scores == train(**options, out="whole").scores


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (dict(epoch=3), "no section has an option `epoch`. Did you mean 'epochs'"),
        (dict(valid=1.5), "valid"),
        (dict(valid=None, training={"epochs": 1, "validation": {"patience": 2}}), "validation"),
        (dict(columns=["text", "lable"]), "has no column 'lable'. It has: text, label"),
        (dict(model=None), "`model.name` is missing"),
        (dict(task=None), "`task` is missing"),
        (dict(train=None, valid=None), "`data` is missing"),
        (dict(data="rows.csv"), "`data` is a section"),
        (dict(tokenizer="bert"), "`tokenizer.kind` is 'bert', which is no kind of tokenizer"),
        (dict(out="start/config.json/run"), "start/config.json is a file"),
        (dict(name="x", path="y"), "`path` is an option of several sections"),
        (dict(valid=[("a", "yes")]), "valid=<list>:1: has no column 'text'"),
        (
            dict(train=FRAME.assign(label=[["a"]] * 24)),
            "train=<DataFrame>:1: field 'label' must be",
        ),
        (dict(train=FRAME.assign(a=1), group="a"), "one group"),
        (dict(train=FRAME.assign(label=None)), "1: the label is empty"),
        (dict(train=FRAME[:0]), "is empty"),
        (dict(train=FRAME.assign(label="one")), "has 1 label"),
        (dict(model="gone"), "gone"),
    ],
)
def test_errors_name_the_option_and_leave_no_folder(start, options, said):
    given = dict(task="classification", model=start, train=FRAME, valid=0.25)
    with pytest.raises((ConfigError, DataError, regard.RegardError), match=said):
        train(**(given | options))
    assert not Path("runs").exists() or not list(Path("runs").iterdir())


SMALL = dict(name="lstm-lm", d_model=8, layers=1)


WORDS = "the cat sat on a mat and the dog ran after the red ball in the old park".split()
DOCUMENTS = [" ".join(WORDS[i % 7 :] + WORDS[: i % 5] * 3) for i in range(24)]
PRETRAINING = {
    "span-corruption": dict(
        model=dict(name="t5", d_model=8, d_ff=8, heads=2, head_dim=4, layers=1, decoder_layers=1),
        source_length=16, batch_size=2,
    ),
    "permutation-language-modeling": dict(
        model=dict(name="xlnet", d_model=8, d_ff=8, heads=2, layers=1, memory_length=8,
                   memory_in_training=True),
        sequence_length=12, batch_size=2, every=4,
    ),
    "language-modeling": dict(model=SMALL, sequence_length=8, batch_size=2),
}  # fmt: skip


def in_files(task: str, part: str, documents: list[str], suffix: str):
    """Files that hold these documents; of span corruption a list of them."""
    path = Path(f"{part}{suffix}").absolute()
    if suffix == ".jsonl":
        lines = [json.dumps({"text": text}) for text in documents]
    else:
        lines = "\n\n".join(documents).split("\n") if task == "span-corruption" else documents
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [str(path)] if task == "span-corruption" else str(path)


@pytest.mark.parametrize("task", PRETRAINING)
def test_pretraining_on_texts_in_memory_equals_that_on_files(task, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = dict(task=task, kind="words", max_steps=3, epochs=None, seed=5, **PRETRAINING[task])
    parts = {"train": DOCUMENTS, "valid": DOCUMENTS[:8]}
    given = [parts, {name: iter(texts) for name, texts in parts.items()}]
    if task == "language-modeling":  # as all tasks read them
        given.append({name: pandas.Series(texts) for name, texts in parts.items()})
        given.append({name: pandas.DataFrame({"text": texts}) for name, texts in parts.items()})
    for suffix in (".txt", ".jsonl") if task == "span-corruption" else (".txt",):
        files = {name: in_files(task, name, texts, suffix) for name, texts in parts.items()}
        given.append(files | ({"field": "text"} if suffix == ".jsonl" else {}))
    runs = [train(out=str(n), **options, **data) for n, data in enumerate(given)]
    first = runs[0]
    for run in runs[1:]:
        assert run.scores == first.scores
        for name, tensor in run.model.module.state_dict().items():
            assert torch.equal(tensor, first.model.module.state_dict()[name]), name
    again = train_recipe(
        read(first.folder / "recipe.toml", ["training.max_steps=5"]), out="again", progress=False
    )
    assert again.scores == train(out="whole", **options | {"max_steps": 5}, **parts).scores


def test_documents_in_memory_keep_their_lines_and_a_column_is_chosen(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = dict(task="span-corruption", kind="words", max_steps=1, epochs=None)
    options |= PRETRAINING["span-corruption"]
    table = pandas.DataFrame({"title": "x", "body": [f"{t}\n\n{t}" for t in DOCUMENTS]})
    run = train(train=table, valid=0.2, field="body", **options)
    (line, *_) = (run.folder / "data" / "train.jsonl").read_text().splitlines()
    assert json.loads(line) == {"text": table["body"][0]}
    with pytest.raises(DataError, match="train=<DataFrame>:1: has no field 'boby'"):
        train(train=table, valid=0.2, field="boby", **options)
    with pytest.raises(DataError, match="train=<DataFrame>.*must be a text"):
        train(train=table, valid=0.2, **options)
    with pytest.raises(DataError, match="each row of which is a document"):
        train(train=DOCUMENTS, valid=0.2, documents="blank-lines", **options)


@pytest.mark.parametrize("name", ["missing.txt", "my corpus.txt", "corpus"])
def test_a_missing_file_is_not_taken_for_a_text(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = dict(task="span-corruption", kind="words", max_steps=1, epochs=None)
    with pytest.raises(regard.RegardError, match=name):
        train(train=[name], valid=0.2, **options, **PRETRAINING["span-corruption"])


@pytest.mark.parametrize("model", ["lstm", {"name": "bert", "d_model": 16, "heads": 2}])
def test_a_model_with_random_weights_learns_its_tokenizer(tmp_path, monkeypatch, model):
    monkeypatch.chdir(tmp_path)
    rows = [("a good film", "good"), ("simply bad", "bad")] * 8
    run = regard.train(task="classification", model=model, train=rows, max_steps=1, progress=False)
    assert run.model.tokenizer.kind == "bpe"
    assert run.model.predict("a good film") in ("good", "bad")


def test_a_tokenizer_may_be_an_object(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [("a good film", "good"), ("simply bad", "bad")] * 8
    tokenizer = regard.Tokenizer.train([text for text, _ in rows], kind="words", vocab_size=50)
    options = {"task": "classification", "model": {"name": "bert", "d_model": 16, "heads": 2}}
    run = regard.train(train=rows, tokenizer=tokenizer, max_steps=1, progress=False, **options)
    assert run.model.tokenizer.encode("good film").tokens == ["good", "film"]
    assert (run.folder / "data" / "tokenizer").is_dir()
