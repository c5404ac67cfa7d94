"""Cross-validation: runs that are validated on disjoint folds, and the spread of their scores."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

import regard
from regard.errors import ConfigError, RegardError
from regard.experiments.runs import read_recipe
from regard.training.callbacks import read_result
from regard.training.loop import Loop

pandas = pytest.importorskip("pandas")

TEXTS = [f"{text} {number}" for number in range(5) for text in ("good film", "bad", "dull", "fun")]
LABELS = ["yes", "no", "no", "yes"] * 5
FRAME = pandas.DataFrame({"text": TEXTS, "label": LABELS})
MODEL = dict(name="bert", d_model=8, d_ff=8, heads=2, layers=1, max_length=32)
OPTIONS = dict(
    task="classification", model=MODEL, train=FRAME, tokenizer={"kind": "wordpiece"}, epochs=2,
    batch_size=4, learning_rate=1e-2, schedule={"name": "constant"}, threads=1, progress=False,
)  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def thirds(tmp_path_factory):
    """The folder of a cross-validation with three folds, and its result; no test changes them."""
    folder = tmp_path_factory.mktemp("thirds")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        return folder, regard.cross_validate(**OPTIONS, folds=3)


def runs_of(found) -> list[Path]:
    """The folders of the runs."""
    return [found.folder / row["run"] for row in found.trials[0].rows]


def validated(run: Path) -> list[str]:
    """The texts of the validation data of a run."""
    return [row["text"] for row in read_recipe(run / "recipe.toml").data.records("valid")]


def trained(run: Path) -> list[str]:
    return [row["text"] for row in read_recipe(run / "recipe.toml").data.records("train")]


def test_every_row_is_validated_once_and_trained_on_in_all_other_folds(thirds, monkeypatch):
    folder, found = thirds
    monkeypatch.chdir(folder)
    assert found.folder == Path("runs/classification-folds")
    assert [run.name for run in runs_of(found)] == ["fold-1", "fold-2", "fold-3"]
    assert sorted(text for run in runs_of(found) for text in validated(run)) == sorted(TEXTS)
    assert sorted(len(validated(run)) for run in runs_of(found)) == [6, 7, 7]
    for run in runs_of(found):
        assert {*trained(run)} == {*TEXTS} - {*validated(run)}


def test_scores_are_those_of_the_published_model_on_its_fold():
    found = regard.cross_validate(**OPTIONS, folds=2, validation={"eval_steps": 2})
    label_of = dict(zip(TEXTS, LABELS, strict=True))
    for run, accuracy in zip(runs_of(found), found.trials[0].scores["valid accuracy"], strict=True):
        texts = validated(run)
        predicted = regard.load(run).predict(texts)
        right = [label_of[text] == one for text, one in zip(texts, predicted, strict=True)]
        assert accuracy == pytest.approx(sum(right) / len(right))


def test_mean_and_standard_deviation_equal_numpy_s():
    found = regard.cross_validate(**OPTIONS, folds=3, test=FRAME[:7])
    scores = found.trials[0].scores
    assert [*scores] == ["valid accuracy", "valid loss", "test accuracy"]
    written = json.loads((found.folder / "cross-validation.json").read_text())
    assert written == json.loads(json.dumps(found.facts()))
    for name, values in scores.items():
        facts = written["trials"][0]["scores"][name]
        assert facts["mean"] == pytest.approx(np.mean(values)) and facts["runs"] == [*values]
        assert facts["sd"] == pytest.approx(np.std(values, ddof=1))
    tested = (read_result(run).test_scores["accuracy"] for run in runs_of(found))
    assert scores["test accuracy"] == tuple(tested)
    rows = [json.loads(line) for line in (found.folder / "results.jsonl").open()]
    assert [row["score"] for row in rows] == list(scores["valid accuracy"])
    assert [row["fold"] for row in rows] == [1, 2, 3]


def test_a_fold_is_the_training_with_that_fold_in_its_recipe(thirds):
    folder, found = thirds
    alone = regard.train(**OPTIONS, valid={"fold": 2, "of": 3})
    assert alone.scores == read_result(folder / runs_of(found)[1]).scores
    weights = "model/model.safetensors"
    of_fold = folder / runs_of(found)[1] / weights
    assert (alone.folder / weights).read_bytes() == of_fold.read_bytes()
    assert "[data.valid]\nfold = 2\nof = 3" in (alone.folder / "recipe.toml").read_text()


def test_folds_of_running_text_are_consecutive_lines():
    lines = [f"{text} ." for text in TEXTS * 2]
    found = regard.cross_validate(
        task="language-modeling", model=dict(name="lstm-lm", d_model=8, layers=1), train=lines,
        folds=4, tokenizer={"kind": "words"}, batch_size=2, sequence_length=5, max_steps=3,
        progress=False,
    )  # fmt: skip
    parts = [
        list(read_recipe(run / "recipe.toml").data.records("valid").texts())
        for run in runs_of(found)
    ]
    assert [line for part in parts for line in part] == lines
    assert {*found.trials[0].scores} == {"valid loss", "valid perplexity"}


@pytest.mark.parametrize("stop", [5])
def test_a_stopped_cross_validation_goes_on_to_the_same_scores(stop, thirds, monkeypatch):
    steps, step = [], Loop.step

    def stopping(loop: Loop) -> None:
        steps.append(loop.counters.step)
        if len(steps) == 4 * stop:
            raise KeyboardInterrupt
        step(loop)

    monkeypatch.setattr(Loop, "step", stopping)
    options = OPTIONS | {"folds": 3, "out": "stopped", "checkpoints": {"save_steps": 3}}
    with pytest.raises(KeyboardInterrupt):
        regard.cross_validate(**options)
    again = regard.cross_validate(**options)
    assert again.trials[0].scores == thirds[1].trials[0].scores and len(steps) < 4 * stop + 24
    before = len(steps)
    scores = regard.cross_validate(**options).trials[0].scores
    assert scores == again.trials[0].scores and len(steps) == before


def test_a_folder_of_other_options_or_data_raises_an_error_and_stays_as_it_is(thirds, monkeypatch):
    folder, found = thirds
    monkeypatch.chdir(folder)
    before = (found.folder / "data/train.jsonl").read_bytes()
    for changed, said in (
        ({"folds": 4}, "folds: was 3, is 4"),
        ({"epochs": 3}, "budget.epochs: was 2, is 3"),
        ({"train": FRAME[:-1]}, "started with other data as `train`"),
        ({"split_seed": 2}, "data.split_seed"),
    ):
        with pytest.raises(ConfigError, match=said):
            regard.cross_validate(**(OPTIONS | {"folds": 3} | changed))
    assert (found.folder / "data/train.jsonl").read_bytes() == before
    assert not (found.folder / "new").exists()
    again = regard.cross_validate(**OPTIONS, folds=3)
    assert again.trials[0].scores == found.trials[0].scores


def test_data_of_a_first_call_that_failed_can_be_replaced():
    with pytest.raises(RegardError, match="has 1 label"):
        regard.cross_validate(**(OPTIONS | {"train": FRAME.assign(label="one")}), folds=2)
    assert regard.cross_validate(**OPTIONS, folds=2).trials[0].scores


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (dict(folds=1), "`folds` must be at least 2"),
        (dict(folds=True), "`folds` must be a whole number"),
        (dict(folds=21), "one of 21 folds, each of which needs one of the rows, but there are 20"),
        (dict(valid=0.1), "leave out `valid`"),
        (dict(data={"valid": 0.1}), "leave out `valid`"),
        (dict(out=3), "`out` must be the path of a folder"),
        (dict(stratified=True, group="label"), "cannot be combined"),
        (dict(train=FRAME.assign(label=None)), "the label is empty"),
    ],
)
def test_errors_name_the_option(options, said):
    with pytest.raises(regard.RegardError, match=said):
        regard.cross_validate(**(OPTIONS | options))
    assert not [*Path().rglob("fold-*")]


def test_each_line_of_progress_names_its_fold_and_its_scores(capsys):
    found = regard.cross_validate(**OPTIONS | {"progress": True}, folds=2, test=FRAME[:7])
    lines = [line for line in capsys.readouterr().err.splitlines() if "100%" in line]
    for fold, run in enumerate(runs_of(found), 1):
        result = read_result(run)
        valid, test = result.scores["accuracy"], result.test_scores["accuracy"]
        scores = f"valid accuracy {valid:.4g} · test accuracy {test:.4g}"
        assert f"fold-{fold}: 100% · {scores} · " in lines[fold - 1]


def test_scores_that_are_not_finite_are_nan_and_null():
    found = regard.cross_validate(**OPTIONS, folds=2)
    rows = [json.loads(line) for line in (found.folder / "results.jsonl").open()]
    rows[0]["outcome"]["valid"]["loss"] = None
    (found.folder / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    again = regard.cross_validate(**OPTIONS, folds=2)
    assert math.isnan(again.trials[0].scores["valid loss"][0])
    facts = json.loads((found.folder / "cross-validation.json").read_text())
    of_loss = facts["trials"][0]["scores"]["valid loss"]
    assert of_loss["mean"] is of_loss["sd"] is of_loss["runs"][0] is None
