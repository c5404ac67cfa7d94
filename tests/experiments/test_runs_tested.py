"""The test data of a recipe are scored at the end of its training."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

import regard
from regard.errors import DataError, RegardError
from regard.experiments.runs import read_recipe
from regard.tasks.classification import TextClassifier
from regard.tasks.infer_task import ENCODER_DECODERS
from regard.training import Callback, Interrupted
from regard.training.metrics_log import read_events

TEXTS = ["a good film", "dull and bad", "i liked it", "slow", "good fun", "very bad"] * 4
LABELS = ["yes", "no", "yes", "no", "yes", "no"] * 4
ENCODER = dict(name="bert", d_model=8, d_ff=8, heads=2, layers=1, max_length=32)
QUESTION = {
    "id": "1", "context": "the cat sleeps on a mat", "question": "who sleeps ?",
    "answers": {"text": ["the cat"], "answer_start": [0]},
}  # fmt: skip
CHOICE = {"context": "the cat sleeps", "question": "who ?", "choices": ["cat", "dog"], "answer": 0}
TRANSLATOR = dict(
    name="transformer", d_model=8, d_ff=8, heads=2, encoder_layers=1, decoder_layers=1
)
PAIRS = [task for task in ENCODER_DECODERS if task != "span-corruption"]  # which reads files
DATA = {
    "classification": list(zip(TEXTS, LABELS, strict=True)),
    "regression": [(text, len(text)) for text in TEXTS],
    "tagging": [{"words": t.split(), "tags": ["B-A", *["O"] * t.count(" ")]} for t in TEXTS],
    "question-answering": [{**QUESTION, "id": str(n)} for n in range(8)],
    "multiple-choice": [CHOICE] * 8,
    "language-modeling": [f"{text} ." for text in TEXTS * 4],
    **dict.fromkeys(PAIRS, [(text, text[::-1]) for text in TEXTS]),
}
MODELS = {
    "language-modeling": dict(name="lstm-lm", d_model=8, layers=1),
    **dict.fromkeys(ENCODER_DECODERS, TRANSLATOR),
}


def options_of(task: str) -> dict:
    more = {"batch_size": 2, "sequence_length": 8} if task == "language-modeling" else {}
    kind = "words" if task in MODELS else "wordpiece"
    return dict(
        task=task, model=MODELS.get(task, ENCODER), train=DATA[task], valid=0.25,
        tokenizer={"kind": kind, "vocab_size": 80}, epochs=2, learning_rate=1e-2,
        schedule={"name": "constant"}, threads=1,
        progress=False, **more,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("task", DATA)
def test_test_scores_equal_those_of_the_opened_model(task):
    test = DATA[task][: len(DATA[task]) // 2]
    run = regard.train(**options_of(task), test=test)
    data = read_recipe(run.folder / "recipe.toml").data.records("test")
    scores = regard.load(run.folder).evaluate(data)
    assert run.test_scores == pytest.approx(dict(scores), rel=1e-5)
    assert run.result.test_signatures == {one.name: one.signature for one in scores.named}
    assert json.loads((run.folder / "result.json").read_text())["test_scores"] == run.test_scores
    *_, last = read_events(run.folder)
    assert last == {"step": run.result.step} | {
        f"test/{name}": value for name, value in run.test_scores.items()
    }
    page = (run.folder / "report.html").read_text()
    for name, value in run.test_scores.items():
        assert f"test {name}" in page and f"{value:.4g}" in page
    assert f"test {next(iter(run.test_scores))}" in run._repr_html_()
    assert not run.test_scores.keys() & {f"valid {name}" for name in run.scores}


def test_test_data_change_no_weights_and_no_validation_score():
    options = options_of("classification")
    without = regard.train(**options, out="without")
    tested = regard.train(**options, out="tested", test=DATA["classification"])
    assert without.test_scores == {} and tested.scores == without.scores
    one, other = (Path(f"{name}/model/model.safetensors") for name in ("without", "tested"))
    assert one.read_bytes() == other.read_bytes()


def test_a_run_stopped_while_it_is_tested_is_completed_by_resume(monkeypatch):
    options = options_of("classification") | {"test": DATA["classification"]}
    whole = regard.train(**options, out="whole")
    evaluate = TextClassifier.test

    def interrupted(self, recipe):
        os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(self, recipe)

    with monkeypatch.context() as patch:
        patch.setattr(TextClassifier, "test", interrupted)
        with pytest.raises(Interrupted, match="regard resume stopped"):
            regard.train(**options, out="stopped")
    assert not Path("stopped/result.json").exists()
    result = regard.resume("stopped", progress=False).result
    assert result.test_scores == whole.test_scores and result.scores == whole.scores
    one, other = (Path(f"{name}/model/model.safetensors") for name in ("stopped", "whole"))
    assert one.read_bytes() == other.read_bytes()
    events, wanted = (read_events(Path(name)) for name in ("stopped", "whole"))
    assert [e for e in events if "test/accuracy" in e] == wanted[-1:] == events[-1:]


@pytest.mark.parametrize(
    ("task", "test", "said"),
    [
        ("classification", [("a good film", "perhaps")], "'perhaps', which is none of: no, yes"),
        ("regression", [("a good film", "much")], "'much' where a number should be"),
        ("tagging", [{"words": ["a"], "tags": []}], "tags"),
        ("multiple-choice", [{**CHOICE, "answer": 7}], "answer"),
        ("question-answering", [{"id": "1", "question": "who ?"}], "context"),
    ],
)
def test_errors_in_test_data_are_raised_before_the_training(task, test, said):
    class Never(Callback):
        def on_step(self, step):
            raise AssertionError("trained")

    with pytest.raises((DataError, RegardError), match=said):
        regard.train(**options_of(task), test=test, callbacks=[Never()])
    assert not Path("runs").exists() or not list(Path("runs").iterdir())


def test_a_test_that_fails_leaves_a_finished_run_and_a_warning(monkeypatch, capsys):
    def fails(self, recipe):
        raise RegardError("scores are NaN")

    monkeypatch.setattr(TextClassifier, "test", fails)
    options = options_of("classification") | {"progress": True}
    run = regard.train(**options, test=DATA["classification"])
    assert run.test_scores == {} and run.scores
    assert "the test data were not scored: scores are NaN" in capsys.readouterr().err
    assert regard.resume(run, progress=False).result == run.result
