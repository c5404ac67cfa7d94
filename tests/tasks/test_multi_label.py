"""Any number of labels: training on every form of data, beside formulas and transformers."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_folders import GPTS, folder, their_scores

import regard
from regard.errors import ConfigError, DataError
from regard.experiments import runs
from regard.metrics.score import best_threshold

pandas = pytest.importorskip("pandas")
transformers = pytest.importorskip("transformers")

TEXTS = ["a good film", "dull and bad", "i liked it", "slow", "good fun", "very bad"] * 4
SETS = [["good", "film"], ["bad"], ["good"], [], ["good", "fun"], ["bad", "slow"]] * 4
LABELS = ("bad", "film", "fun", "good", "slow")
COLUMNS = {label: [int(label in labels) for labels in SETS] for label in LABELS}
LISTS = pandas.DataFrame({"text": TEXTS, "labels": SETS})
INDICATORS = pandas.DataFrame({"id": range(24), "text": TEXTS, **COLUMNS})
NO_DROPOUT = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


@pytest.fixture
def start(tmp_path, monkeypatch) -> str:
    monkeypatch.chdir(tmp_path)
    return str(folder(tmp_path / "start", "bert", "Model", **NO_DROPOUT))


def train(**options):
    given = dict(task="multi-label-classification", train=LISTS, valid=0.25, model="start")
    given |= dict(epochs=1, learning_rate=1e-2, schedule={"name": "constant"}, progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return regard.train(**(given | options))


def planned(run) -> runs.TrainingPlan:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return runs.plan(runs.read_recipe(run.folder / "recipe.toml"))


# ---- data --------------------------------------------------------------------------------------


OWN = dict(columns=["text"], target_columns=list(LABELS))
PAIRS = list(zip(TEXTS, SETS, strict=True))
JOINED = LISTS.assign(labels=[";".join(labels) for labels in SETS])
# the same rows in every form
FORMS = {
    "frame": dict(train=LISTS),
    "tuples": dict(train=PAIRS),
    "frame of text": dict(train=JOINED, separator=";"),
    "frame of columns": dict(train=INDICATORS, **OWN),
    "jsonl": dict(train="rows.jsonl", columns=["text", "labels"]),
    "tsv of json": dict(train="rows.tsv"),
    "csv of columns": dict(train="rows.csv", **OWN),
    "numbered columns": dict(
        train="bare.csv", columns=[1], target_columns=[2, 3, 4, 5, 6], header=False
    ),
}


@pytest.fixture
def files(start):
    LISTS.to_json("rows.jsonl", orient="records", lines=True)
    Path("rows.tsv").write_text("".join(f"{t}\t{json.dumps(c)}\n" for t, c in PAIRS))
    INDICATORS.to_csv("rows.csv", index=False)
    INDICATORS.to_csv("bare.csv", index=False, header=False)


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_the_data_gives_the_same_targets_and_scores(form):
    run = train(**FORMS[form])
    named = tuple("23456") if form == "numbered columns" else LABELS
    assert run.model.labels == named
    plan = planned(run)
    data = plan.recipe.data
    rows = data.read(data.train, "train")
    targets = [plan.task.target(rows, row, line) for line, row in rows.numbered()]
    assert targets == np.array(list(COLUMNS.values())).T.tolist()
    assert run.scores == train(out="other").scores
    if named == LABELS:
        scores = run.evaluate(data.read(data.train, "train")).named
        more = [JOINED] if run.model.separator else []
        for rows in (LISTS, PAIRS, INDICATORS, *more):
            assert run.evaluate(rows).named == scores


def test_an_order_of_columns_is_the_order_of_the_labels(start):
    run = train(train=INDICATORS, columns=["text"], target_columns=["slow", "bad", "good"])
    assert run.model.labels == ("slow", "bad", "good")
    (found,) = run.model.predict(["slow"], return_proba=True)
    assert [*found.probabilities] == ["slow", "bad", "good"]


def test_rows_without_labels_have_the_target_zero(start):
    run = train(valid=LISTS[3:4])
    assert planned(run).task.parts.valid.targets.tolist() == [[0.0] * 5]
    assert run.evaluate([("slow", [])]).named[2].value in (0.0, 1.0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (dict(valid=[("a", "b")]), "has no column 'text'"),
        (
            dict(valid=LISTS[:2].assign(labels=[["good"], ["new"]])),
            "valid=<DataFrame>:2: has the label 'new', which is none of: 'bad', 'film'",
        ),
        (dict(train=LISTS.assign(labels=[[]] * 24)), "has no row with a label"),
        (
            dict(train=INDICATORS.assign(bad=None), columns=["text"], target_columns=["bad"]),
            ":1: has '' in column 'bad', which must be 0 or 1",
        ),
        (dict(train=INDICATORS, columns=["text"], target_columns=["goood"]), "no column 'goood'"),
        (dict(target_columns=["labels", "labels"]), "must name each column once"),
        (dict(columns=["text", "text", "labels", "text"]), "names 4 columns"),
        (dict(threshold="fitted", valid=None), "`labels.threshold` needs validation data"),
        (dict(goal="accuracy"), "goal"),
        (dict(goal="macro-f1", valid=None), "needs validation data"),
        (dict(pos_weight={"good": -2.0}), "pos_weight"),
        (dict(separator=";", target_columns=list(LABELS), train=INDICATORS), "separator"),
        (dict(group="id", train=INDICATORS, columns=["text"], target_columns=["bad"], valid=LISTS),
         "group"),
    ],
)  # fmt: skip
def test_errors_name_the_row_or_the_option_and_leave_no_folder(start, options, said):
    with pytest.raises((ConfigError, DataError), match=said):
        train(**options)
    assert not Path("runs").exists() or not list(Path("runs").iterdir())


def test_target_columns_without_columns_in_a_recipe_are_an_error(start):
    INDICATORS.to_csv("rows.csv", index=False)
    with pytest.raises(ConfigError, match="`columns` must name one text or two, but is missing"):
        train(train="rows.csv", target_columns=["good", "bad"])


# ---- loss and scores ---------------------------------------------------------------------------


@pytest.mark.parametrize("weights", ["", "balanced", {"good": 3.0, "slow": 0.0}])
def test_the_loss_is_the_naive_binary_cross_entropy(start, weights):
    task = planned(train(pos_weight=weights)).task
    task.module.train()
    batch = next(task.train_batches())
    total, count = task.losses(batch)[0]["loss"]
    total = total.detach()
    logits = task.module.scores("classes", batch.texts).double()
    targets = task.parts.train.targets
    counts = targets.sum(0).tolist()
    expected = 0.0
    for row, number in zip(logits.tolist(), batch.numbers.tolist(), strict=True):
        for i, (logit, wanted) in enumerate(zip(row, targets[number].tolist(), strict=True)):
            weight = 1.0
            if weights == "balanced":
                weight = (len(targets) - counts[i]) / counts[i] if counts[i] else 1.0
            elif weights:
                weight = weights.get(LABELS[i], 1.0)
            probability = 1 / (1 + math.exp(-logit))
            positive = -weight * wanted * math.log(probability)
            expected += (positive - (1 - wanted) * math.log(1 - probability)) / 5
    assert count == len(batch) and float(total) == pytest.approx(expected, rel=1e-5)


def test_the_threshold_is_fixed_or_fitted_on_the_validation_data(start):
    assert regard.load(train(threshold=0.3).folder).threshold == 0.3
    run = train(threshold="fitted", valid=LISTS, epochs=2, validation={"eval_steps": 2})
    task = regard.load(run.folder)
    answers = task.predict(TEXTS, return_proba=True)
    shares = np.array([[*one.probabilities.values()] for one in answers])
    best = best_threshold(shares, np.array(list(COLUMNS.values())).T == 1)
    assert task.threshold == pytest.approx(best, abs=1e-6)
    for one in answers:
        assert one.labels == [k for k, v in one.probabilities.items() if v >= task.threshold]
    settings = json.loads((run.folder / "model/config.json").read_text())["regard"]
    assert settings["threshold"] == task.threshold


# ---- folders -----------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["bert", "roberta", "gpt2"])
def test_transformers_gives_the_same_logits_from_a_saved_folder(tmp_path, monkeypatch, family):
    monkeypatch.chdir(tmp_path)
    folder(tmp_path / "start", family, "LMHeadModel" if family in GPTS else "Model")
    run = train()
    model = run.folder / "model"
    theirs = their_scores("AutoModelForSequenceClassification", model, TEXTS)
    ours = [[*one.probabilities.values()] for one in run.model.predict(TEXTS, return_proba=True)]
    assert torch.allclose(theirs.sigmoid(), torch.tensor(ours), atol=1e-5)
    config = json.loads((model / "config.json").read_text())
    assert config["problem_type"] == "multi_label_classification"
    assert tuple(config["id2label"].values()) == LABELS
    logits = run.model.text_scores(run.model.encoded(TEXTS, "error"))
    assert torch.allclose(theirs, logits, atol=1e-4)


def test_the_report_of_a_run_and_the_json_have_the_scores_of_each_label(start):
    run = train(valid=0.5, epochs=4)
    page = (run.folder / "report.html").read_text()
    data = runs.read_recipe(run.folder / "recipe.toml").data
    report = run.model.classification_report(data.records("valid"))
    assert "Scores of each label" in page and "macro average" in page and "(no label)" in page
    for one in report.labels.classes:
        assert f"{one.precision:.3f}" in page
    facts = json.loads(json.dumps(run.evaluate(data.records("valid")).named[0].facts()))
    assert [one["label"] for one in facts["classes"]] == list(LABELS)
    assert facts["micro"]["f1"] == facts["value"] == run.result.best
